//! Volumes as block devices and file systems of this machine, and as files: `attach`, `detach`,
//! `mount`. They take root, FUSE and loop devices.

use crate::nvme;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use system::attached::works_here;
use system::bytes::Random;
use system::cluster::{is_running, signal};
use system::guest::{Guest, Running, io_errors};
use system::run::binary;
use system::{
    Attached, Cluster, Fio, Folder, MIB, Options, case, free_port, gabion, leave_out, secs, shell,
    tool, wait,
};

/// Random writes of mixed sizes that are compared with what was written, for some seconds.
const JOB: &str = "--rw=randwrite --norandommap --bsrange=4k-128k --ioengine=libaio --direct=1 \
                   --iodepth=16 --size=96m --io_size=192m --rate=,24m --verify=crc32c --do_verify=1 \
                   --verify_backlog=64 --verify_fatal=1 --serialize_overlap=1";

fn fio(cluster: &Cluster, name: &str, file: &Path) -> Result<Fio> {
    let mut args: Vec<String> = JOB.split_whitespace().map(str::to_owned).collect();
    args.push(format!("--filename={}", file.display()));
    Fio::start(&cluster.folder, name, &args)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

/// Bytes of the pool that hold data.
fn used(cluster: &Cluster) -> Result<u64> {
    Ok(cluster.number("/capacity/protected_bytes")? + cluster.number("/capacity/degraded_bytes")?)
}

/// Returns the used bytes. Servers report them about once per second, so this waits until two
/// reports in a row are equal.
fn used_at_rest(cluster: &Cluster) -> Result<u64> {
    let mut last = used(cluster)?;
    wait("the used bytes do not change any more", secs(30), || {
        std::thread::sleep(secs(3));
        let now = used(cluster)?;
        Ok((std::mem::replace(&mut last, now) == now).then_some(now))
    })
}

/// A file system on a volume, with a server killed under load; fstrim; detached and attached again.
fn file_system(fs: &str, volume: &'static str, spec: &'static [&'static str]) -> Result<()> {
    if !works_here()? {
        return Ok(());
    }
    let cluster = Cluster::start(&Options { volumes: spec, ..Options::default() })?;
    let attached = Attached::mount(&cluster, volume, &["--fs", fs])?;
    let at = attached.at.clone();
    ensure!(attached.told["mounted"][0]["fs"] == fs, "{}", attached.told);
    let link = fs::canonicalize(Path::new("/dev/gabion").join(volume))?;
    ensure!(link == Path::new(attached.device()?), "{} is {}", volume, link.display());
    let listed = gabion(["attach", "--list", "--json"])?.ok()?;
    let listed: Value = serde_json::from_str(&listed)?;
    let ours = listed.as_array().context("a list")?.iter().find(|one| one["volume"] == volume);
    ensure!(ours.is_some_and(|one| one["pid"] == attached.told["pid"]), "{listed}");

    let load = fio(&cluster, volume, &at.join("load"))?;
    wait("fio writes", secs(60), || Ok((used(&cluster)? > 40 * MIB).then_some(())))?;
    cluster.kill("sds2")?;
    cluster.wait_down("sds2")?;
    cluster.start_sds(2)?;
    let did = load.finish()?;
    ensure!(did.verified > 16 * MIB, "too little was compared: {did:?}");
    cluster.wait_state("healthy", secs(60))?;

    let content = Random::new(3).bytes(100 << 20);
    fs::write(at.join("kept"), &content)?;
    fs::write(at.join("trash"), &content)?;
    shell(&format!("sync -f {}", text(&at)))?.ok()?;
    let before = used_at_rest(&cluster)?;
    fs::remove_file(at.join("trash"))?;
    // What was removed is free for fstrim once the file system's log is written.
    shell(&format!("sync -f {at} && fstrim -v {at}", at = text(&at)))?.ok()?;
    wait("fstrim gives space back to the pool", secs(20), || {
        let now = used(&cluster)?;
        ensure!(now + 180 * MIB < before, "{now} of {before} bytes are used");
        Ok(Some(()))
    })?;

    attached.detach()?;
    ensure!(!at.join("kept").exists(), "it is still mounted");
    let check = match fs {
        "ext4" => "e2fsck -f -n",
        _ => "xfs_repair -n",
    };
    let alone = Attached::attach(&cluster, volume, &[])?;
    ensure!(alone.told["mounted"] == Value::Array(Vec::new()), "{}", alone.told);
    shell(&format!("{check} {}", alone.device()?))?.ok()?;
    alone.detach()?;

    let again = Attached::mount(&cluster, volume, &[])?;
    ensure!(fs::read(again.at.join("kept"))? == content, "the file has changed");
    again.detach()?;
    Ok(())
}

#[test]
fn ext4_on_a_volume_survives_a_server_and_gives_space_back() {
    case(|| file_system("ext4", "att-ext4", &["att-ext4:512MiB"]));
}

#[test]
fn xfs_on_a_volume_survives_a_server_and_gives_space_back() {
    case(|| file_system("xfs", "att-xfs", &["att-xfs:512MiB"]));
}

#[test]
fn content_is_never_formatted_without_permission() {
    case(|| {
        if !works_here()? {
            return Ok(());
        }
        let volumes = &["att-data:64MiB", "att-fs:512MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        // Data without a signature, in the middle.
        let content = Random::new(4).bytes(4096);
        cluster.nbd("att-data")?.write(33 * MIB, &content)?;
        let attach = |more: &[&str]| cluster.gabion(&[&["attach", "att-data"], more].concat());
        attach(&["--fs", "ext4"])?.fails(1, &["holds data of an unknown kind", "--yes"])?;
        let at = cluster.folder.join("m");
        attach(&["--at", text(&at)])?.fails(1, &["can't be mounted"])?;
        ensure!(cluster.nbd("att-data")?.read(33 * MIB, 4096)? == content, "it was changed");

        let attached = Attached::mount(&cluster, "att-fs", &["--fs", "ext4"])?;
        let again = cluster.gabion(&["attach", "att-fs"])?;
        again.fails(6, &["attached already", "gabion detach att-fs"])?;
        cluster.say("volume rename att-fs att-new")?.ok()?;
        let renamed = cluster.gabion(&["attach", "att-new"])?;
        renamed.fails(6, &["under its former name att-fs", "gabion detach att-fs"])?;
        ensure!(!Path::new("/run/gabion/attach/att-new").exists(), "a part is left");
        cluster.say("volume rename att-new att-fs")?.ok()?;
        fs::write(attached.at.join("a"), "kept")?;
        attached.detach()?;
        let other = cluster.gabion(&["attach", "att-fs", "--fs", "xfs"])?;
        other.fails(1, &["att-fs holds ext4", "--yes"])?;
        let same = Attached::mount(&cluster, "att-fs", &["--fs", "ext4", "--yes"])?;
        ensure!(fs::read_to_string(same.at.join("a"))? == "kept", "it was formatted again");
        same.detach()?;
        let xfs = Attached::mount(&cluster, "att-fs", &["--fs", "xfs", "--yes"])?;
        ensure!(!xfs.at.join("a").exists(), "it is the old file system");
        xfs.detach()?;
        let none = cluster.gabion(&["attach", "att-none"])?;
        none.fails(1, &["no volume `att-none`"])?;
        let nbd = cluster.gabion(&["attach", "att-fs", "--via", "nbd"])?;
        nbd.fails(1, &["can't attach by nbd"])?;
        gabion(["detach", "att-fs"])?.fails(1, &["not attached here"])
    });
}

/// Ends with its value.
struct Sleeping(Child);

impl Drop for Sleeping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_volume_in_use_stays_attached_and_its_users_are_named() {
    case(|| {
        if !works_here()? {
            return Ok(());
        }
        let cluster =
            Cluster::start(&Options { volumes: &["att-busy:512MiB"], ..Options::default() })?;
        let attached = Attached::mount(&cluster, "att-busy", &["--fs", "ext4"])?;
        let sleep = |command: &mut Command| -> Result<Sleeping> {
            Ok(Sleeping(command.arg("600").stdin(Stdio::null()).spawn()?))
        };
        let inside = sleep(Command::new("sleep").current_dir(&attached.at))?;
        let named = format!("process {} (sleep)", inside.0.id());
        gabion(["detach", "att-busy"])?.fails(6, &[&named, text(&attached.at)])?;
        ensure!(attached.at.join("lost+found").exists(), "it was unmounted");
        drop(inside);
        let open = File::open(attached.device()?)?;
        let holds = sleep(Command::new("sleep").stdout(open))?;
        let named = format!("process {} (sleep)", holds.0.id());
        gabion(["detach", "att-busy"])?.fails(6, &[&named, attached.device()?])?;
        // The process that serves it does not end, either, as long as it is needed.
        signal(attached.pid()?, rustix::process::Signal::TERM)?;
        let log = Path::new("/run/gabion/attach/att-busy/log");
        wait("it refuses to end", secs(10), || {
            Ok(fs::read_to_string(log)?.contains("is in use").then_some(()))
        })?;
        drop(holds);
        attached.detach()?;
        Ok(())
    });
}

#[test]
fn a_killed_serving_process_is_noticed_and_cleaned_up() {
    case(|| {
        if !works_here()? {
            return Ok(());
        }
        let cluster =
            Cluster::start(&Options { volumes: &["att-dead:512MiB"], ..Options::default() })?;
        let attached = Attached::mount(&cluster, "att-dead", &["--fs", "ext4"])?;
        fs::write(attached.at.join("a"), "kept")?;
        shell(&format!("sync -f {}", text(&attached.at)))?.ok()?;
        let pid = attached.pid()?;
        signal(pid, rustix::process::Signal::KILL)?;
        wait("it is dead", secs(10), || Ok((!is_running(pid)).then_some(())))?;
        let listed = gabion(["attach", "--list"])?.ok()?;
        ensure!(listed.contains("nobody"), "{listed}");
        let said = attached.detach()?;
        ensure!(said.contains("was gone"), "{said}");
        let again = Attached::mount(&cluster, "att-dead", &[])?;
        ensure!(fs::read_to_string(again.at.join("a"))? == "kept", "it is lost");
        again.detach()?;
        Ok(())
    });
}

#[test]
fn a_restart_of_the_whole_cluster_under_load_is_no_error() {
    case(|| {
        if !works_here()? {
            return Ok(());
        }
        let options =
            Options { device: "file:1GiB", volumes: &["att-all:512MiB"], ..Options::default() };
        let cluster = Cluster::start(&options)?;
        let attached = Attached::mount(&cluster, "att-all", &["--fs", "xfs"])?;
        let load = fio(&cluster, "all", &attached.at.join("load"))?;
        wait("fio writes", secs(60), || Ok((used(&cluster)? > 40 * MIB).then_some(())))?;
        cluster.kill_all()?;
        cluster.start_again()?;
        let did = load.finish()?;
        ensure!(did.verified > 16 * MIB, "too little was compared: {did:?}");
        attached.detach()?;
        Ok(())
    });
}

/// A control group with a limit of memory, which is removed with its value.
struct Group(std::path::PathBuf);

impl Group {
    fn new(name: &str, bytes: u64) -> Result<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let second = root.join("cgroup.controllers").exists();
        let (root, limit) = match second {
            true => (root.to_owned(), "memory.max"),
            false => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let group = Group(root.join(name));
        fs::create_dir_all(&group.0)?;
        fs::write(group.0.join(limit), bytes.to_string())?;
        Ok(group)
    }

    /// Runs a line in a shell inside the group.
    fn shell(&self, line: &str) -> Result<String> {
        let enter = format!("echo $$ > {}/cgroup.procs", self.0.display());
        shell(&format!("{enter} && {line}"))?.ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns true if root may do here what the kernel allows to root: some containers take this away.
fn may_protect() -> Result<bool> {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status")?;
    let all = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("CapEff")?;
    Ok(u64::from_str_radix(all.trim(), 16)? >> CAP_SYS_RESOURCE & 1 == 1)
}

#[test]
fn a_full_page_cache_is_written_back_under_a_memory_limit() {
    case(|| {
        if !works_here()? {
            return Ok(());
        }
        let cluster =
            Cluster::start(&Options { volumes: &["att-mem:1GiB"], ..Options::default() })?;
        let group = Group::new("gabion-test-attach", 224 * MIB)?;
        // The process that serves the volume and the one that writes to it share this memory.
        let at = cluster.folder.join("att-mem");
        let line = format!(
            "{} attach att-mem --fs ext4 --at {} --json --dir {}",
            binary().display(),
            text(&at),
            cluster.dir()
        );
        let told = serde_json::from_str(&group.shell(&line)?)?;
        let attached = Attached::of("att-mem", at.clone(), told);
        let status = fs::read_to_string(format!("/proc/{}/status", attached.pid()?))?;
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        ensure!(locked.is_some_and(|kib| kib.trim() != "0 kB"), "no memory is locked: {status}");
        if may_protect()? {
            let spared = fs::read_to_string(format!("/proc/{}/oom_score_adj", attached.pid()?))?;
            ensure!(spared.trim() == "-1000", "{spared}");
        } else {
            leave_out("processes can't be protected (CAP_SYS_RESOURCE)")?;
        }
        let source = cluster.folder.join("source");
        fs::write(&source, Random::new(5).bytes(400 << 20))?;
        let (from, to) = (text(&source), at.join("big"));
        group.shell(&format!("timeout 200 dd if={from} of={} bs=1M status=none", text(&to)))?;
        group.shell(&format!("timeout 200 sync -f {}", text(&at)))?;
        ensure!(is_running(attached.pid()?), "the serving process has died");
        shell(&format!("echo 1 > /proc/sys/vm/drop_caches; cmp {from} {}", text(&to)))?.ok()?;
        attached.detach()?;
        Ok(())
    });
}

/// Linux writes dirty pages through the data client if a volume is attached by NBD or NVMe/TCP.
#[test]
fn a_data_client_is_protected_from_a_lack_of_memory_if_its_configuration_says_so() {
    case(|| {
        if !rustix::process::geteuid().is_root() || !may_protect()? {
            return leave_out("processes can't be protected (CAP_SYS_RESOURCE)");
        }
        let cluster =
            Cluster::start(&Options { volumes: &["att-sdc:16MiB"], ..Options::default() })?;
        let config = cluster.file("config/sdc.toml");
        let written = fs::read_to_string(&config)?;
        let protects = written.replace("protect_memory = false", "protect_memory = true");
        ensure!(protects != written, "{written}");
        fs::write(&config, protects)?;
        cluster.kill("sdc")?;
        cluster.say("sdc start")?.ok()?;
        let process = format!("/proc/{}", cluster.pid("sdc")?);
        let of = |file: &str| fs::read_to_string(Path::new(&process).join(file));
        let status = of("status")?;
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        ensure!(locked.is_some_and(|kib| kib.trim() != "0 kB"), "no memory is locked: {status}");
        ensure!(of("oom_score_adj")?.trim() == "-1000", "it may be killed");
        let content = Random::new(8).bytes(1 << 20);
        cluster.fill("att-sdc", &content)?;
        cluster.verify("att-sdc", &content)
    });
}

#[test]
fn a_systemd_unit_attaches_the_volume_again() {
    case(|| {
        if !works_here()? || shell("command -v systemctl")?.code != 0 {
            return Ok(());
        }
        let cluster =
            Cluster::start(&Options { volumes: &["att-boot:512MiB"], ..Options::default() })?;
        let root = cluster.folder.join("root");
        fs::create_dir_all(&root)?;
        let more = ["--fs", "ext4", "--persist", "--root", text(&root)];
        let attached = Attached::mount(&cluster, "att-boot", &more)?;
        let units = root.join("etc/systemd/system");
        let unit = units.join("gabion-attach@att-boot.service");
        let written = fs::read_to_string(&unit)?;
        let enabled = units.join("multi-user.target.wants/gabion-attach@att-boot.service");
        ensure!(enabled.is_symlink(), "{} is missing", enabled.display());
        fs::write(attached.at.join("a"), "kept")?;
        attached.detach()?;

        // What systemd would run at the next start.
        let start = written.lines().find_map(|line| line.strip_prefix("ExecStart="));
        let stop = written.lines().find_map(|line| line.strip_prefix("ExecStop="));
        let at = cluster.folder.join("att-boot");
        shell(start.context("a start")?)?.ok()?;
        let again = Attached::of("att-boot", at.clone(), Value::Null);
        ensure!(fs::read_to_string(at.join("a"))? == "kept", "it holds something else");
        shell(stop.context("a stop")?)?.ok()?;
        again.is_gone();
        ensure!(!at.join("a").exists(), "it is still mounted");

        let forget = ["detach", "att-boot", "--forget", "--root", text(&root)];
        gabion(forget)?.ok()?;
        ensure!(!unit.exists() && !enabled.is_symlink(), "the unit is still there");
        gabion(forget)?.fails(1, &["not attached here"])
    });
}

/// A mount of all volumes as files.
struct Files(Child);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// Long: one mount, and what programs do with it.
#[test]
// Long: one step after the other with the same files.
fn volumes_are_files_with_holes() {
    case(|| {
        if !works_here()? {
            return Ok(());
        }
        let volumes = &["a:4MiB", "b.c:8MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        let folder = cluster.folder.join("files");
        fs::create_dir(&folder)?;
        let mut command = Command::new(binary());
        command.arg("mount").arg(&folder).args(["--dir", cluster.dir()]).stdin(Stdio::null());
        let mut files = Files(command.stdout(Stdio::null()).spawn()?);
        wait("the volumes are files", secs(20), || Ok(folder.join("a").exists().then_some(())))?;
        let mut names: Vec<_> = fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort_unstable();
        ensure!(names == ["a", "b.c"], "{names:?}");
        let path = folder.join("b.c");
        ensure!(fs::metadata(&path)?.len() == 8 * MIB, "the size");

        let file = File::options().read(true).write(true).open(&path)?;
        let content = Random::new(6).bytes(3 << 20);
        file.write_all_at(&content, MIB)?;
        ensure!(cluster.nbd("b.c")?.read(MIB, content.len())? == content, "over NBD");
        let mut back = vec![0; content.len()];
        file.read_exact_at(&mut back, MIB)?;
        ensure!(back == content, "from the file");
        let mut part = [0; 100];
        file.read_exact_at(&mut part, MIB + 1000)?;
        ensure!(part == content[1000..1100], "a part of a sector");
        let seek = |from| rustix::fs::seek(&file, from);
        use rustix::fs::SeekFrom::{Data, Hole};
        ensure!(seek(Data(0)) == Ok(MIB) && seek(Hole(MIB)) == Ok(4 * MIB), "where its data is");
        ensure!(seek(Data(4 * MIB)) == Err(rustix::io::Errno::NXIO), "there is no more");
        shell(&format!("fallocate --punch-hole -o 2M -l 1M {}", text(&path)))?.ok()?;
        ensure!(seek(Hole(MIB)) == Ok(2 * MIB) && seek(Data(2 * MIB)) == Ok(3 * MIB), "a hole");
        file.sync_all()?;
        cluster.say("volume delete b.c --yes")?.fails(1, &["in use by", "-mount-"])?;

        // What no volume does is refused, and changes nothing.
        ensure!(file.write_at(&[1; 512], 8 * MIB).is_err(), "a write beyond its end");
        ensure!(file.write_at(&[1; 100], 0).is_err(), "a part of a sector");
        ensure!(file.set_len(MIB).is_err() && fs::remove_file(&path).is_err(), "its name and size");
        ensure!(File::create(folder.join("d")).is_err(), "a new file");
        ensure!(fs::metadata(folder.join("none")).is_err(), "no such volume");
        ensure!(file.read_at(&mut [0; 512], 8 * MIB)? == 0, "it ends there");

        // An open file is not a way past a fence.
        cluster.say("volume unmap b.c --all")?.ok()?;
        wait("it is cut off", secs(10), || {
            Ok(file.read_at(&mut [0; 512], 0).is_err().then_some(()))
        })?;
        cluster.say("volume map b.c --all")?.ok()?;
        wait("it can be opened again", secs(10), || {
            Ok(File::open(&path).and_then(|f| f.read_at(&mut [0; 512], 0)).ok())
        })?;
        ensure!(file.read_at(&mut [0; 512], 0).is_err(), "the old permission counts again");
        drop(file);

        // It grows while it is open, and ends when it is unmounted.
        cluster.say("volume resize a 6MiB")?.ok()?;
        wait("the file has grown", secs(10), || {
            Ok((fs::metadata(folder.join("a"))?.len() == 6 * MIB).then_some(()))
        })?;
        shell(&format!("umount {}", text(&folder)))?.ok()?;
        let status = wait("it ends", secs(10), || Ok(files.0.try_wait()?))?;
        ensure!(status.success(), "{status}");
        Ok(())
    });
}

/// A script for Linux, in which GABION is the program.
const SCRIPT: &str = r#"
# A log of the process that keeps a device connected, if something is wrong.
told() { cat /run/gabion/attach/vol1/log; dmesg | tail -30; }
GABION attach vol1 --via nbd --fs ext4 --at /mnt && echo '=== nbd' || told
echo "=== link $(readlink /dev/gabion/vol1)"
GABION attach --list
cat /sys/block/nbd0/queue/io_timeout /sys/block/nbd0/queue/write_cache
echo '=== writing'; fill a 4; echo '=== written'
check a && echo '=== whole'
rm /mnt/a1; sync; fstrim /mnt && echo '=== trimmed'
until_true '[ $(blockdev --getsize64 /dev/gabion/vol1) = GROWN ]' && echo '=== grown' || told
(cd /mnt; GABION detach vol1); echo "=== refused $?"
GABION detach vol1 && echo '=== detached'
[ $(cat /sys/block/nbd0/size) = 0 ] && [ ! -e /dev/gabion/vol1 ] && echo '=== gone'
GABION attach vol1 --at /mnt && echo '=== best' || told
GABION attach --list
echo "=== second $(readlink /dev/gabion/vol1)"
GABION attach vol2 && GABION detach vol1 && [ -b /dev/gabion/vol2 ] && echo '=== shared'
GABION attach vol1 --at /mnt && echo '=== again'; fill b 4; echo '=== rewritten'
check b && [ "$(md5sum </mnt/a2)" = "$(cat /run/a2)" ] && echo '=== all'
GABION detach vol2; GABION detach vol1
[ ! -e /sys/class/nvme/nvme0 ] && [ ! -e /dev/gabion/vol1 ] && echo '=== left'
dmesg | grep -i -E 'error|nbd|nvme' | tail -40
"#;

/// What follows [`SCRIPT`] while the data client begins to ask for keys. NQN is the machine's name;
/// KEY, OWN and WRONG are its key, that of the data client, and one of nobody. PROVES is true if
/// its kernel can authenticate.
const KEYED: &str = r#"
mkdir -p /etc/nvme; echo NQN >/etc/nvme/hostnqn; echo NQN | sed 's/.*://' >/etc/nvme/hostid
umask 077; echo KEY >/run/key; echo OWN >/run/own; echo WRONG >/run/wrong
GABION attach vol2 --via nbd --nvme-secret /run/key 2>&1 | grep 'only with --via nvme' &&
    echo '=== only'
# The data client is restarted: until then it is not there, or asks for no key.
proves() {
    GABION detach vol1
    GABION attach vol1 --nvme-secret /run/key --nvme-ctrl-secret /run/own && dmesg | grep -i authent
}
unable() { GABION attach vol1 --nvme-secret /run/key 2>&1 | grep CONFIG_NVME_HOST_AUTH; }
if PROVES; then
    until_true proves && echo '=== proven' || told
    GABION attach vol2 --nvme-secret /run/wrong 2>&1 | grep 'with another one' && echo '=== other'
    GABION attach vol2 --nvme-secret /run/key && GABION detach vol2 && echo '=== same'
    cat /run/gabion/attach/vol1/*; GABION attach --list; GABION attach --list --json
    GABION detach vol1
    GABION attach vol2 --nvme-secret /run/wrong 2>&1 | grep 'compare the keys' && echo '=== wrong'
    GABION attach vol2 --nvme-secret /run/key --nvme-ctrl-secret /run/wrong 2>&1 |
        grep 'compare the keys' && echo '=== impostor'
    GABION attach vol2 --via nvme 2>&1 | grep 'with --nvme-secret' && echo '=== needed'
else
    until_true unable && echo '=== unable'
fi
dmesg | tail -40
"#;

/// Returns [`KEYED`] for this program.
fn keyed(program: &Path, proves: bool) -> String {
    let [key, own, wrong] = nvme::KEYS;
    let words = [("GABION", text(program)), ("NQN", nvme::HOST), ("KEY", key), ("OWN", own)];
    let put = |script: String, (from, to): (&str, &str)| script.replace(from, to);
    let more = [("WRONG", wrong), ("PROVES", if proves { "true" } else { "false" })];
    words.into_iter().chain(more).fold(KEYED.to_owned(), put)
}

/// A machine with this program, and the port of NBD and of NVMe/TCP of a cluster. `None`: a package
/// is missing.
fn machine() -> Result<Option<(Guest, Folder)>> {
    const MODULES: &[&str] =
        &["virtio_pci", "virtio_net", "nbd", "nvme_tcp", "crc32c_generic", "ext4"];
    let folder = Folder::new()?;
    let program = folder.join("gabion");
    // The machine has little memory.
    tool("strip", [OsStr::new("-o"), program.as_os_str(), binary().as_os_str()])?.ok()?;
    let programs = [text(&program), "/sbin/mkfs.ext4"];
    let guest = Guest::new(&programs, MODULES)?;
    if guest.is_none() {
        leave_out(
            "volumes by NBD and NVMe/TCP: it takes Debian's packages qemu-system-x86, \
             linux-image-cloud-amd64, busybox-static and kmod",
        )?;
    }
    Ok(guest.map(|guest| (guest, folder)))
}

/// The kernel's NBD and NVMe clients, in a machine, because few hosts have their modules. The data
/// client is killed under load, and nothing is lost.
#[test]
fn linux_attaches_by_nbd_and_nvme_and_a_killed_data_client_is_no_error() {
    /// Time limit for anything in the machine, whose processor is emulated.
    const PATIENCE: std::time::Duration = secs(200);
    let restart = |cluster: &Cluster, on: &Running, from: &str| -> Result<()> {
        on.wait(from, PATIENCE)?;
        std::thread::sleep(secs(1));
        cluster.kill("sdc")?;
        std::thread::sleep(secs(1));
        cluster.say("sdc start")?.ok()?;
        Ok(())
    };
    case(|| {
        let Some((guest, folder)) = machine()? else { return Ok(()) };
        let at = || -> Result<String> { Ok(format!("127.0.0.1:{}", free_port()?)) };
        let more = vec!["--nbd-tcp".to_owned(), at()?, "--nvme".into(), at()?];
        // Options live as long as the test.
        let more: &'static [&'static str] =
            Vec::leak(more.into_iter().map(|word| &*word.leak()).collect());
        let volumes = &["vol1:256MiB", "vol2:16MiB"];
        let cluster =
            Cluster::start(&Options { volumes, device: "file:1GiB", more, ..Options::default() })?;
        let mdm = cluster.status()?["mdm"][0]["address"].as_str().context("an MDM")?.to_owned();
        let program = folder.join("gabion");
        let script = SCRIPT.replace("GABION", text(&program));
        let script = script.replace("GROWN", &(512 * MIB).to_string());
        let proves = nvme::proves_keys(&guest)?;
        let keyed = keyed(&program, proves);
        let on = guest.boot(&format!("export GABION_MDM={mdm}\n{script}\n{keyed}"))?;
        let link = on.wait("link", PATIENCE)?;
        ensure!(link == "/dev/nbd0", "{}", on.said());
        restart(&cluster, &on, "writing")?;
        ensure!(on.wait("whole", PATIENCE).is_ok(), "files differ:\n{}", on.said());
        on.wait("trimmed", PATIENCE)?;
        cluster.say("volume resize vol1 512MiB")?.ok()?;
        on.wait("grown", PATIENCE)?;
        let refused = on.wait("refused", PATIENCE)?;
        ensure!(refused == "6", "{}", on.said());
        on.wait("gone", PATIENCE)?;
        let link = on.wait("second", PATIENCE)?;
        ensure!(link.starts_with("/dev/nvme0n"), "{}", on.said());
        on.wait("shared", PATIENCE)?;
        restart(&cluster, &on, "again")?;
        ensure!(on.wait("all", PATIENCE).is_ok(), "files differ:\n{}", on.said());
        ensure!(on.wait("left", PATIENCE).is_ok(), "something is left:\n{}", on.said());
        nvme::ask_for_keys(&cluster)?;
        let marks: &[&str] = match proves {
            true => &["only", "proven", "other", "same", "wrong", "impostor", "needed"],
            false => &["only", "unable"],
        };
        for mark in marks {
            ensure!(on.wait(mark, PATIENCE).is_ok(), "no `{mark}`: it said\n{}", on.said());
        }
        let said = on.end(PATIENCE)?;
        ensure!(!nvme::KEYS.iter().any(|key| said.contains(key)), "a key was shown: {said}");
        ensure!(said.contains("Attached by nvme."), "{said}");
        ensure!(io_errors(&said).is_empty(), "{said}");
        Ok(())
    });
}

/// A script for Linux with ublk, in which GABION is the program.
const UBLK: &str = r#"
told() { cat /run/gabion/attach/vol1/log; dmesg | tail -30; }
GABION attach vol1 --via ublk --fs ext4 --at /mnt && echo '=== attached' || told
echo "=== link $(readlink /dev/gabion/vol1)"
cat /sys/block/ublkb0/queue/logical_block_size /sys/block/ublkb0/queue/write_cache
echo '=== writing'; fill a 4; echo '=== written'
check a && echo '=== whole'
rm /mnt/a1; sync; fstrim /mnt && echo '=== trimmed'
kill $(cat /run/gabion/attach/vol1/pid | tr -d -c '0-9 ' | cut -d' ' -f1); sleep 1
GABION attach --list | grep -q pid && echo '=== kept'
# The process dies under load. The writes wait, and go on when another process serves the disk.
fill b 4 & filling=$!
sleep 0.5; kill -9 $(pidof gabion); sleep 1
GABION attach --list
GABION attach vol1 && echo '=== again' || told
wait $filling; echo '=== filled'
check b && [ "$(md5sum </mnt/a2)" = "$(cat /run/a2)" ] && echo '=== all'
(cd /mnt; GABION detach vol1); echo "=== refused $?"
GABION detach vol1 && echo '=== detached' || told
[ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkc0 ] && [ ! -e /dev/gabion/vol1 ] && echo '=== gone'
# Cut off before it is recorded: the next attempt takes the orphan over, or removes it.
GABION attach vol1 --via ublk && kill -9 $(pidof gabion); sleep 1
GABION detach vol1 && [ ! -e /dev/ublkc0 ] && echo '=== removed' || told
GABION attach vol2 --via ublk && echo '=== reading'; dd if=/dev/urandom of=/dev/gabion/vol2 bs=4k count=1
GABION attach --list; GABION detach vol2 && echo '=== unused'
# A use that shows in no mount and no process.
GABION attach vol2 --via ublk; mkswap /dev/gabion/vol2; swapon /dev/gabion/vol2
GABION detach vol2; echo "=== swap $?"; swapoff /dev/gabion/vol2
GABION detach vol2 && echo '=== no swap'
# A mounted disk without a process is not detached by mistake.
GABION attach vol2 --via ublk --fs ext4 --yes --at /mnt; kill -9 $(pidof gabion); sleep 1
GABION detach vol2; echo "=== waits $?"
GABION detach vol2 --give-up; echo "=== end $?"
[ ! -e /dev/ublkc0 ] && ! grep -q /mnt /proc/mounts && echo '=== clean'
dmesg | grep -i -E 'error|ublk' | tail -40
"#;

/// The kernel's user-space block driver, in a machine. The process that serves the disk is killed
/// under load, and nothing is lost.
#[test]
fn linux_attaches_by_ublk_and_a_killed_server_is_no_error() {
    const PATIENCE: std::time::Duration = secs(200);
    case(|| {
        let Some((mut guest, folder)) = machine()? else { return Ok(()) };
        if guest.add_module("ublk_drv").is_err() {
            return leave_out("disks by ublk: the newest cloud kernel here has no module ublk_drv");
        }
        let volumes = &["vol1:256MiB", "vol2:16MiB"];
        let cluster =
            Cluster::start(&Options { volumes, device: "file:1GiB", ..Options::default() })?;
        let mdm = cluster.status()?["mdm"][0]["address"].as_str().context("an MDM")?.to_owned();
        let script = UBLK.replace("GABION", text(&folder.join("gabion")));
        let on = guest.boot(&format!("export GABION_MDM={mdm}\n{script}"))?;
        on.wait("attached", PATIENCE)?;
        let link = on.wait("link", PATIENCE)?;
        ensure!(link == "/dev/ublkb0", "{}", on.said());
        for mark in ["whole", "trimmed", "kept", "again", "filled", "all"] {
            ensure!(on.wait(mark, PATIENCE).is_ok(), "no `{mark}`:\n{}", on.said());
        }
        let refused = on.wait("refused", PATIENCE)?;
        ensure!(refused == "6", "{}", on.said());
        for mark in ["detached", "gone", "removed", "reading", "unused"] {
            ensure!(on.wait(mark, PATIENCE).is_ok(), "no `{mark}`:\n{}", on.said());
        }
        ensure!(on.wait("swap", PATIENCE)? == "6", "{}", on.said());
        ensure!(on.wait("no swap", PATIENCE).is_ok(), "{}", on.said());
        ensure!(on.wait("waits", PATIENCE)? == "6", "{}", on.said());
        ensure!(on.wait("end", PATIENCE)? == "0", "{}", on.said());
        ensure!(on.wait("clean", PATIENCE).is_ok(), "something is left:\n{}", on.said());
        let said = on.end(PATIENCE)?;
        ensure!(said.contains("Attached by ublk."), "{said}");
        let before = said.split("=== waits").next().unwrap_or_default();
        ensure!(!before.contains("I/O error"), "{said}");
        Ok(())
    });
}
