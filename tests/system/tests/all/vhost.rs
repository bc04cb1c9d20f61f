//! Volumes as disks of virtual machines: by a frontend of our own, and by QEMU with Linux.
//!
//! Without QEMU, Debian's kernel for clouds, busybox and kmod the last test says so and passes,
//! unless the environment has `GABION_ALL=1`.

use anyhow::{Context, Result, ensure};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::Duration;
use system::bytes::Random;
use system::guest::Guest;
use system::vhost::{
    Backend, Channel, DATA_MAX, DEPTH, DISCARD, FLUSH, GET_ID, IN, Machine, OUT, WRITE_ZEROES,
    descriptor,
};
use system::{Cluster, MIB, Options, case, gabion, leave_out, secs, wait};

const SECTOR: u64 = 512;

/// Starts a cluster with a volume, the process that serves it, and a machine that has it.
fn served(
    volume: &'static str,
    spec: &'static [&'static str],
    queues: usize,
) -> Result<(Cluster, Backend, Machine)> {
    let cluster = Cluster::start(&Options { volumes: spec, ..Options::default() })?;
    let backend = Backend::start(&cluster, volume, &[])?;
    let mut machine = Machine::new(queues)?;
    machine.connect(&backend.socket)?;
    Ok((cluster, backend, machine))
}

/// A range to be freed or zeroed.
fn range(at: u64, len: u64, flags: u32) -> Vec<u8> {
    let sectors = (len / SECTOR) as u32;
    [&(at / SECTOR).to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// Writes at random places over all queues, at full depth, and keeps what has to be there.
pub(super) fn scatter(
    machine: &mut Machine,
    queues: usize,
    content: &mut [u8],
    random: &mut Random,
) -> Result<()> {
    for _ in 0..10 {
        for queue in 0..queues {
            // Each queue has a part of the volume, and each request of a round a part of that.
            let part = content.len() as u64 / queues as u64;
            let step = part / u64::from(DEPTH);
            for n in 0..u64::from(DEPTH) {
                let len = (1 + random.below(step.min(DATA_MAX.into()) / SECTOR)) * SECTOR;
                let room = (step - len) / SECTOR;
                let at = queue as u64 * part + n * step + random.below(room + 1) * SECTOR;
                let data = random.bytes(len as usize);
                content[at as usize..(at + len) as usize].copy_from_slice(&data);
                machine.start(queue, OUT, at / SECTOR, &data, 0)?;
            }
        }
        for queue in 0..queues {
            for _ in 0..DEPTH {
                let done = machine.next(queue, secs(60))?;
                ensure!(done.status == 0, "{done:?}");
            }
        }
    }
    Ok(())
}

/// Reads everything over all queues, and compares it.
pub(super) fn compare(machine: &mut Machine, queues: usize, content: &[u8]) -> Result<()> {
    let chunks: Vec<&[u8]> = content.chunks(DATA_MAX as usize).collect();
    for round in chunks.chunks(queues).enumerate() {
        let (first, all) = (round.0 * queues, round.1);
        for (queue, chunk) in all.iter().enumerate() {
            let sector = ((first + queue) * DATA_MAX as usize) as u64 / SECTOR;
            machine.start(queue, IN, sector, &[], chunk.len() as u32)?;
        }
        for (queue, chunk) in all.iter().enumerate() {
            let done = machine.next(queue, secs(60))?;
            ensure!(done.status == 0 && done.data == *chunk, "chunk {} differs", first + queue);
        }
    }
    Ok(())
}

#[test]
fn a_machine_reads_back_its_writes_over_several_queues() {
    case(|| {
        let (cluster, mut backend, mut machine) = served("vh-data", &["vh-data:32MiB"], 4)?;
        let config = machine.config()?;
        ensure!(config[..8] == (32 * MIB / SECTOR).to_le_bytes(), "capacity: {config:?}");
        let mut content = vec![0; 32 << 20];
        let mut random = Random::new(7);
        scatter(&mut machine, 4, &mut content, &mut random)?;
        compare(&mut machine, 4, &content)?;
        cluster.verify("vh-data", &content)?;

        // What is freed or zeroed reads as zeros, and the rest stays.
        for (kind, at, len, flags) in [
            (DISCARD, MIB, 8 * MIB, 0),
            (WRITE_ZEROES, 12 * MIB + 512, 1024, 0),
            (WRITE_ZEROES, 16 * MIB, 4 * MIB, 1),
        ] {
            let done = machine.run(kind, 0, &range(at, len, flags), 0)?;
            ensure!(done.status == 0, "{done:?}");
            content[at as usize..(at + len) as usize].fill(0);
        }
        compare(&mut machine, 4, &content)?;
        cluster.verify("vh-data", &content)?;

        let id = machine.run(GET_ID, 0, &[], 20)?;
        let id = String::from_utf8(id.data)?;
        let digits = id.trim_end_matches('\0');
        let is_id = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        ensure!(is_id && digits.ends_with("00000001"), "{id:?}");
        ensure!(machine.run(FLUSH, 0, &[], 0)?.status == 0);
        let end = 32 * MIB / SECTOR;
        for (kind, sector, out, into, status) in [
            (IN, end, 0, 512, 1),
            (OUT, end - 1, 1024, 0, 1),
            (IN, u64::MAX, 0, 512, 1),
            (IN, 0, 0, 100, 1),
            (DISCARD, 0, 32, 0, 1),
            (99, 0, 0, 512, 2),
        ] {
            let done = machine.run(kind, sector, &vec![0; out], into)?;
            ensure!(done.status == status, "{kind} at {sector}: {done:?}");
        }
        cluster.verify("vh-data", &content)?;

        // The next one at this socket is told that it is taken.
        let second = cluster.gabion(&["vhost", "vh-data", "--socket", "/tmp/x.sock"])?;
        second.fails(6, &["another `gabion vhost` serves vh-data", "--client"])?;
        let socket = backend.socket.to_str().context("text")?.to_owned();
        let taken = cluster.gabion(&["vhost", "vh-data", "--client", "x", "--socket", &socket])?;
        taken.fails(6, &["in use"])?;
        // Nor is it the successor of a data client that serves others.
        let named = cluster.gabion(&["vhost", "vh-data", "--client", "sdc", "--socket", "/x"])?;
        named.fails(6, &["the data client (SDC) `sdc` runs", "another name (--client)"])?;
        cluster.verify("vh-data", &content)?;
        cluster.say("volume delete vh-data --yes")?.fails(1, &["in use by", "-vhost-vh-data"])?;
        cluster.gabion(&["vhost", "none", "--socket", "/tmp/x.sock"])?.fails(1, &["no volume"])?;
        backend.end()?;
        ensure!(!Path::new(&socket).exists(), "its socket is left");
        cluster.say("volume delete vh-data --yes")?.ok()?;
        Ok(())
    });
}

/// Returns the size of the disk, as a machine reads it.
fn capacity(machine: &mut Machine) -> Result<u64> {
    Ok(u64::from_le_bytes(machine.config()?[..8].try_into()?) * SECTOR)
}

/// Waits until a machine is told that its disk has changed, and reads this size.
fn is_told(machine: &mut Machine, size: u64) -> Result<()> {
    wait("it is told of the new size", secs(20), || {
        let mut message = [0; 12];
        let changes = machine.changes.as_mut().context("the channel back")?;
        if changes.read_exact(&mut message).is_err() {
            return Ok(None);
        }
        ensure!(message[..4] == [2, 0, 0, 0], "{message:?}");
        Ok((capacity(machine)? == size).then_some(()))
    })
}

#[test]
fn a_machine_hears_of_growth_and_can_stop_and_start_its_queues() {
    case(|| {
        let (cluster, backend, mut machine) = served("vh-grow", &["vh-grow:16MiB"], 2)?;
        ensure!(capacity(&mut machine)? == 16 * MIB);
        cluster.say("volume resize vh-grow 32MiB")?.ok()?;
        is_told(&mut machine, 32 * MIB)?;
        // It grows while its process is away. The machine does not ask for the size again.
        drop(backend);
        cluster.say("volume resize vh-grow 64MiB")?.ok()?;
        let backend = Backend::start(&cluster, "vh-grow", &[])?;
        machine.connect(&backend.socket)?;
        is_told(&mut machine, 64 * MIB)?;
        let data = vec![5; 4096];
        let last = (64 * MIB - 4096) / SECTOR;
        ensure!(machine.run(OUT, last, &data, 0)?.status == 0, "its new end can't be written");

        // A queue that is stopped has given back what it had taken, and goes on where it was.
        for n in 0..8 {
            machine.start(1, OUT, n * 8, &data, 0)?;
        }
        let taken = machine.stop(1)?;
        for _ in 0..taken {
            ensure!(machine.next(1, Duration::ZERO)?.status == 0);
        }
        ensure!(machine.next(1, Duration::ZERO).is_err(), "more than {taken} were given back");
        let socket = cluster.folder.join("vh-grow.vhost");
        machine.channel = None;
        machine.connect(&socket)?;
        for _ in taken..8 {
            ensure!(machine.next(1, secs(20))?.status == 0);
        }
        machine.start(1, IN, 0, &[], 4096)?;
        ensure!(machine.next(1, secs(20))?.data == data);

        // A reset forgets the queues, and the machine sets them up anew.
        let channel = machine.channel.as_mut().context("it is connected")?;
        ensure!(channel.order(34, &[], &[])?, "a reset");
        machine.channel = None;
        machine.forget(0)?;
        machine.forget(1)?;
        machine.connect(&socket)?;
        ensure!(machine.run(IN, last, &[], 4096)?.data == data);
        Ok(())
    });
}

/// Requests are under way when the process is killed. The next one does them.
#[test]
fn a_killed_process_loses_no_request_of_its_machine() {
    case(|| {
        let (cluster, mut backend, mut machine) = served("vh-kill", &["vh-kill:32MiB"], 2)?;
        let mut random = Random::new(11);
        let mut content = vec![0; 32 << 20];
        for round in 0..4 {
            scatter(&mut machine, 2, &mut content, &mut random)?;
            // Nothing is answered while the servers stand still.
            let servers = ["sds1", "sds2", "sds3"];
            servers.iter().try_for_each(|name| cluster.freeze(name))?;
            let mut reads = Vec::new();
            for n in 0..u64::from(DEPTH) {
                let (queue, at) = ((n % 2) as usize, n * 64 * 1024 + round * 4096);
                if n % 3 == 2 {
                    let slot = machine.start(queue, IN, at / SECTOR, &[], 4096)?;
                    reads.push((queue, slot, at as usize));
                } else {
                    let data = random.bytes(4096);
                    content[at as usize..at as usize + 4096].copy_from_slice(&data);
                    machine.start(queue, OUT, at / SECTOR, &data, 0)?;
                }
            }
            thread::sleep(Duration::from_millis(200));
            backend.kill()?;
            servers.iter().try_for_each(|name| cluster.thaw(name))?;
            backend = Backend::start(&cluster, "vh-kill", &[])?;
            machine.connect(&backend.socket)?;
            for queue in 0..2 {
                while machine.in_flight(queue) > 0 {
                    let done = machine.next(queue, secs(60))?;
                    ensure!(done.status == 0, "round {round}: {done:?}");
                    let read = reads.iter().find(|(q, slot, _)| (*q, *slot) == (queue, done.slot));
                    if let Some((_, _, at)) = read {
                        ensure!(done.data == content[*at..*at + 4096], "round {round}: old data");
                    }
                }
            }
        }
        compare(&mut machine, 2, &content)?;
        cluster.verify("vh-kill", &content)
    });
}

/// A machine is killed whose write has reached no server. The machine may start next on another
/// host, so the write must never take effect, and nobody waits for it.
#[test]
fn requests_of_a_killed_machine_never_take_effect_and_delay_no_other_machine() {
    case(|| {
        let (device, volumes) = ("file:128MiB", &["vh-dead:16MiB"]);
        let cluster = Cluster::start(&Options { device, volumes, ..Options::default() })?;
        let backend = Backend::start(&cluster, "vh-dead", &[])?;
        let (mut killed, mut other) = (Machine::new(1)?, Machine::new(1)?);
        killed.connect(&backend.socket)?;
        other.connect(&backend.socket)?;
        let old = vec![1; 4096];
        ensure!(killed.run(OUT, 0, &old, 0)?.status == 0);
        ["sds1", "sds2", "sds3"].iter().try_for_each(|name| cluster.kill(name))?;
        killed.start(0, OUT, 0, &[2; 4096], 0)?;
        other.start(0, OUT, 8, &[3; 4096], 0)?;
        ensure!(other.next(0, secs(1)).is_err() && killed.in_flight(0) == 1);
        drop(killed);
        wait("its end is noticed", secs(20), || {
            Ok(backend.said().contains("has disconnected").then_some(()))
        })?;
        other.start(0, OUT, 16, &[4; 4096], 0)?;
        ensure!(other.next(0, secs(1)).is_err(), "there is no server");
        (1..=3).try_for_each(|n| cluster.start_sds(n))?;
        for _ in 0..2 {
            ensure!(other.next(0, secs(60))?.status == 0);
        }
        let now = other.run(IN, 0, &[], 3 * 4096)?.data;
        ensure!(now[4096..] == [[3; 4096], [4; 4096]].concat()[..], "its own writes");
        ensure!(now[..4096] == old[..], "the write of the machine that was killed has come");
        Ok(())
    });
}

/// Sends what is no message, or breaks the protocol. Each is closed, or refused.
fn hostile_messages(socket: &Path) -> Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    let head =
        |request: u32, flags: u32, len: u32| [request, flags, len].map(u32::to_le_bytes).concat();
    let streams = [
        vec![0xff; 4096],
        head(1, 2, 0),
        head(5, 1, u32::MAX),
        [head(2, 1, 4), vec![0; 4]].concat(),
        [head(2, 1, 8), vec![0xff; 8]].concat(),
        [head(8, 1, 8), vec![0xff; 8]].concat(),
        [head(11, 1, 8), vec![0xff; 8]].concat(),
        [head(12, 1, 8), vec![0; 8]].concat(),
        [head(12, 1, 8), vec![0, 1, 0, 0, 0, 0, 0, 0]].concat(),
        [head(31, 1, 24), vec![0xff; 24]].concat(),
        head(77, 1, 0),
        [head(6, 1, 16), vec![1; 16]].concat(),
        head(7, 1, 0),
    ];
    for (n, stream) in streams.iter().enumerate() {
        let mut channel = Channel::connect(socket)?;
        // It may have closed before all was sent.
        let _ = channel.send(stream, &[]);
        ensure!(channel.closes(secs(10)), "stream {n} was taken");
    }
    // Descriptors that nobody has asked for, too many of them, or of the wrong kind.
    let files = [null.as_fd(); 12];
    for (request, body, files) in [
        (1, vec![], &files[..1]),
        (12, vec![0; 8], &files[..1]),
        (13, vec![0; 8], &files[..1]),
        (12, vec![0; 8], &files[..2]),
        (12, vec![0; 8], &files[..12]),
        (5, [vec![1, 0, 0, 0, 0, 0, 0, 0], vec![1; 32]].concat(), &files[..1]),
        (32, vec![1; 24], &files[..1]),
        (6, vec![1; 16], &files[..1]),
        (7, vec![], &files[..1]),
    ] {
        let mut channel = Channel::connect(socket)?;
        let _ = channel.say(request, 0, &body, files);
        ensure!(channel.closes(secs(10)), "request {request} was taken");
    }
    // A memory that is smaller than the monitor says, acknowledged as an error.
    let mut machine = Machine::new(1)?;
    machine.connect(socket)?;
    let channel = machine.channel.as_mut().context("it is connected")?;
    let zero = std::fs::File::open("/dev/zero")?;
    let table = [1u64, 0, 1 << 40, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    ensure!(!channel.order(5, &table, &[zero.as_fd()])?, "memory that is not there");
    ensure!(!channel.order(6, &[1; 16], &[zero.as_fd()])?, "a log that is not there");
    // Half a message, and then nothing.
    Channel::connect(socket)?.send(&head(2, 1, 8)[..7], &[])
}

/// Breaks the rules of a queue. The queue is not served any more.
fn hostile_rings(socket: &Path) -> Result<()> {
    const AVAILABLE: u64 = 0x4000;
    let mut random = Random::new(13);
    for case in 0..12 {
        let mut machine = Machine::new(1)?;
        machine.connect(socket)?;
        match case {
            // More than the ring has; a head outside; a circle; addresses outside.
            0 => machine.poke(0, AVAILABLE + 2, &1000u16.to_le_bytes())?,
            1 => machine.offer(0, 500)?,
            2 => {
                machine.poke(0, 0, &descriptor(1 << 20, 16, 1, 0))?;
                machine.offer(0, 0)?;
            }
            3 => {
                machine.poke(0, 0, &descriptor(u64::MAX - 3, 16, 0, 0))?;
                machine.offer(0, 0)?;
            }
            // A table in itself.
            4 => {
                machine.poke(0, 0, &descriptor(1 << 20, 16, 4, 0))?;
                machine.offer(0, 0)?;
            }
            // Anything.
            _ => {
                machine.poke(0, 0, &random.bytes(0x4000))?;
                machine.offer(0, random.below(128) as u16)?;
            }
        }
        machine.kick(0)?;
        ensure!(machine.next(0, Duration::from_millis(300)).is_err(), "case {case} was answered");
    }
    Ok(())
}

#[test]
fn hostile_messages_and_rings_harm_no_other_machine() {
    case(|| {
        let (cluster, mut backend, mut machine) = served("vh-evil", &["vh-evil:32MiB"], 2)?;
        let mut content = vec![0; 32 << 20];
        let mut random = Random::new(12);
        scatter(&mut machine, 2, &mut content, &mut random)?;
        let socket = backend.socket.clone();
        let hostile = thread::spawn(move || {
            hostile_messages(&socket)?;
            hostile_rings(&socket)
        });
        while !hostile.is_finished() {
            scatter(&mut machine, 2, &mut content, &mut random)?;
        }
        hostile.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        compare(&mut machine, 2, &content)?;
        ensure!(backend.runs()?, "it has ended:\n{}", backend.said());
        ensure!(backend.said().contains("is not served any more"), "{}", backend.said());
        cluster.verify("vh-evil", &content)
    });
}

#[test]
fn a_volume_that_is_mapped_for_reading_is_a_disk_for_reading() {
    case(|| {
        let cluster = Cluster::start(&Options { volumes: &["vh-ro:16MiB"], ..Options::default() })?;
        let content = Random::new(5).bytes(16 << 20);
        cluster.fill("vh-ro", &content)?;
        // A client is known once it has been there.
        Backend::start(&cluster, "vh-ro", &["--client", "reader"])?.end()?;
        cluster.say("volume unmap vh-ro --all")?.ok()?;
        cluster.say("volume map vh-ro --sdc reader --access read-only")?.ok()?;
        let backend = Backend::start(&cluster, "vh-ro", &["--client", "reader"])?;
        let mut machine = Machine::new(1)?;
        machine.connect(&backend.socket)?;
        ensure!(machine.offered & (1 << 5 | 1 << 13) == 1 << 5, "{:#x}", machine.offered);
        ensure!(machine.run(IN, 8, &[], 4096)?.data == content[4096..8192]);
        ensure!(machine.run(OUT, 0, &[1; 512], 0)?.status == 1, "it was written");
        ensure!(machine.run(DISCARD, 0, &range(0, MIB, 0), 0)?.status == 1, "it was freed");

        // Mapped anew: others may have written meanwhile, so the machine has to start again.
        cluster.say("volume unmap vh-ro --sdc reader")?.ok()?;
        cluster.say("volume map vh-ro --sdc reader")?.ok()?;
        wait("its I/O fails", secs(10), || {
            Ok((machine.run(IN, 8, &[], 4096)?.status == 1).then_some(()))
        })?;
        let mut machine = Machine::new(1)?;
        machine.connect(&backend.socket)?;
        ensure!(machine.run(OUT, 0, &[1; 512], 0)?.status == 0, "it is writable now");
        gabion(["vhost", "--help"])?.ok().map(drop)
    });
}

const PROGRAMS: &[&str] = &["/sbin/mkfs.ext4", "/sbin/e2fsck"];
const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"];
/// Time limit for anything in the machine, whose processor is emulated.
const PATIENCE: Duration = secs(200);

/// A script for Linux with the disk.
const SCRIPT: &str = r#"
until_true '[ -b /dev/vda ]'
echo "=== device $(blockdev --getsize64 /dev/vda) $(cat /sys/block/vda/serial)"
echo "=== queues $(ls /sys/block/vda/mq | wc -l) $(cat /sys/block/vda/queue/write_cache)"
mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt && echo '=== mounted'
echo '=== writing'; fill a; check a && echo '=== whole'
until_true '[ $(blockdev --getsize64 /dev/vda) = GROWN ]' && echo '=== grown'
echo '=== again'; fill b; check a && check b && echo '=== both'
rm /mnt/a*; sync; fstrim /mnt && echo '=== trimmed'
umount /mnt; e2fsck -f -n /dev/vda && echo '=== clean'
dmesg | grep -i -E 'error|vda' | tail -40
"#;

/// Bytes of the pool that hold data.
fn used(cluster: &Cluster) -> Result<u64> {
    Ok(cluster.number("/capacity/protected_bytes")? + cluster.number("/capacity/degraded_bytes")?)
}

/// A file system in a virtual machine survives a server and the process that serves its disk.
#[test]
fn linux_in_qemu_keeps_a_file_system_through_failures_and_gives_space_back() {
    case(|| {
        let Some(guest) = Guest::new(PROGRAMS, MODULES)? else {
            return leave_out(
                "a virtual machine with a disk: it takes Debian's packages qemu-system-x86, \
                 linux-image-cloud-amd64, busybox-static and kmod",
            );
        };
        let cluster =
            Cluster::start(&Options { volumes: &["vh-vm:256MiB"], ..Options::default() })?;
        let mut backend = Backend::start(&cluster, "vh-vm", &[])?;
        let script = SCRIPT.replace("GROWN", &(512 * MIB).to_string());
        let on = guest.boot_with_disk(&script, &backend.socket)?;
        let device = on.wait("device", PATIENCE)?;
        ensure!(device.starts_with(&(256 * MIB).to_string()), "{device}\n{}", on.said());
        let queues = on.wait("queues", PATIENCE)?;
        ensure!(queues == "2 write through", "{queues}");
        on.wait("writing", PATIENCE)?;
        thread::sleep(secs(1));
        cluster.kill("sds1")?;
        thread::sleep(secs(2));
        cluster.start_sds(1)?;
        ensure!(on.wait("whole", PATIENCE).is_ok(), "files differ:\n{}", on.said());
        cluster.wait_state("healthy", secs(60))?;
        cluster.say("volume resize vh-vm 512MiB")?.ok()?;
        on.wait("grown", PATIENCE)?;
        on.wait("again", PATIENCE)?;
        thread::sleep(secs(1));
        backend.kill()?;
        thread::sleep(secs(1));
        let _again = Backend::start(&cluster, "vh-vm", &[])?;
        ensure!(on.wait("both", PATIENCE).is_ok(), "files differ:\n{}", on.said());
        let before = used(&cluster)?;
        on.wait("trimmed", PATIENCE)?;
        wait("fstrim gives space back to the pool", secs(20), || {
            let now = used(&cluster)?;
            ensure!(now + 50 * MIB < before, "{now} of {before} bytes are used");
            Ok(Some(()))
        })?;
        on.wait("clean", PATIENCE)?;
        let said = on.end(PATIENCE)?;
        ensure!(!said.contains("I/O error") && !said.contains("Buffer I/O"), "{said}");
        Ok(())
    });
}
