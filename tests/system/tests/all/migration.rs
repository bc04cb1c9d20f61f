//! Virtual machines move between hosts while their disks are in use (vhost-user-blk).
//!
//! Two processes of `gabion vhost` with different client names stand for two hosts. Without QEMU,
//! Debian's kernel for clouds, busybox and kmod the test with QEMU says so and passes, unless the
//! environment has `GABION_ALL=1`.

use crate::vhost::{compare, scatter};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::Duration;
use system::bytes::Random;
use system::guest::{Guest, Running};
use system::monitor::Monitor;
use system::vhost::{Backend, DEPTH, IN, Machine, OUT};
use system::{Cluster, Options, case, leave_out, secs};

const PROGRAMS: &[&str] = &["/sbin/mkfs.ext4", "/sbin/e2fsck"];
const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"];
/// Time limit for anything in the machine, whose processor is emulated.
const PATIENCE: Duration = secs(200);

/// A script for Linux with the disk. In the background it writes, reads and compares all the time.
/// Meanwhile it does what is typed at its console:
///
/// - `burn`: writes to its memory until the next word.
/// - `cache`: reads four files. The disk puts them into memory, and no processor touches them.
/// - `check`: compares them in memory, and then on the disk.
const SCRIPT: &str = r#"
until_true '[ -b /dev/vda ]'
mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt
fill a 4
# busy: writes a file past the cache, and reads it back in both ways
busy() {
    n=0
    while [ ! -e /run/stop ]; do
        n=$((n + 1))
        dd if=/dev/urandom of=/run/data bs=64k count=4 2>/dev/null
        dd if=/run/data of=/mnt/b bs=64k oflag=direct conv=notrunc 2>/dev/null
        for how in iflag=direct ''; do
            dd if=/mnt/b bs=64k $how 2>/dev/null | cmp - /run/data || echo '=== wrong'
        done
        echo $n >/run/rounds
    done
}
busy &
echo '=== ready'
while read word; do
    [ -z "$hot" ] || kill $hot; hot=
    case $word in
    burn) dd if=/dev/zero of=/dev/null bs=8M & hot=$!; echo '=== burns' ;;
    cache) echo 3 >/proc/sys/vm/drop_caches; cat /mnt/a? >/dev/null; echo '=== cached' ;;
    check)
        ok=; n=$(cat /run/rounds)
        for i in 1 2 3 4; do
            [ "$(md5sum </mnt/a$i)" = "$(cat /run/a$i)" ] || ok="$ok cache $i"
        done
        check a || ok="$ok disk"
        until_true "[ \$(cat /run/rounds) -ge $((n + 2)) ]" || ok="$ok stuck"
        echo "=== checked${ok:- right}" ;;
    stop) break ;;
    esac
done
touch /run/stop; wait; rm /run/stop
umount /mnt; e2fsck -f -n /dev/vda && echo '=== clean'
dmesg | grep -i -E 'error|vda|stall|hung' | tail -40
"#;

/// The places at which a machine can be, with a process of `gabion vhost` each.
struct Hosts {
    guest: Guest,
    cluster: Cluster,
    backends: [Backend; 2],
    moves: usize,
}

/// A machine that runs, or that waits for another one.
struct Place {
    on: Running,
    monitor: Monitor,
    host: usize,
    /// Where a machine that moves here is received.
    at: PathBuf,
}

impl Hosts {
    /// Starts QEMU on a host. `waits`: for a machine that moves there.
    fn place(&mut self, host: usize, waits: bool) -> Result<Place> {
        self.moves += 1;
        let file = |name: &str| self.cluster.folder.join(&format!("{name}{}", self.moves));
        let (at, qmp, socket) = (file("from"), file("qmp"), &self.backends[host].socket);
        let on = self.guest.boot_movable(SCRIPT, socket, &qmp, waits.then_some(&at))?;
        Ok(Place { on, monitor: Monitor::connect(&qmp)?, host, at })
    }

    /// Kills the process that serves the disk on a host, and starts it again.
    fn crash(&mut self, host: usize) -> Result<()> {
        self.backends[host].kill()?;
        self.backends[host] = backend(&self.cluster, host)?;
        Ok(())
    }

    /// Moves a machine to another host, and calls `meanwhile` in the middle of that.
    fn migrate(
        &mut self,
        mut from: Place,
        meanwhile: impl FnOnce(&mut Hosts, usize) -> Result<()>,
    ) -> Result<Place> {
        let mut to = self.place(1 - from.host, true)?;
        let host = from.host;
        from.begin(&to, || meanwhile(self, host))?;
        from.monitor.may_stop()?;
        from.monitor.wait_migration("completed", secs(60))?;
        drop(from);
        check(&mut to)?;
        Ok(to)
    }
}

impl Place {
    /// Begins to move the machine, and calls `meanwhile`. Then its disk puts files into memory that
    /// was copied before.
    fn begin(&mut self, to: &Place, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let times = self.on.times("cached");
        self.on.tell("burn")?;
        self.on.wait("burns", PATIENCE)?;
        self.monitor.migrate(&to.at)?;
        meanwhile()?;
        self.on.tell("cache")?;
        self.on.wait_times("cached", times + 1, PATIENCE)
    }
}

fn backend(cluster: &Cluster, host: usize) -> Result<Backend> {
    Backend::start_beside(cluster, "vh-move", ["host-a", "host-b"][host])
}

/// The servers stand still while a machine moves that has requests under way. The source finishes
/// them before it lets the queues go, and the log has everything that they changed. So the machine
/// finds all answers at the destination, and nothing of the source comes later.
#[test]
fn a_machine_takes_the_answers_of_requests_under_way_to_another_host() {
    case(|| {
        let cluster =
            Cluster::start(&Options { volumes: &["vh-move:32MiB"], ..Options::default() })?;
        let [source, destination] = [backend(&cluster, 0)?, backend(&cluster, 1)?];
        let mut machine = Machine::new(2)?;
        machine.connect(&source.socket)?;
        let (mut content, mut random) = (vec![0; 32 << 20], Random::new(17));
        scatter(&mut machine, 2, &mut content, &mut random)?;
        let servers = ["sds1", "sds2", "sds3"];
        servers.iter().try_for_each(|name| cluster.freeze(name))?;
        let mut reads = Vec::new();
        for n in 0..u64::from(DEPTH) {
            let (queue, at) = ((n % 2) as usize, n * 64 * 1024);
            if n % 3 == 2 {
                let slot = machine.start(queue, IN, at / 512, &[], 16384)?;
                reads.push((queue, slot, at as usize));
            } else {
                let data = random.bytes(4096);
                content[at as usize..at as usize + 4096].copy_from_slice(&data);
                machine.start(queue, OUT, at / 512, &data, 0)?;
            }
        }
        let offered = machine.started(0);
        machine.begin_log()?;
        let mut moved = machine.copy()?;
        machine.leave(0)?;
        let channel = machine.channel.as_ref().context("it is connected")?;
        ensure!(!channel.answers(secs(1))?, "it has let go of requests under way");
        servers.iter().try_for_each(|name| cluster.thaw(name))?;
        let bases = [machine.left()?, machine.stop(1)?];
        ensure!(
            bases == [offered; 2],
            "{bases:?} of {offered}: something was left for another one"
        );
        ensure!(reads.len() * 4 < machine.logged()?.len(), "{:?}", machine.logged()?);
        machine.copy_again(&mut moved, &bases)?;
        drop(machine);

        moved.connect(&destination.socket)?;
        for queue in 0..2 {
            while moved.in_flight(queue) > 0 {
                let done = moved.next(queue, secs(20))?;
                ensure!(done.status == 0, "{done:?}");
                let read = reads.iter().find(|(q, slot, _)| (*q, *slot) == (queue, done.slot));
                let is_right = read.is_none_or(|(_, _, at)| done.data == content[*at..*at + 16384]);
                ensure!(is_right, "a read has other data at the destination");
            }
        }
        scatter(&mut moved, 2, &mut content, &mut random)?;
        compare(&mut moved, 2, &content)?;
        cluster.verify("vh-move", &content)
    });
}

/// Compares what is in the machine's memory and on its disk with what has to be there.
fn check(place: &mut Place) -> Result<()> {
    let before = place.on.times("checked");
    place.on.tell("check")?;
    place.on.wait_times("checked", before + 1, PATIENCE)?;
    let found = place.on.wait("checked", secs(5))?;
    ensure!(found == "right" && !place.on.said().contains("=== wrong"), "{}", place.on.said());
    Ok(())
}

/// A machine that reads and writes all the time moves to another host and back. Once its migration
/// is cancelled, and once the process that serves its disk is killed in the middle of it.
#[test]
fn a_machine_moves_to_another_host_and_back_and_reads_what_it_wrote() {
    case(|| {
        let Some(guest) = Guest::new(PROGRAMS, MODULES)? else {
            return leave_out(
                "a virtual machine that moves: it takes Debian's packages qemu-system-x86, \
                 linux-image-cloud-amd64, busybox-static and kmod",
            );
        };
        let cluster =
            Cluster::start(&Options { volumes: &["vh-move:128MiB"], ..Options::default() })?;
        let backends = [backend(&cluster, 0)?, backend(&cluster, 1)?];
        let mut hosts = Hosts { guest, cluster, backends, moves: 0 };
        let mut first = hosts.place(0, false)?;
        first.on.wait("ready", PATIENCE)?;

        // Cancelled: the machine goes on where it is.
        let other = hosts.place(1, true)?;
        first.begin(&other, || Ok(()))?;
        first.monitor.ask("migrate_cancel", serde_json::json!({}))?;
        first.monitor.wait_migration("cancelled", secs(60))?;
        drop(other);
        check(&mut first)?;

        let second = hosts.migrate(first, |_, _| Ok(()))?;
        let mut third = hosts.migrate(second, Hosts::crash)?;
        third.on.tell("stop")?;
        third.on.wait("clean", PATIENCE)?;
        let said = third.on.end(PATIENCE)?;
        ensure!(!said.contains("I/O error") && !said.contains("Buffer I/O"), "{said}");
        Ok(())
    });
}
