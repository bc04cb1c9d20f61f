//! Files and block devices on their own: exclusive use, what is refused, and devices that change
//! underneath or fail.
//!
//! Tests that need root and a loop device or a mount are skipped with a message where these are not
//! available.

use crate::common::{Dir, backends, leave_out};
use rt::{Backend, DiskSpec, OfflineDevice, RtError};
use seam::{Buf, DiskError, DiskId, DiskOp, Effect, Effects};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

fn effects(drive: &OfflineDevice) -> Effects {
    Effects::new(drive.pool().clone(), base::Prng::new(1), None)
}

/// Starts operations and waits for all of them; returns their results in the order of their ids.
fn play(drive: &mut OfflineDevice, list: Vec<Effect>) -> Vec<rt::Ended> {
    let mut out = effects(drive);
    let count = list.len();
    list.into_iter().for_each(|e| out.push(e));
    drive.begin_all(&mut out);
    let mut ended: Vec<rt::Ended> = (0..count).map(|_| drive.wait().unwrap().unwrap()).collect();
    assert!(drive.wait().unwrap().is_none(), "each operation ends once");
    ended.sort_by_key(|(op, _)| op.0);
    ended
}

fn one(drive: &mut OfflineDevice, effect: Effect) -> Result<Buf, DiskError> {
    play(drive, vec![effect]).pop().unwrap().1
}

const DISK: DiskId = DiskId(0);

fn read(op: u64, at: u64, len: u32) -> Effect {
    Effect::Read { op: DiskOp(op), disk: DISK, at, len }
}

fn write(drive: &OfflineDevice, op: u64, at: u64, fill: u8, len: usize) -> Effect {
    let body = drive.pool().copy(&vec![fill; len]);
    Effect::Write { op: DiskOp(op), disk: DISK, at, body, durable: false }
}

fn flush(op: u64) -> Effect {
    Effect::Flush { op: DiskOp(op), disk: DISK }
}

fn open(path: &Path, backend: Backend) -> OfflineDevice {
    OfflineDevice::open(&DiskSpec::file(path, Some(16 * MIB)), backend).unwrap()
}

fn refusal(spec: &DiskSpec) -> RtError {
    OfflineDevice::open(spec, Backend::Auto).err().expect("it is refused")
}

#[test]
fn a_file_is_made_once_sparse_and_keeps_its_size() {
    let dir = Dir::new("device-made");
    let path = dir.0.join("disk");
    let error = refusal(&DiskSpec::file(&path, None));
    assert!(error.to_string().contains("give it a size"), "{error}");
    File::create(&path).unwrap(); // as a crash during its creation leaves it
    for backend in backends() {
        assert_eq!(open(&path, backend).bytes(), 16 * MIB);
    }
    let meta = std::fs::metadata(&path).unwrap();
    assert!(std::os::unix::fs::MetadataExt::blocks(&meta) < 100, "it is sparse");
    let other = OfflineDevice::open(&DiskSpec::file(&path, Some(MIB)), Backend::Auto).unwrap();
    assert_eq!(other.bytes(), 16 * MIB, "it is never truncated");
    drop(other);
    let error = refusal(&DiskSpec::file(dir.0.join("none/disk"), Some(MIB)));
    assert!(error.to_string().contains("make the folder first"), "{error}");
    let error = refusal(&DiskSpec::file(dir.0.join("huge"), Some(1 << 62)));
    assert!(matches!(error, RtError::Make { .. }), "{error}");
}

fn blocks(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
}

#[test]
fn space_is_given_back_unless_the_file_was_fully_allocated() {
    let dir = Dir::new("device-punch");
    for backend in backends() {
        let path = dir.0.join(format!("thin-{backend}"));
        let mut drive = open(&path, backend);
        for at in 0..8 {
            let fill = write(&drive, 1, at * MIB, 7, MIB as usize);
            one(&mut drive, fill).unwrap();
        }
        one(&mut drive, flush(2)).unwrap();
        let before = blocks(&path);
        assert!((8 * MIB..9 * MIB).contains(&before), "{before}");
        let punch = |at, len| Effect::Punch { op: DiskOp(3), disk: DISK, at, len };
        one(&mut drive, punch(MIB, 4 * MIB)).unwrap();
        one(&mut drive, flush(4)).unwrap();
        assert_eq!(blocks(&path), before - 4 * MIB);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 * MIB);
        let byte = |drive: &mut OfflineDevice, at| one(drive, read(5, at, 4096)).unwrap()[0];
        let edges = [MIB - 4096, MIB, 5 * MIB - 4096, 5 * MIB];
        assert_eq!(edges.map(|at| byte(&mut drive, at)), [7, 0, 0, 7]);
        for (at, len) in [(16 * MIB, 4096), (4096, 16 * MIB), (100, 4096), (0, 100), (0, u64::MAX)]
        {
            let error = one(&mut drive, punch(at, len)).unwrap_err();
            assert_eq!(error, DiskError::OutOfRange, "{at}+{len}");
        }
        drop(drive);
        // Somebody reserves all of its blocks.
        let file = File::options().write(true).open(&path).unwrap();
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, 16 * MIB).unwrap();
        let all = blocks(&path);
        let mut drive = open(&path, backend);
        assert_eq!(one(&mut drive, punch(0, MIB)).unwrap_err(), DiskError::Unsupported);
        assert_eq!((blocks(&path), byte(&mut drive, 0)), (all, 7));
        drop(drive);
        let mut looked = OfflineDevice::read_only(&path).unwrap();
        assert_eq!(one(&mut looked, punch(0, MIB)).unwrap_err(), DiskError::Unsupported);
    }
}

#[test]
fn files_that_are_no_device_are_refused_with_a_hint() {
    let dir = Dir::new("device-kind");
    let path = dir.0.join("file");
    std::fs::write(&path, "x").unwrap();
    for (spec, hint) in [
        (DiskSpec::file(&dir.0, Some(MIB)), "name a file in it"),
        (DiskSpec::file("/dev/null", None), "neither a file nor a block device"),
        (DiskSpec::block(&path), "write file:PATH"),
        (DiskSpec::block(dir.0.join("none")), "can't open"),
    ] {
        let error = refusal(&spec);
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn a_device_has_one_user_and_readers_only_without_one() {
    let dir = Dir::new("device-lock");
    let path = dir.0.join("disk");
    let user = open(&path, Backend::Auto);
    assert!(matches!(refusal(&DiskSpec::file(&path, None)), RtError::Locked { .. }));
    assert!(matches!(OfflineDevice::read_only(&path).err(), Some(RtError::Locked { .. })));
    drop(user);
    let readers =
        (OfflineDevice::read_only(&path).unwrap(), OfflineDevice::read_only(&path).unwrap());
    assert!(matches!(refusal(&DiskSpec::file(&path, None)), RtError::Locked { .. }));
    drop(readers);
    open(&path, Backend::Auto);
}

#[test]
fn writes_of_any_memory_arrive_and_flushes_end_beside_them() {
    let dir = Dir::new("device-io");
    for backend in backends() {
        let path = dir.0.join(backend.to_string());
        let mut drive = open(&path, backend);
        assert_eq!(drive.notice(), None, "tests run where there is direct I/O");
        // The body begins within a page: direct I/O would refuse that address.
        let body = drive.pool().copy(&vec![3; 3 * 4096]).slice(100..100 + 8192);
        let uneven = Effect::Write { op: DiskOp(0), disk: DISK, at: 4096, body, durable: false };
        let mut list = vec![uneven, flush(1)];
        for i in 2..400 {
            list.push(match i % 7 {
                0 => flush(i),
                _ => write(&drive, i, i * 8192 + 65536, i as u8, 8192),
            });
        }
        let ended = play(&mut drive, list);
        assert!(ended.iter().all(|(_, result)| result.is_ok()));
        assert_eq!(&one(&mut drive, read(0, 4096, 8192)).unwrap()[..], [3; 8192]);
        let mut bytes = vec![0; 8192];
        for i in (2..400).filter(|i| i % 7 != 0) {
            File::open(&path).unwrap().read_exact_at(&mut bytes, i * 8192 + 65536).unwrap();
            assert!(bytes.iter().all(|b| *b == i as u8));
        }
    }
}

#[test]
fn ranges_that_are_none_of_the_device_are_refused() {
    let dir = Dir::new("device-range");
    for backend in backends() {
        let mut drive = open(&dir.0.join(backend.to_string()), backend);
        for (at, len) in [
            (512, 4096),
            (0, 512),
            (4096, 6000),
            (16 * MIB, 4096),
            (16 * MIB - 4096, 8192),
            (u64::MAX - 4095, 4096),
        ] {
            let write = write(&drive, 2, at, 1, len as usize);
            for effect in [read(1, at, len), write] {
                assert_eq!(
                    one(&mut drive, effect).unwrap_err(),
                    DiskError::OutOfRange,
                    "{at}+{len}"
                );
            }
        }
        assert!(one(&mut drive, read(1, 16 * MIB - 4096, 4096)).is_ok());
        assert!(one(&mut drive, read(1, 16 * MIB, 0)).unwrap().is_empty());
    }
}

#[test]
fn a_file_that_grows_or_shrinks_underneath_reads_no_zeros() {
    let dir = Dir::new("device-shrink");
    for backend in backends() {
        let path = dir.0.join(backend.to_string());
        let mut drive = open(&path, backend);
        let all = write(&drive, 0, 0, 7, 65536);
        one(&mut drive, all).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(32 * MIB).unwrap();
        let beyond = one(&mut drive, read(1, 16 * MIB, 4096));
        assert_eq!(beyond.unwrap_err(), DiskError::OutOfRange, "it is what it was at first");
        file.set_len(32768).unwrap();
        assert_eq!(&one(&mut drive, read(1, 0, 32768)).unwrap()[..], [7; 32768]);
        for at in [16384, 32768, 8 * MIB] {
            assert_eq!(one(&mut drive, read(1, at, 32768)).unwrap_err(), DiskError::Io);
        }
    }
}

#[test]
fn a_read_only_drive_changes_nothing_and_reads_what_it_would_have_written() {
    let dir = Dir::new("device-shadow");
    let path = dir.0.join("disk");
    std::fs::write(&path, vec![5; MIB as usize]).unwrap();
    let mut drive = OfflineDevice::read_only(&path).unwrap();
    let list = vec![write(&drive, 1, 8192, 9, 8192), flush(2)];
    assert!(play(&mut drive, list).iter().all(|(_, result)| result.is_ok()));
    let data = one(&mut drive, read(3, 4096, 16384)).unwrap();
    let by_block: Vec<u8> = data.chunks(4096).map(|b| b[0]).collect();
    assert_eq!(by_block, [5, 9, 9, 5]);
    let beyond = write(&drive, 4, MIB, 1, 4096);
    assert_eq!(one(&mut drive, beyond).unwrap_err(), DiskError::OutOfRange);
    drop(drive);
    assert_eq!(std::fs::read(&path).unwrap(), vec![5; MIB as usize]);
}

/// Runs a program; `None` if it is missing or fails.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// A loop device over a file.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path, read_only: bool) -> Option<Loop> {
        let flags: &[&str] = if read_only { &["--read-only"] } else { &[] };
        let args = [&["--find", "--show"], flags, &[file.to_str()?]].concat();
        let device = run("losetup", &args);
        if device.is_none() {
            leave_out("block devices, because no loop device can be set up");
        }
        device.map(|path| Loop(path.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.0.to_str().expect("a plain path")]);
    }
}

#[test]
fn a_block_device_has_its_size_and_one_user_and_tells_when_it_fails() {
    let dir = Dir::new("device-block");
    let path = dir.0.join("file");
    for backend in backends() {
        std::fs::write(&path, vec![1; 4 << 20]).unwrap();
        let Some(device) = Loop::over(&path, false) else { return };
        let spec = DiskSpec::block(&device.0);
        let mut drive = OfflineDevice::open(&spec, backend).unwrap();
        assert_eq!(drive.bytes(), 4 * MIB);
        assert!(matches!(refusal(&spec), RtError::Mounted { .. }));
        assert!(matches!(OfflineDevice::read_only(&device.0).err(), Some(RtError::Mounted { .. })));
        let error = refusal(&DiskSpec::file(&device.0, None));
        assert!(error.to_string().contains("block:PATH"), "{error}");
        let list = vec![write(&drive, 1, 8192, 9, 8192), flush(2)];
        assert!(play(&mut drive, list).iter().all(|(_, result)| result.is_ok()));
        // The file under the device shrinks, so the device reports errors.
        File::options().write(true).open(&path).unwrap().set_len(65536).unwrap();
        assert_eq!(one(&mut drive, read(3, 2 * MIB, 65536)).unwrap_err(), DiskError::Io);
        drop(drive);
        let mut through = OfflineDevice::open(
            &DiskSpec::Block { path: device.0.clone(), write_through: true },
            backend,
        )
        .unwrap();
        let durable = write(&through, 1, 0, 4, 4096);
        one(&mut through, durable).unwrap();
        drop(through);
        assert_eq!(std::fs::read(&path).unwrap()[..4096], [4; 4096]);
    }
}

#[test]
fn a_read_only_block_device_is_refused() {
    let dir = Dir::new("device-ro");
    let path = dir.0.join("file");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let Some(device) = Loop::over(&path, true) else { return };
    let error = refusal(&DiskSpec::block(&device.0));
    assert!(matches!(error, RtError::ReadOnly { .. }), "{error}");
    assert_eq!(OfflineDevice::read_only(&device.0).unwrap().bytes(), MIB);
}

/// A mounted file system, unmounted with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().expect("a plain path")]);
    }
}

#[test]
fn a_full_file_system_beneath_is_reported_as_such() {
    let dir = Dir::new("device-full");
    let folder = dir.0.to_str().unwrap();
    if run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]).is_none() {
        return leave_out("a full file system, because mounting is not permitted");
    }
    let _mounted = Mounted(dir.0.clone());
    for backend in backends() {
        let path = dir.0.join(backend.to_string());
        let mut drive = open(&path, backend);
        let writes = (0..4).map(|i| write(&drive, i, i * MIB, 1, MIB as usize)).collect();
        let ended = play(&mut drive, writes);
        let full = ended.iter().filter(|(_, r)| matches!(r, Err(DiskError::NoSpace)));
        assert!(full.count() >= 3, "{ended:?}");
        drop(drive);
        std::fs::remove_file(path).unwrap();
    }
}
