//! Linux as a host with paths to two data clients (gateways): open-iscsi with dm-multipath, and
//! NVMe/TCP with the kernel's own multipath. It runs in a machine, with Debian's own programs.
//!
//! Without QEMU, a kernel of Debian, busybox, nvme-cli, open-iscsi and multipath-tools the test
//! says so and passes, unless the environment has `GABION_ALL=1`.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use system::guest::{Guest, Running};
use system::{Cluster, Extra, Options, case, free_port, leave_out, secs};

/// Time limit for anything in the machine, whose processor is emulated.
const PATIENCE: Duration = secs(200);

/// The longest time that one small file may take, in seconds. The machine waits 10 s for an answer,
/// then 5 s for a lost session, and its processor is slow.
const PAUSE: u64 = 45;

const PROGRAMS: &[&str] = &[
    "/sbin/iscsid",
    "/sbin/iscsiadm",
    "/sbin/multipath",
    "/sbin/multipathd",
    "/lib/multipath/libchecktur.so",
    "/lib/multipath/libprioalua.so",
    "/lib/multipath/libpriosysfs.so",
    "/bin/udevadm",
    "/lib/udev/scsi_id",
    "/sbin/dmsetup",
    "/usr/sbin/nvme",
    "/sbin/mkfs.ext4",
    "/sbin/e2fsck",
];

/// What udev needs for SCSI disks and for those of device-mapper, and a library that multipathd
/// loads at its end.
const FILES: &[&str] = &[
    "/lib/udev/rules.d/50-udev-default.rules",
    "/lib/udev/rules.d/55-dm.rules",
    "/lib/udev/rules.d/56-dm-mpath.rules",
    "/lib/udev/rules.d/60-block.rules",
    "/lib/udev/rules.d/60-multipath.rules",
    "/lib/udev/rules.d/60-persistent-storage.rules",
    "/lib/udev/rules.d/60-persistent-storage-dm.rules",
    "/lib/udev/rules.d/95-dm-notify.rules",
    "/lib/multipath/libprioconst.so",
    "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/etc/group",
    "/etc/passwd",
];

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "nvme_tcp",
    "crc32c_generic",
    "ext4",
    "iscsi_tcp",
    "sd_mod",
    "sg",
    "dm_multipath",
    "dm_service_time",
];

/// The secrets of the two sides, as the gateways have them.
const SECRETS: &str = "host = { user = \"db1\", secret = \"secretsecret\" }\n\
                       target = { user = \"gabion\", secret = \"othersecret1\" }\n";

const INITIATOR: &str = "InitiatorName=iqn.2026-11.test:guest\n";

/// The configuration of open-iscsi: both sides prove that they know a secret, also for a discovery.
const ISCSID: &str = "\
node.startup = manual
node.session.timeo.replacement_timeout = 5
node.conn[0].timeo.login_timeout = 5
node.conn[0].timeo.noop_out_interval = 5
node.conn[0].timeo.noop_out_timeout = 5
node.session.auth.authmethod = CHAP
node.session.auth.username = db1
node.session.auth.password = secretsecret
node.session.auth.username_in = gabion
node.session.auth.password_in = othersecret1
discovery.sendtargets.auth.authmethod = CHAP
discovery.sendtargets.auth.username = db1
discovery.sendtargets.auth.password = secretsecret
discovery.sendtargets.auth.username_in = gabion
discovery.sendtargets.auth.password_in = othersecret1
";

/// The configuration of multipath. HANDLER is the kernel's handler of ALUA, if it has one.
const MULTIPATH: &str = r#"
defaults {
    find_multipaths no
    user_friendly_names no
    polling_interval 1
    max_polling_interval 2
}
blacklist {
    devnode "^(nvme|nbd|loop|ram)"
}
devices {
    device {
        vendor "GABION"
        product "VOLUME"
        path_grouping_policy group_by_prio
        prio alua
        hardware_handler "HANDLER"
        path_checker tur
        no_path_retry 30
        failback immediate
        fast_io_fail_tmo 5
    }
}
"#;

/// Functions for the script. Paths have the names of their ports.
const FUNCTIONS: &str = r#"
host=11111111-2222-3333-4444-555555555555
hosts="--hostnqn nqn.2014-08.org.nvmexpress:uuid:$host --hostid $host"
now() { cut -d. -f1 /proc/uptime; }
# keep_writing: writes 20 files of 8 KiB again and again until /run/stop exists. A gateway gets such
# a small write with its request, so it may do it late. /run has what the files contain and contained
# before. /run/count is the number of writes, and /run/pause the longest time that one took.
keep_writing() {
    n=0; rm -f /run/stop; echo 0 >/run/count; echo 0 >/run/pause
    while [ ! -e /run/stop ]; do
        n=$((n + 1)); i=$((n % 20)); begun=$(now)
        [ -e /run/w$i ] && mv /run/w$i /run/old$i
        dd if=/dev/urandom of=/run/w$i bs=8k count=1 2>/dev/null
        dd if=/run/w$i of=/mnt/w$i bs=8k conv=notrunc oflag=direct 2>/run/why ||
            echo "=== failed $n $(cat /run/why)"
        took=$(($(now) - begun)); [ $took -gt $(cat /run/pause) ] && echo $took >/run/pause
        echo $n >/run/count.new; mv /run/count.new /run/count
    done
}
stop_writing() { touch /run/stop; wait $writer; echo "=== pause $1 $(cat /run/pause)"; }
# whole: reads all files from the volume, and compares them with what was written
whole() {
    echo 3 >/proc/sys/vm/drop_caches; bad=0
    for i in $(seq 0 19); do
        cmp -s /mnt/w$i /run/w$i && continue
        bad=1; echo "w$i differs in $(cmp -l /mnt/w$i /run/w$i | wc -l) bytes, and from its former" \
            "content in $(cmp -l /mnt/w$i /run/old$i | wc -l) bytes"
    done
    [ $bad = 0 ] && check a
}
iscsi_writes() {
    for link in /dev/disk/by-path/ip-127.0.0.1:*; do
        port=${link#*:}; disk=$(readlink $link)
        set -- $(cat /sys/block/${disk##*/}/stat); echo ${port%%-*} $5
    done
}
nvme_writes() {
    for at in /sys/class/nvme/nvme*; do
        port=$(cat $at/address); port=${port#*trsvcid=}
        set -- $(cat $at/nvme*c*n*/stat); echo ${port%%,*} $5
    done
}
iscsi_live() { cat /sys/class/iscsi_session/*/state | grep -c LOGGED_IN; }
nvme_live() { cat /sys/class/nvme/nvme*/state | grep -c live; }
iscsi_paths() { dmsetup status --target multipath | grep -o ' [0-9]*:[0-9]* A' | wc -l; }
nvme_paths() { nvme_live; }
# What the kernel knows of the paths. One without a handler of ALUA knows nothing by iSCSI.
iscsi_states() { echo $(cat /sys/block/sd*/device/access_state 2>/dev/null | sort); }
nvme_states() { echo $(cat /sys/block/nvme*c*n*/ana_state | sort); }
# serving KIND: prints the port of the path that most writes take
serving() {
    $1_writes >/run/before; sleep 1
    $1_writes | while read port writes; do
        echo $((writes - $(grep "^$port " /run/before | cut -d' ' -f2))) $port
    done | sort -n | tail -1 | cut -d' ' -f2
}
one_serves() {
    case "$($1_states)" in
        'active/optimized standby' | 'inaccessible optimized' | '') return 0 ;;
    esac
    return 1
}
# lost KIND: waits until one of two gateways serves, and until the host has lost this one
lost() {
    until_true "one_serves $1"; echo "=== states $1 $2 $($1_states)"
    echo "=== serving $1 $2 $(serving $1)"
    until_true "[ \$($1_live) = 1 ]"; from=$(cat /run/count)
    until_true '[ $(cat /run/count) -gt $((from + 25)) ]'
}
found() { until_true "[ \$($1_live) = 2 ] && [ \$($1_paths) = 2 ]" && echo "=== back $1 $2"; }
# The test kills the gateway, and starts it again after `on`.
die() { lost $1 killed; echo "=== on $1 killed"; found $1 killed; }
# The test stops the gateway, and lets it continue after `on`. It may have late writes then, so
# nothing overwrites their traces.
hang() { lost $1 frozen; stop_writing $1; echo "=== on $1 frozen"; found $1 frozen; sleep 2; }
"#;

/// The script. FIRST and SECOND are the ports of the gateways for iSCSI, and FIRST_NVME and
/// SECOND_NVME those for NVMe/TCP. TARGET is the volume's name.
const SCRIPT: &str = r#"
ln -s /bin/udevadm /sbin/udevd; mkdir -p /run/lock/iscsi /run/udev
/sbin/udevd --daemon; udevadm trigger --type=all --action=add; udevadm settle -t 30
iscsid

# By one gateway.
disk=/dev/disk/by-path/ip-127.0.0.1:FIRST-iscsi-TARGET-lun-0
iscsiadm -m discovery -t sendtargets -p 127.0.0.1:FIRST
iscsiadm -m node -T TARGET -p 127.0.0.1:FIRST --login && until_true "[ -e $disk ]"
mkfs.ext4 -q $disk && mount -t ext4 $disk /mnt && fill a 1 && check a && echo '=== one'
umount /mnt; iscsiadm -m node -T TARGET -p 127.0.0.1:FIRST --logout
until_true '! [ -e /sys/block/sda ]' && echo '=== left one'

# By both.
multipathd -v 2 -d -s >/run/multipathd 2>&1 & multipathd=$!
for port in FIRST SECOND; do iscsiadm -m discovery -t sendtargets -p 127.0.0.1:$port; done
iscsiadm -m node -T TARGET --login
until_true '[ $(iscsi_paths) = 2 ] && [ -e /dev/mapper/3* ]' || cat /run/multipathd
disk=$(ls /dev/mapper/3*)
mount -t ext4 $disk /mnt && check a && echo "=== both $(cat /sys/block/sd*/size | uniq | wc -l)"
multipathd show topology
keep_writing & writer=$!
die iscsi; hang iscsi; multipathd show topology
whole && echo '=== whole iscsi'
umount /mnt; e2fsck -f -n $disk && mount -t ext4 $disk /mnt && whole && echo '=== again iscsi'
umount /mnt; multipath -F; iscsiadm -m node --logout; kill $multipathd; wait $multipathd
cat /run/multipathd

# By NVMe/TCP.
for port in FIRST_NVME SECOND_NVME; do
    until_true "nvme connect-all -t tcp -a 127.0.0.1 -s $port $hosts -i 2 -c 1 -l 600 -k 5"
done
until_true '[ $(nvme_live) = 2 ] && [ $(ls -d /sys/block/nvme*c*n* | wc -l) = 2 ]'
disk=$(ls /dev/nvme*n*); nvme list-subsys
mount -t ext4 $disk /mnt && whole && echo '=== both nvme'
keep_writing & writer=$!
die nvme; hang nvme
whole && echo '=== whole nvme'
umount /mnt; e2fsck -f -n $disk && mount -t ext4 $disk /mnt && whole && echo '=== again nvme'
umount /mnt; nvme disconnect-all
echo "=== errors $(dmesg | grep -c -E 'Buffer I/O error on dev (dm|nvme)|EXT4-fs (error|warning)|error, dev dm')"
dmesg | grep -i -E 'error|nvme|alua|iscsi|multipath' | tail -60
"#;

/// What happens to a gateway.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Frozen,
}

impl Fault {
    /// Its name in marks of the script.
    fn name(self) -> &'static str {
        match self {
            Fault::Killed => "killed",
            Fault::Frozen => "frozen",
        }
    }
}

/// Two data clients that serve the same volumes.
struct Gateways {
    cluster: Cluster,
    /// Name, port of iSCSI, port of NVMe/TCP, and process.
    all: Vec<(&'static str, u16, u16, Extra)>,
    secrets: PathBuf,
}

impl Gateways {
    fn start() -> Result<Gateways> {
        let volumes = &["vol1:256MiB"];
        let cluster = Cluster::start(&Options { volumes, ..Options::default() })?;
        let secrets = cluster.folder.join("secrets.toml");
        fs::write(&secrets, SECRETS)?;
        fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600))?;
        let mut gateways = Gateways { cluster, all: Vec::new(), secrets };
        for name in ["gw1", "gw2"] {
            let (iscsi, nvme) = (free_port()?, free_port()?);
            let process = gateways.process(name, iscsi, nvme)?;
            gateways.all.push((name, iscsi, nvme, process));
        }
        Ok(gateways)
    }

    fn process(&self, name: &str, iscsi: u16, nvme: u16) -> Result<Extra> {
        let config = format!(
            "iscsi = [\"127.0.0.1:{iscsi}\"]\niscsi_secrets = {:?}\nnvme = [\"127.0.0.1:{nvme}\"]\n",
            self.secrets
        );
        Ok(Extra::sdc_with(&self.cluster, name, &config)?.0)
    }

    /// Makes a fault at the gateway that serves the machine, waits until the machine goes on, and
    /// repairs it.
    fn disturb(&mut self, fault: Fault, on: &Running, kind: &str) -> Result<()> {
        let mark = format!("{kind} {}", fault.name());
        let port: u16 = on.wait(&format!("serving {mark}"), PATIENCE)?.parse()?;
        let states = on.wait(&format!("states {mark}"), PATIENCE)?;
        let one = ["active/optimized standby", "inaccessible optimized", ""];
        ensure!(one.contains(&&*states), "not one path serves, but {states}: {}", on.said());
        let found = self.all.iter().position(|(_, iscsi, nvme, _)| [*iscsi, *nvme].contains(&port));
        let at = found.with_context(|| format!("no gateway at {port}"))?;
        match fault {
            Fault::Killed => self.all[at].3.kill()?,
            Fault::Frozen => self.all[at].3.freeze()?,
        }
        on.wait(&format!("on {mark}"), PATIENCE)?;
        match fault {
            Fault::Killed => {
                let (name, iscsi, nvme, _) = self.all[at];
                self.all[at].3 = self.process(name, iscsi, nvme)?;
            }
            Fault::Frozen => self.all[at].3.thaw()?,
        }
        on.wait(&format!("back {mark}"), PATIENCE).map(drop)
    }

    /// Returns [`SCRIPT`] for these gateways.
    fn script(&self) -> Result<String> {
        let status = self.cluster.status()?;
        let target = status["volumes"][0]["iscsi_target"].as_str().context("it has a target")?;
        let [(_, first, first_nvme, _), (_, second, second_nvme, _)] = &self.all[..] else {
            anyhow::bail!("two gateways");
        };
        let script = SCRIPT.replace("TARGET", target);
        let script = script.replace("FIRST_NVME", &first_nvme.to_string());
        let script = script.replace("SECOND_NVME", &second_nvme.to_string());
        let script = script.replace("FIRST", &first.to_string());
        Ok(format!("{FUNCTIONS}\n{}", script.replace("SECOND", &second.to_string())))
    }
}

/// Returns a machine with initiators. `None`: a package is missing.
fn machine() -> Result<Option<Guest>> {
    let Some(mut guest) = Guest::new(PROGRAMS, MODULES)? else {
        leave_out(
            "two gateways with Linux: it takes Debian's packages qemu-system-x86, \
             linux-image-amd64, busybox-static, nvme-cli, open-iscsi, multipath-tools and kmod",
        )?;
        return Ok(None);
    };
    let alua = guest.add_module("scsi_dh_alua").is_ok();
    FILES.iter().try_for_each(|file| guest.add(file))?;
    guest.write("/etc/iscsi/iscsid.conf", ISCSID);
    guest.write("/etc/iscsi/initiatorname.iscsi", INITIATOR);
    let handler = if alua { "1 alua" } else { "0" };
    guest.write("/etc/multipath.conf", MULTIPATH.replace("HANDLER", handler));
    Ok(Some(guest))
}

/// A host writes files all the time, and reads them back at the end. With each protocol, the
/// gateway that serves it is killed and started again. Then the one that serves stops, and goes on
/// when the host has written more.
#[test]
fn linux_goes_on_by_another_gateway_when_one_dies_or_hangs() {
    case(|| {
        let Some(guest) = machine()? else { return Ok(()) };
        let mut gateways = Gateways::start()?;
        let on = guest.boot(&gateways.script()?)?;
        on.wait("one", PATIENCE)?;
        on.wait("left one", PATIENCE)?;
        let sizes = on.wait("both", PATIENCE)?;
        ensure!(sizes == "1", "the paths differ in their size: {}", on.said());
        for kind in ["iscsi", "nvme"] {
            for fault in [Fault::Killed, Fault::Frozen] {
                gateways.disturb(fault, &on, kind)?;
            }
            let pause: u64 = on.wait(&format!("pause {kind}"), PATIENCE)?.parse()?;
            ensure!(pause < PAUSE, "a file took {pause} s: {}", on.said());
            for mark in ["whole", "again"] {
                let mark = format!("{mark} {kind}");
                ensure!(on.wait(&mark, PATIENCE).is_ok(), "files differ: {}", on.said());
            }
        }
        let said = on.end(PATIENCE)?;
        ensure!(!said.contains("=== failed"), "a write failed: {said}");
        ensure!(said.contains("=== errors 0"), "the kernel had errors: {said}");
        Ok(())
    });
}
