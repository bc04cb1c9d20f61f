//! Volumes over NVMe/TCP, with Linux as the host: in a machine, because few hosts have its module.
//!
//! Without QEMU, Debian's kernel for clouds, busybox and nvme-cli these tests say so and pass,
//! unless the environment has `GABION_ALL=1`.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;
use system::guest::{Guest, io_errors};
use system::{Cluster, MIB, Options, case, free_port, leave_out, secs};

/// Time limit for anything in the machine, whose processor is emulated.
const PATIENCE: Duration = secs(200);

const PROGRAMS: &[&str] = &["/usr/sbin/nvme", "/sbin/mkfs.ext4", "/sbin/e2fsck"];
const MODULES: &[&str] = &["virtio_pci", "virtio_net", "nvme_tcp", "crc32c_generic", "ext4"];

fn guest() -> Result<Option<Guest>> {
    let guest = Guest::new(PROGRAMS, MODULES)?;
    if guest.is_none() {
        leave_out(
            "NVMe/TCP with Linux: it takes Debian's packages qemu-system-x86, \
             linux-image-cloud-amd64, busybox-static, nvme-cli and kmod",
        )?;
    }
    Ok(guest)
}

/// Starts a cluster that serves NVMe/TCP. Returns its port, too.
fn served(volumes: &'static [&'static str]) -> Result<(Cluster, u16)> {
    let port = free_port()?;
    let at: &'static str = String::leak(format!("127.0.0.1:{port}"));
    // Options live as long as the test.
    let more: &'static [&'static str] = Box::leak(vec!["--nvme", at].into_boxed_slice());
    let options = Options { volumes, device: "file:1GiB", more, ..Options::default() };
    Ok((Cluster::start(&options)?, port))
}

/// Functions for the scripts. `hosts` are options by which the machine names itself.
const FUNCTIONS: &str = r#"
hosts='--hostnqn nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
       --hostid 11111111-2222-3333-4444-555555555555'
# block UUID: prints the block device of a volume
block() {
    for at in /sys/block/nvme[0-9]n*; do
        if [ "$(cat $at/uuid 2>/dev/null)" = "$1" ]; then echo /dev/${at##*/}; fi
    done
}
blocks() { ls /sys/block | grep -c '^nvme[0-9]*n'; }
"#;

/// Returns a script that connects to the cluster, and finds its first volume as `$dev`.
fn connect(port: u16, uuid: &str, options: &str) -> String {
    let at = format!("-t tcp -a 127.0.0.1 -s {port} $hosts");
    format!(
        "{FUNCTIONS}\
         until_true 'nvme discover {at} >/run/log 2>&1'; cat /run/log\n\
         nvme connect-all {at} {options} && echo '=== connected'\n\
         until_true '[ -n \"$(block {uuid})\" ]' || dmesg | tail -30\n\
         dev=$(block {uuid})\n\
         echo \"=== device $dev $(blockdev --getsize64 $dev)\"\n"
    )
}

fn uuid(cluster: &Cluster, volume: &str) -> Result<String> {
    let status = cluster.status()?;
    let volumes = status["volumes"].as_array().context("volumes are a list")?;
    let volume = volumes.iter().find(|v| v["name"] == volume).context("the volume")?;
    Ok(volume["nvme_uuid"].as_str().context("it has a UUID")?.to_owned())
}

/// Data survives the loss of a server and of the SDC under load. What changes about volumes is
/// noticed.
#[test]
fn linux_keeps_a_file_system_on_a_volume_through_failures_and_changes() {
    case(|| {
        let Some(guest) = guest()? else { return Ok(()) };
        let (cluster, port) = served(&["vol1:256MiB"])?;
        let uuid = uuid(&cluster, "vol1")?;
        let grown = 512 * MIB;
        let options = "-i 2 -c 1 -g -G";
        let script = connect(port, &uuid, options)
            + &format!(
                "nvme list-subsys; nvme id-ctrl $dev | head -20\n\
                 mkfs.ext4 -q $dev && mount -t ext4 $dev /mnt && echo '=== mounted'\n\
                 echo '=== writing'; fill a; echo '=== written'\n\
                 umount /mnt; mount -t ext4 $dev /mnt; check a && echo '=== whole'\n\
                 until_true '[ $(blockdev --getsize64 $dev) = {grown} ]' && echo '=== grown'\n\
                 until_true '[ $(blocks) = 2 ]' && echo '=== second'\n\
                 until_true '[ $(blocks) = 1 ]' && echo '=== gone'\n\
                 echo '=== again'; fill b; umount /mnt; e2fsck -f -n $dev && echo '=== clean'\n\
                 mount -t ext4 $dev /mnt; check a && check b && echo '=== all'\n\
                 rm /mnt/a*; sync; fstrim /mnt && echo '=== trimmed'\n\
                 umount /mnt; nvme disconnect-all; [ $(blocks) = 0 ] && echo '=== left'\n\
                 dmesg | grep -i -E 'error|nvme' | tail -40\n"
            );
        let on = guest.boot(&script)?;
        let device = on.wait("device", PATIENCE)?;
        ensure!(device.ends_with(&(256 * MIB).to_string()), "{device}\n{}", on.said());
        ensure!(on.said().contains("trsvcid"), "no discovery log:\n{}", on.said());
        on.wait("writing", PATIENCE)?;
        thread::sleep(secs(1));
        cluster.kill("sds1")?;
        thread::sleep(secs(2));
        cluster.start_sds(1)?;
        on.wait("written", PATIENCE)?;
        ensure!(on.wait("whole", PATIENCE).is_ok(), "files differ:\n{}", on.said());
        cluster.wait_state("healthy", secs(60))?;
        cluster.say("volume resize vol1 512MiB")?.ok()?;
        on.wait("grown", PATIENCE)?;
        cluster.say("volume create more 16MiB")?.ok()?;
        on.wait("second", PATIENCE)?;
        cluster.say("volume unmap more --all")?.ok()?;
        on.wait("gone", PATIENCE)?;
        on.wait("again", PATIENCE)?;
        thread::sleep(secs(1));
        cluster.kill("sdc")?;
        cluster.say("sdc start")?.ok()?;
        for mark in ["clean", "all", "trimmed", "left"] {
            on.wait(mark, PATIENCE)?;
        }
        let said = on.end(PATIENCE)?;
        ensure!(io_errors(&said).is_empty(), "{said}");
        Ok(())
    });
}

/// Keys by `nvme gen-dhchap-key`: of the host, of the SDC, and one of nobody.
pub(crate) const KEYS: [&str; 3] = [
    "DHHC-1:01:MzmoFIg+WXbTzgzTWd5JTTdqrlU+fFCQnX5uZSS28lHiDF1A:",
    "DHHC-1:02:HrUvXOr6RgZo/9fciIKr0ZJkCyjZaAanLPOPxTExcFUWu22dyyDGWxP4Sf8Atlok+wmgnQ==:",
    "DHHC-1:00:dW9p3GAPwpTwM9ZmqrWq0WhM5VoOcL0eeTUfglxerTyUWKfg:",
];

/// Name of the machine, as the SDC knows it.
pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// Lets the SDC ask the host for its key.
pub(crate) fn ask_for_keys(cluster: &Cluster) -> Result<()> {
    let secrets = cluster.folder.join("secrets.toml");
    let [host, own, _] = KEYS;
    fs::write(&secrets, format!("target = \"{own}\"\n[hosts]\n\"{HOST}\" = \"{host}\"\n"))?;
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600))?;
    let config = cluster.file("config/sdc.toml");
    let text = fs::read_to_string(&config)?;
    fs::write(&config, format!("{text}nvme_secrets = {secrets:?}\n"))?;
    cluster.kill("sdc")?;
    cluster.say("sdc start")?.ok()?;
    Ok(())
}

/// Returns true if the machine's kernel can authenticate. Debian 12's can't, so there only the
/// refusal is checked.
pub(crate) fn proves_keys(guest: &Guest) -> Result<bool> {
    let built = guest.configuration()?;
    // The option had another name before Linux 6.7.
    let name =
        ["CONFIG_NVME_HOST_AUTH", "CONFIG_NVME_AUTH"].into_iter().find(|n| built.contains(n));
    Ok(name.is_some_and(|name| built.contains(&format!("{name}=y"))))
}

/// Returns a script that connects while the SDC begins to ask for keys: without a key, with the
/// right ones, and with wrong ones.
fn with_keys(port: u16, subsystem: &str, uuid: &str) -> String {
    let [host, own, wrong] = KEYS;
    format!(
        "dmesg -c >/dev/null; echo '=== left'\n\
         try() {{\n\
             nvme disconnect-all; until_true '[ $(blocks) = 0 ]'\n\
             nvme connect -t tcp -a 127.0.0.1 -s {port} -n {subsystem} $hosts $* >/run/log 2>&1\n\
         }}\n\
         works() {{\n\
             until_true '[ -n \"$(block {uuid})\" ]' && dev=$(block {uuid}) &&\n\
             dd if=/run/1 of=$dev bs=512 conv=fsync 2>/dev/null &&\n\
             dd if=$dev bs=512 count=1 2>/dev/null | cmp - /run/1\n\
         }}\n\
         until_true '! try && dmesg | grep -i authentication' && echo '=== needed'\n\
         if try -i 2 -S {host}; then\n\
             works && echo '=== proven'\n\
             try -i 2 -S {host} -C {own} && works && echo '=== mutual'\n\
             ! try -S {wrong} && ! try -S {host} -C {wrong} && echo '=== wrong'\n\
         fi\n\
         nvme disconnect-all; dmesg | tail -40\n"
    )
}

/// Two controllers of one machine, which have different host identifiers, are two hosts. nvme-cli
/// would refuse the second one ("already connected"), so the kernel gets its options directly.
#[test]
fn hosts_of_linux_shut_each_other_out() {
    case(|| {
        let Some(guest) = guest()? else { return Ok(()) };
        let (cluster, port) = served(&["vol1:64MiB"])?;
        let status = cluster.status()?;
        let volume = &status["volumes"][0];
        let subsystem = volume["nvme_subsystem"].as_str().context("it has a subsystem")?;
        let id = volume["id"].as_u64().context("it has an id")?;
        let script = format!(
            "{FUNCTIONS}\
             at=transport=tcp,traddr=127.0.0.1,trsvcid={port},nqn={subsystem},nr_io_queues=1\n\
             for d in 1 2; do\n\
               host=$d$d$d$d$d$d$d$d-2222-3333-4444-555555555555\n\
               host=hostnqn=nqn.2014-08.org.nvmexpress:uuid:$host,hostid=$host\n\
               echo \"$at,$host\" >/dev/nvme-fabrics\n\
             done\n\
             paths() {{ ls -d /sys/class/nvme/nvme*/nvme*c*n* | wc -l; }}\n\
             until_true '[ $(paths) = 2 ]' || dmesg | tail -30\n\
             a=/dev/nvme0; b=/dev/nvme1\n\
             on() {{ command=$1; shift; device=$1; shift; nvme $command $device -n {id} $*; }}\n\
             write() {{ on io-passthru $1 -o 1 -l 512 -w -i /run/$2; }}\n\
             is() {{ on io-passthru $1 -o 5 -l 512 -w -i /run/$2; }}\n\
             conflicts() {{ \"$@\" 2>&1 | grep -i 'reservation conflict'; }}\n\
             report() {{ on resv-report $1 -e; }}\n\
             for i in 1 2; do dd if=/dev/urandom bs=512 count=1 of=/run/$i 2>/dev/null; done\n\
             write $b 1 && is $a 1 && ! is $a 2 && echo '=== open'\n\
             on resv-register $a --nrkey=10 && on resv-register $b --nrkey=11\n\
             on resv-acquire $a --crkey=10 --rtype=1 --racqa=0 && echo '=== reserved'\n\
             report $b | grep 'rtype *: 1' && report $b | grep 'regctl *: 2' && echo '=== told'\n\
             conflicts write $b 2 && is $b 1 && write $a 2 && is $b 2 && echo '=== shut'\n\
             conflicts on resv-acquire $b --crkey=11 --rtype=1 --racqa=0 && echo '=== refused'\n\
             on resv-acquire $b --crkey=11 --prkey=10 --rtype=2 --racqa=1 && echo '=== preempted'\n\
             nvme resv-notif-log $a | tee /run/log; on get-feature $a -f 0x82\n\
             grep 'Page Type.*: 1' /run/log && echo '=== noticed'\n\
             conflicts write $a 1 && conflicts is $a 2 && write $b 1 && echo '=== turned'\n\
             on resv-release $b --crkey=11 --rrela=1 && write $a 2 && is $b 2 && echo '=== free'\n\
             report $a; nvme disconnect-all\n{}",
            with_keys(port, subsystem, &uuid(&cluster, "vol1")?)
        );
        let on = guest.boot(&script)?;
        for mark in [
            "open",
            "reserved",
            "told",
            "shut",
            "refused",
            "preempted",
            "noticed",
            "turned",
            "free",
        ] {
            let said = on.wait(mark, PATIENCE);
            ensure!(said.is_ok(), "no `{mark}`: it said\n{}", on.said());
        }
        on.wait("left", PATIENCE)?;
        ask_for_keys(&cluster)?;
        let more: &[&str] = if proves_keys(&guest)? { &["proven", "mutual", "wrong"] } else { &[] };
        for mark in ["needed"].iter().chain(more) {
            let said = on.wait(mark, PATIENCE);
            ensure!(said.is_ok(), "no `{mark}`: it said\n{}", on.said());
        }
        on.end(PATIENCE)?;
        Ok(())
    });
}

#[test]
fn linux_accepts_the_nvme_commands_that_up_prints() {
    case(|| {
        let (cluster, port) = served(&["vol1:64MiB"])?;
        let printed = &cluster.printed;
        let line = format!("nvme connect-all -t tcp -a 127.0.0.1 -s {port}");
        ensure!(printed.lines().any(|l| l.trim() == line), "no `{line}` in {printed}");
        let status = cluster.say("status")?.ok()?;
        ensure!(status.contains(&format!("nvme-tcp://127.0.0.1:{port}")), "{status}");
        let json = cluster.status()?;
        let portal = &json["sdc"][0]["nvme_portals"][0];
        ensure!(*portal == format!("nvme-tcp://127.0.0.1:{port}"), "{json:#}");
        // A peer that speaks another protocol is cut off, and no other peer notices.
        let mut stranger = TcpStream::connect(("127.0.0.1", port))?;
        stranger.set_read_timeout(Some(secs(10)))?;
        stranger.write_all(&[0; 128])?;
        let mut told = Vec::new();
        stranger.read_to_end(&mut told)?;
        ensure!(told.first() == Some(&3), "no reason was told: {told:?}");
        cluster.fill("vol1", &[7; 1 << 20])?;
        Ok(())
    });
}
