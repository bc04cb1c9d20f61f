//! The disks in `docs/operate/virtual-machines.md`, as libvirt makes them: a virtual machine boots
//! from each of them.
//!
//! libvirt's driver for QEMU runs within `virt-qemu-run`, so no daemon is involved. That program
//! can't use secrets (libvirt 9.0: "No current identity to elevate"), so CHAP is not tried. Without
//! it, or without QEMU, the test says so and passes, unless the environment has `GABION_ALL=1`.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use system::vhost::Backend;
use system::{Cluster, Options, case, free_port, leave_out, secs, wait};

const PROGRAM: &str = "/usr/bin/virt-qemu-run";
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// The page that is tried.
const PAGE: &str = include_str!("../../../../docs/operate/virtual-machines.md");
/// What the machine says when it has booted.
const SAID: &str = "booted";

/// Returns the block of XML on the page that contains this.
fn block(part: &str) -> Result<String> {
    let blocks = PAGE.split("```xml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let mut found = blocks.map(|(block, _)| block).filter(|block| block.contains(part));
    Ok(found.next().with_context(|| format!("no block with {part}"))?.to_owned())
}

/// Returns a boot sector that writes to the first serial port.
fn boot_sector() -> Vec<u8> {
    // mov dx, 0x3f8; for each character mov al, character and out dx, al; then hlt and again.
    let mut code = vec![0xba, 0xf8, 0x03];
    code.extend(SAID.bytes().flat_map(|character| [0xb0, character, 0xee]));
    code.extend([0xf4, 0xeb, 0xfd]);
    code.resize(510, 0);
    code.extend([0x55, 0xaa]);
    code
}

/// A machine that libvirt has started. Dropping this value ends it.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It ends QEMU then.
        let _ = system::cluster::signal(self.0.id(), rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Boots a machine with a disk.
fn boots(root: &Path, name: &str, disk: &str) -> Result<()> {
    let file = |end: &str| root.join(format!("{name}.{end}"));
    let (serial, xml, log) = (file("serial"), file("xml"), file("log"));
    let domain = format!(
        "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>\n{}\
         <vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os>\n\
         <devices><emulator>{QEMU}</emulator>\n{disk}\
         <serial type='file'><source path='{}'/></serial></devices></domain>\n",
        block("<memoryBacking>")?,
        serial.display()
    );
    fs::write(&xml, domain)?;
    let to = fs::File::create(&log)?;
    let mut command = Command::new(PROGRAM);
    command.arg(format!("--root={}", root.display())).arg(&xml);
    let command = command.stdin(Stdio::null()).stdout(to.try_clone()?).stderr(to);
    let mut machine = Machine(command.spawn()?);
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
    wait(&format!("it boots from {name}"), secs(60), || {
        let ended = machine.0.try_wait()?;
        ensure!(ended.is_none(), "libvirt refuses it:\n{}", read(&log));
        Ok(read(&serial).contains(SAID).then_some(()))
    })
}

#[test]
fn machines_boot_from_the_disks_that_the_documentation_shows() {
    case(|| {
        if !Path::new(PROGRAM).exists() || !Path::new(QEMU).exists() {
            return leave_out(
                "disks of libvirt: it takes Debian's packages libvirt-daemon-driver-qemu, \
                 qemu-system-x86 and qemu-block-extra",
            );
        }
        let [iscsi, nbd] = [free_port()?, free_port()?].map(|port| port.to_string());
        let [at_iscsi, at_nbd] = [&iscsi, &nbd].map(|port| format!("127.0.0.1:{port}"));
        let more: [&str; 4] =
            ["--iscsi", &at_iscsi, "--nbd-tcp", &at_nbd].map(|s| &*s.to_owned().leak());
        let cluster = Cluster::start(&Options {
            volumes: &["vol1:16MiB"],
            more: more.to_vec().leak(),
            ..Options::default()
        })?;
        cluster.fill("vol1", &boot_sector())?;
        let status = cluster.status()?;
        let uri = status["volumes"][0]["iscsi_uris"][0].as_str().context("it has a URI")?;
        let iqn = uri.rsplit('/').nth(1).context("the URI has a name")?.to_owned();
        let root = cluster.folder.join("libvirt");
        fs::create_dir_all(root.join("etc"))?;
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let settings = format!(
            "stdio_handler = \"file\"\nremember_owner = 0\nuser = \"+{}\"\ngroup = \"+{}\"\n",
            user.as_raw(),
            group.as_raw()
        );
        fs::write(root.join("etc/qemu.conf"), settings)?;

        let backend = Backend::start(&cluster, "vol1", &[])?;
        let socket = backend.socket.to_str().context("a path in UTF-8")?;
        let local = |xml: &str| xml.replace("192.168.1.12", "127.0.0.1");
        let vhost = block("type='vhostuser'")?.replace("/run/gabion/vm/vol1.sock", socket);
        ensure!(vhost.contains(socket), "another path on the page: {vhost}");
        boots(&root, "vhost-user", &vhost)?;
        ensure!(backend.said().contains("a virtual machine has connected"), "{}", backend.said());
        let over_iscsi = local(&block("protocol='iscsi'")?).replace("IQN", &iqn);
        boots(&root, "iscsi", &over_iscsi.replace("3260", &iscsi))?;
        boots(&root, "nbd", &local(&block("protocol='nbd'")?).replace("10809", &nbd))
    });
}
