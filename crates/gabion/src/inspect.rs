//! `gabion inspect DEVICE`: examines one device without a cluster, and without changing a byte.
//!
//! The device is opened for reading and mounted as at the start of a server, except that the writes
//! of replay and checkpoint stay in memory. So the command shows, verifies and exports what a
//! server would serve from it.

mod export;
mod page;
mod slots;
mod verify;

use admin::exit::Exit;
use anyhow::{Context, Result, bail};
use base::VolumeId;
use clap::{Args, Subcommand};
use daemon::inspect::{self as report, Copies};
use daemon::offline::{self, Offline};
use fleet::target::Target;
use std::path::{Path, PathBuf};
use store::durable::Tuning;

/// Options of `gabion inspect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  gabion inspect disk1                    what is on it
  gabion inspect /dev/sdb verify          read everything, compare all checksums
  gabion inspect disk1 export --volume 3 --out vol3.img
                                          what it holds of a volume, as a sparse file

The device must not be in use. It is not changed. \
docs/reference/inspect.md describes the fields of --json.")]
pub(crate) struct InspectArgs {
    /// A file or block device of a data server
    device: PathBuf,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Read all data and compare it with its checksums; exit code 1 when damage is found
    #[command(after_help = "Example:\n  gabion inspect /dev/sdb verify")]
    Verify,
    /// Write what the device holds of a volume into a sparse file
    #[command(after_help = "Example:\n  gabion inspect disk1 export --volume 3 --out vol3.img")]
    Export {
        /// The volume's number, or its name if its cluster can be asked
        #[arg(long, value_name = "NAME|ID")]
        volume: String,
        /// The file to create
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Runs `gabion inspect`.
pub(crate) fn run(target: &Target, args: &InspectArgs) -> Result<Exit> {
    let mut drive = offline::read_only(&args.device)?;
    let (bytes, copies) = (drive.bytes(), Copies::read(&mut drive)?);
    let mounted = Offline::mount(drive, Tuning::SHIPPED);
    let Some(what) = &args.what else {
        return show(args, bytes, &copies, mounted);
    };
    let named = || format!("{}", args.device.display());
    let mut device = mounted.with_context(named)?;
    match what {
        What::Verify => verify::run(&mut device, &args.device, &copies, args.json),
        What::Export { volume, out } => {
            let volume = volume_id(target, volume, &device)?;
            export::run(&mut device, volume, out, args.json)
        }
    }
}

fn show(
    args: &InspectArgs,
    bytes: u64,
    copies: &Copies,
    mounted: Result<Offline, offline::MountFailure>,
) -> Result<Exit> {
    let (store, error) = match &mounted {
        Ok(device) => (Some(device.store()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let report = report::Report::new(&args.device, bytes, copies, store, error);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", page::of(&report));
    }
    match mounted {
        Ok(_) => Ok(Exit::Ok),
        Err(error) => bail!("{}: {error}", args.device.display()),
    }
}

/// Returns the id of a volume: by its name if its cluster can be asked, else by its number.
fn volume_id(target: &Target, text: &str, device: &Offline) -> Result<VolumeId> {
    let cluster = format!("{:016x}", device.store().identity().cluster.0);
    let asked = target.report().ok().filter(|report| report.cluster == cluster);
    if let Some(volume) = asked.iter().flat_map(|r| &r.volumes).find(|v| v.name == text) {
        return Ok(VolumeId(volume.id));
    }
    if let Ok(number) = text.parse::<u32>() {
        return Ok(VolumeId(number));
    }
    let here = report::volumes(device.store());
    let here: Vec<String> = here.iter().map(|v| v.id.to_string()).collect();
    let here = if here.is_empty() { "none".to_owned() } else { here.join(", ") };
    match asked {
        Some(_) => bail!("the cluster has no volume {text}; the device has data of number {here}"),
        None => bail!(
            "a device knows volumes by number only, this one has {here}: give the number, or name \
             its cluster with --dir or --mdm"
        ),
    }
}

/// Returns the name of a device for a document.
fn name(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{BLOCK, ClusterId, DeviceId, GroupId, UNIT, UnitKey};
    use rt::{Backend, DiskSpec, OfflineDevice};
    use seam::Job;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use store::durable::{Identity, MountError};

    /// A folder that is removed when the test ends.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const GROUP: GroupId = GroupId(9);

    fn unit(index: u32) -> UnitKey {
        UnitKey { volume: VolumeId(3), index }
    }

    /// Makes a device with three units of volume 3, most of it still in the log.
    fn device(path: &Path) -> Offline {
        let mut drive =
            OfflineDevice::open(&DiskSpec::file(path, Some(16 << 20)), Backend::Auto).unwrap();
        let identity = Identity { cluster: ClusterId(5), device: DeviceId(7), uuid: [1, 2] };
        offline::format(&mut drive, identity, false).unwrap();
        let mut device = Offline::mount(drive, Tuning::SHIPPED).unwrap();
        for (token, (index, at)) in (1..).zip([(1, 0), (1, 65536), (4, 4096), (1, 0), (2, 0)]) {
            let mut body = device.alloc(5 * BLOCK as usize);
            body.as_mut().fill(token as u8);
            device.start(token, GROUP, unit(index), Job::Write { at, body, crc: None });
            device.finished().unwrap().unwrap().result.unwrap();
        }
        device
    }

    fn mounted(path: &Path) -> (Copies, Offline) {
        let mut drive = offline::read_only(path).unwrap();
        let copies = Copies::read(&mut drive).unwrap();
        (copies, Offline::mount(drive, Tuning::SHIPPED).unwrap())
    }

    fn refusal(path: &Path) -> MountError {
        let drive = offline::read_only(path).unwrap();
        match Offline::mount(drive, Tuning::SHIPPED) {
            Err(offline::MountFailure::Refused(error)) => error,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it is refused"),
        }
    }

    #[test]
    fn looking_verifying_and_exporting_changes_no_byte() {
        let dir = Dir::new("inspect");
        let (path, out) = (dir.0.join("disk"), dir.0.join("out"));
        let running = device(&path);
        let error = offline::read_only(&path).err().unwrap();
        assert!(error.to_string().contains("in use"), "{error}");
        drop(running);
        let before = std::fs::read(&path).unwrap();
        let (copies, mut device) = mounted(&path);
        let report = report::Report::new(&path, 16 << 20, &copies, Some(device.store()), None);
        let log = report.log.unwrap();
        assert!(log.batches >= 5 && log.replay_bytes >= 5 * 4096, "{log:?}");
        assert_eq!(report.volumes[0].units, 3);
        assert_eq!(report.space.unwrap().data_bytes, 4 * 5 * 4096);
        assert!(copies.damaged().is_empty() && page::of(&report).contains("Device 7 of cluster"));
        assert_eq!(verify::run(&mut device, &path, &copies, false).unwrap(), Exit::Ok);
        assert_eq!(export::run(&mut device, VolumeId(3), &out, false).unwrap(), Exit::Ok);
        let again = export::run(&mut device, VolumeId(3), &out, false).err().unwrap();
        assert!(again.to_string().contains("is there already"), "{again}");
        let none = export::run(&mut device, VolumeId(8), &dir.0.join("no"), true).err().unwrap();
        assert!(none.to_string().contains("it has 3"), "{none}");
        drop(device);
        assert!(std::fs::read(&path).unwrap() == before, "not a byte has changed");
        let data = std::fs::read(&out).unwrap();
        assert_eq!(data.len(), 5 * UNIT as usize);
        let at = |place: usize| data[place];
        let unit = UNIT as usize;
        assert_eq!(
            [at(0), at(unit), at(unit + 65536), at(2 * unit), at(4 * unit)],
            [0, 4, 2, 5, 0]
        );
        assert_eq!([at(4 * unit + 4096), at(4 * unit + 6 * 4096), at(3 * unit)], [3, 0, 0]);
    }

    #[test]
    fn damage_is_found_named_and_left_out_of_an_export() {
        let dir = Dir::new("damage");
        let path = dir.0.join("disk");
        let mut running = device(&path);
        running.checkpoint().unwrap();
        let place = running.store().slots().find(|h| h.unit == unit(4)).unwrap().place(2);
        drop(running);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"rot", place + 77).unwrap();
        file.write_all_at(b"rot", 1 << 20).unwrap(); // and a superblock
        let (copies, mut device) = mounted(&path);
        assert_eq!(copies.damaged().len(), 1);
        let lost = device.read(GROUP, unit(4), 0, UNIT).unwrap();
        assert!(lost.is_err(), "a wrong read is never returned");
        assert_eq!(verify::run(&mut device, &path, &copies, true).unwrap(), Exit::Failed);
        let out = dir.0.join("out");
        assert_eq!(export::run(&mut device, VolumeId(3), &out, true).unwrap(), Exit::Failed);
        let data = std::fs::read(&out).unwrap();
        let at = |block: usize| data[4 * UNIT as usize + block * 4096];
        assert_eq!([at(1), at(2), at(3)], [3, 0, 3], "what is around the damage is there");
    }

    /// Number of groups in a full area of records. Group 9 is one of them.
    const GROUPS: usize = 10;

    /// Fills the area of records to its last entry, as builds up to 4680bb2 could: it lists the
    /// last write of each client in each group, without a bound. The next checkpoint of such a
    /// build failed, and so did each further mount. Returns the number of entries.
    fn fill_records(bytes: &mut [u8]) -> usize {
        let size = bytes.len() as u64;
        let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let area =
            store::durable::layout::Layout::new(size).unwrap().records[field(64) as usize & 1];
        let entries = (area.len as usize - GROUPS * 32) / 72;
        let mut records: Vec<u8> = Vec::new();
        for group in 0..GROUPS {
            let clients: Vec<usize> = (0..entries).filter(|n| n % GROUPS == group).collect();
            records.extend([group as u32 + 1, 0].map(u32::to_le_bytes).concat());
            records.extend([5u64, 4].map(u64::to_le_bytes).concat());
            records.extend([0, clients.len() as u32].map(u32::to_le_bytes).concat());
            for n in clients {
                let client = 100 + (n / GROUPS) as u32;
                records.extend([client, 0].map(u32::to_le_bytes).concat());
                // Incarnation, number of the write, floor.
                records.extend([1u64, 50, 50].map(u64::to_le_bytes).concat());
                records.extend([3u32, 1].map(u32::to_le_bytes).concat()); // volume, unit
                records.extend([1u64, 0, 0, 0].map(u64::to_le_bytes).concat()); // blocks
            }
        }
        assert!(records.len() as u64 + 72 > area.len, "not one more entry has room");
        bytes[area.at as usize..][..records.len()].copy_from_slice(&records);
        for at in store::durable::layout::Layout::superblocks(size) {
            let superblock = &mut bytes[at as usize..][..512];
            superblock[104..112].copy_from_slice(&(records.len() as u64).to_le_bytes());
            superblock[112..116].copy_from_slice(&base::crc::crc32c(&records).to_le_bytes());
            superblock[12..16].fill(0);
            let crc = base::crc::crc32c(superblock);
            superblock[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        entries
    }

    #[test]
    fn a_device_that_an_earlier_build_filled_up_is_read() {
        let dir = Dir::new("full");
        let (path, out) = (dir.0.join("disk"), dir.0.join("out"));
        drop(device(&path));
        let mut bytes = std::fs::read(&path).unwrap();
        let entries = fill_records(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let (copies, mut device) = mounted(&path);
        assert!(copies.damaged().is_empty());
        let most = device.store().executed_most();
        assert!(entries > 4 * most && device.store().executed_len() <= most, "{entries}, {most}");
        assert_eq!(verify::run(&mut device, &path, &copies, true).unwrap(), Exit::Ok);
        assert_eq!(export::run(&mut device, VolumeId(3), &out, true).unwrap(), Exit::Ok);
        assert_eq!(std::fs::read(&out).unwrap()[4 * UNIT as usize + 4096], 3);
        let args = InspectArgs { device: path.clone(), json: true, what: None };
        assert_eq!(show(&args, 16 << 20, &copies, Ok(device)).unwrap(), Exit::Ok);
        assert!(std::fs::read(&path).unwrap() == bytes, "not a byte has changed");
    }

    #[test]
    fn devices_that_cannot_be_used_are_told_apart() {
        let dir = Dir::new("refused");
        let path = dir.0.join("disk");
        drop(device(&path));
        let whole = std::fs::read(&path).unwrap();
        let with = |change: fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            refusal(&path)
        };
        assert!(matches!(with(|b| b.truncate(8 << 20)), MountError::Shrunk { .. }));
        assert!(matches!(with(|b| b.truncate(100)), MountError::TooSmall { .. }));
        assert_eq!(with(|b| b.fill(0)), MountError::Unformatted);
        let newer = with(|b| {
            for at in store::durable::layout::Layout::superblocks(16 << 20) {
                b[at as usize + 8] = 99;
            }
        });
        assert_eq!(newer, MountError::Newer { format: 99 });
        let half = with(|b| {
            for at in store::durable::layout::Layout::superblocks(16 << 20) {
                b[at as usize + 100] ^= 1;
            }
        });
        assert!(matches!(half, MountError::Damaged { what: "every superblock", .. }));
        // One damaged superblock is harmless while other copies are intact.
        let mut bytes = whole.clone();
        bytes[..512].fill(7);
        std::fs::write(&path, bytes).unwrap();
        let (copies, _) = mounted(&path);
        assert_eq!(copies.damaged().len(), 1);
    }
}
