//! A virtual machine, for tests that need features that the host's kernel may lack: QEMU with
//! Debian's kernel. QEMU emulates the processor, because `/dev/kvm` may exist and still not work.
//! So a boot takes ten seconds.
//!
//! The root file system is in memory: busybox, the programs that the test names with their
//! libraries, and kernel modules. In the machine, 127.0.0.1 is the host. So a server that listens
//! there has the same address on the host and in the machine.

use crate::run::run;
use crate::{Folder, tool, wait};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const BUSYBOX: &str = "/bin/busybox";
/// Prefix and suffix of the kernel's file name, from Debian's package `linux-image-amd64`, or from
/// `linux-image-cloud-amd64`, which has fewer drivers.
const KERNEL: (&str, &str) = ("vmlinuz-", "-amd64");
/// Prefix of script output that the test evaluates.
const MARK: &str = "=== ";
/// Functions for all scripts.
const FUNCTIONS: &str = r#"
# until_true CONDITION: waits up to 60 s
until_true() {
    for n in $(seq 300); do if eval "$1"; then return 0; fi; sleep 0.2; done
    echo "never: $1"; return 1
}
# fill NAME [MIB]: writes four files of 8 MiB, or this size, at once, and remembers their sums
fill() {
    for i in 1 2 3 4; do
        dd if=/dev/urandom bs=64k count=$((${2:-8} * 16)) 2>/dev/null |
            tee /mnt/$1$i | md5sum >/run/$1$i &
        jobs="$jobs $!"
    done
    wait $jobs; jobs=; sync
}
# check NAME: reads the files from the disk, and compares them with their sums
check() {
    echo 3 >/proc/sys/vm/drop_caches
    for i in 1 2 3 4; do [ "$(md5sum </mnt/$1$i)" = "$(cat /run/$1$i)" ] || return 1; done
}
"#;
/// Arguments of the kernel. What guards a processor against speculation, and memory against reads
/// of what was there before, only costs time on an emulated processor. On a busy host, the kernel
/// would find that the emulated timer does not work.
const ARGUMENTS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0 mitigations=off \
                         init_on_alloc=0 no_timer_check";
/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 512;

/// A machine that is not running.
#[derive(Debug)]
pub struct Guest {
    folder: Folder,
    kernel: Kernel,
    /// The files of its root file system, by path.
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Modules in the order in which they are loaded.
    modules: Vec<PathBuf>,
}

impl Guest {
    /// Creates a machine with these programs and these kernel modules. Returns `None` if a package
    /// is not there.
    pub fn new(programs: &[&str], modules: &[&str]) -> Result<Option<Guest>> {
        let Some(kernel) = Kernel::newest() else { return Ok(None) };
        let needed = programs.iter().copied().chain([QEMU, BUSYBOX]);
        if needed.into_iter().any(|program| unpacked(program).is_none()) {
            return Ok(None);
        }
        let mut guest =
            Guest { folder: Folder::new()?, kernel, files: BTreeMap::new(), modules: Vec::new() };
        guest.add(BUSYBOX)?;
        for program in programs {
            guest.add_program(program)?;
        }
        for name in modules {
            guest.add_module(name)?;
        }
        Ok(Some(guest))
    }

    /// Adds a kernel module, and those that it needs. An error: the kernel does not have it.
    pub fn add_module(&mut self, name: &str) -> Result<()> {
        for module in self.kernel.modules(name)? {
            let inside = module.with_extension("").with_extension("ko");
            if !self.modules.contains(&inside) {
                self.files.insert(inside.clone(), plain(&module)?);
                self.modules.push(inside);
            }
        }
        Ok(())
    }

    /// Returns the configuration with which its kernel was built.
    pub fn configuration(&self) -> Result<String> {
        let path = self.kernel.boot_file("config");
        fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))
    }

    /// Adds a program, or a library that a program loads by itself, with all libraries that it is
    /// linked with.
    pub fn add_program(&mut self, path: &str) -> Result<()> {
        let program = unpacked(path).with_context(|| format!("no {path}"))?;
        for library in libraries(&program)? {
            self.files.insert(inside(&library), read(&library)?);
        }
        self.add(path)
    }

    /// Adds a file of the host, or of an unpacked package, under its own path.
    pub fn add(&mut self, path: &str) -> Result<()> {
        let file = unpacked(path).with_context(|| format!("no {path}"))?;
        self.write(path, read(&file)?);
        Ok(())
    }

    /// Adds a file with this content.
    pub fn write(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), content.into());
    }

    /// Boots it. It runs this shell script, which may use the functions above, and powers off at
    /// the end.
    pub fn boot(&self, script: &str) -> Result<Running> {
        self.boot_with(script, &[])
    }

    /// Boots it with a vhost-user-blk disk. QEMU reconnects to the socket when the backend
    /// restarts.
    pub fn boot_with_disk(&self, script: &str, socket: &Path) -> Result<Running> {
        self.boot_with_disk_and(script, socket, &[])
    }

    /// Boots it with a vhost-user-blk disk and a monitor (QMP) at a socket. With `from`, it waits
    /// at this socket for a machine that migrates, and does not boot.
    pub fn boot_movable(
        &self,
        script: &str,
        socket: &Path,
        monitor: &Path,
        from: Option<&Path>,
    ) -> Result<Running> {
        let monitor = format!("unix:{},server=on,wait=off", monitor.display());
        let from = from.map(|from| format!("unix:{}", from.display()));
        let mut more = vec!["-qmp", monitor.as_str()];
        more.extend(from.iter().flat_map(|from| ["-incoming", from]));
        self.boot_with_disk_and(script, socket, &more)
    }

    fn boot_with_disk_and(&self, script: &str, socket: &Path, more: &[&str]) -> Result<Running> {
        let memory = format!("memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on");
        let socket = format!("socket,id=disk,path={},reconnect=1", socket.display());
        let disk = "vhost-user-blk-pci,chardev=disk";
        let all = ["-object", &memory, "-machine", "memory-backend=mem", "-chardev", &socket];
        self.boot_with(script, &[&all[..], &["-device", disk], more].concat())
    }

    fn boot_with(&self, script: &str, more: &[&str]) -> Result<Running> {
        let insmod = |module: &PathBuf| format!("insmod {} || echo no module\n", module.display());
        let modules: String = self.modules.iter().map(insmod).collect();
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox --install -s /usr/bin\n\
             export PATH=/usr/bin:/usr/sbin:/sbin:/bin\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys\n\
             mount -t devtmpfs dev /dev; mount -t tmpfs tmpfs /run\n\
             {modules}\
             ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0\n\
             echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet\n\
             ip route add 127.0.0.1/32 via 10.0.2.2\n\
             {FUNCTIONS}\n\
             {script}\n\
             echo '{MARK}off'; poweroff -f\n"
        );
        let mut files = self.files.clone();
        files.insert("/init".into(), init.into_bytes());
        let root = self.folder.join("root");
        fs::write(&root, archive(&files))?;
        let mut command = Command::new(QEMU);
        command
            // QEMU 7.2 damages a register at cmpxchg16b, and Linux 6.12 stops at once.
            .args(["-accel", "tcg", "-cpu", "max,-cx16", "-nodefaults"])
            .args(["-smp", "2", "-m", &format!("{MEMORY_MIB}M"), "-display", "none"])
            .args(["-serial", "stdio", "-no-reboot", "-nic", "user,model=virtio-net-pci"])
            .arg("-kernel")
            .arg(self.kernel.boot_file("vmlinuz"))
            .arg("-initrd")
            .arg(&root)
            .args(["-append", ARGUMENTS])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().context("QEMU does not start")?;
        let keys = child.stdin.take().context("stdin is piped")?;
        let mut console = child.stdout.take().context("stdout is piped")?;
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let shown = said.clone();
        // This thread ends with the machine.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = console.read(&mut bytes)
                && len > 0
            {
                shown.lock().expect("nobody panics with it").extend(&bytes[..len]);
            }
        });
        Ok(Running { child, keys, said })
    }
}

/// A running machine. Dropping this value ends it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// What is typed at its console.
    keys: ChildStdin,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    /// Returns all output of its console.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().expect("nobody panics with it")).into_owned()
    }

    /// Types a line at its console.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        self.keys.write_all(format!("{line}\n").as_bytes()).context("QEMU has ended")
    }

    /// Waits for a mark and returns the text after it.
    pub fn wait(&self, name: &str, limit: Duration) -> Result<String> {
        let wanted = format!("{MARK}{name}");
        wait(&format!("the machine says `{name}`"), limit, || {
            let said = self.said();
            // The last line may be incomplete.
            let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let found = whole.lines().rev().find_map(|line| line.trim_end().strip_prefix(&wanted));
            match found {
                Some(rest) => Ok(Some(rest.trim().to_owned())),
                None => bail!("it said:\n{said}"),
            }
        })
    }

    /// Waits until it has said a mark this many times.
    pub fn wait_times(&self, name: &str, times: usize, limit: Duration) -> Result<()> {
        wait(&format!("the machine says `{name}`"), limit, || {
            ensure!(self.times(name) >= times, "it said:\n{}", self.said());
            Ok(Some(()))
        })
    }

    /// Returns how often it has said a mark.
    pub fn times(&self, name: &str) -> usize {
        self.said().matches(&format!("{MARK}{name}")).count()
    }

    /// Waits until its script has ended. Returns all output of its console.
    pub fn end(self, limit: Duration) -> Result<String> {
        self.wait("off", limit)?;
        Ok(self.said())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the lines about I/O that the kernel gave up. Read-ahead is no loss: on the death of a
/// connection it ends with an error at once, and who needs the data reads again.
pub fn io_errors(said: &str) -> Vec<&str> {
    const RAHEAD: u64 = 1 << 19;
    let ahead = |line: &str| {
        let flags = line.split_once("flags 0x").and_then(|(_, rest)| rest.split(' ').next());
        flags.is_some_and(|hex| u64::from_str_radix(hex, 16).is_ok_and(|f| f & RAHEAD != 0))
    };
    said.lines().filter(|line| line.contains("I/O error") && !ahead(line)).collect()
}

/// A kernel of Debian, installed or unpacked.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kernel {
    /// The folder that its files are below.
    root: PathBuf,
    release: String,
}

impl Kernel {
    /// Returns the newest kernel: an installed one, or one that was unpacked below the folder in
    /// the variable `GABION_KERNEL`.
    fn newest() -> Option<Kernel> {
        let roots = std::env::var_os("GABION_KERNEL").into_iter().map(PathBuf::from);
        let all = roots.chain(["/".into()]).flat_map(|root: PathBuf| {
            let entries = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
            entries.filter_map(move |entry| {
                let name = entry.file_name();
                let release = name.to_str()?.strip_prefix(KERNEL.0)?;
                let kernel = Kernel { root: root.clone(), release: release.to_owned() };
                release.ends_with(KERNEL.1).then_some(kernel)
            })
        });
        all.max_by_key(|kernel| {
            let numbers = kernel.release.split(|c: char| !c.is_ascii_digit());
            let numbers: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
            (numbers, !kernel.release.contains("-cloud-"))
        })
    }

    fn boot_file(&self, name: &str) -> PathBuf {
        self.root.join("boot").join(format!("{name}-{}", self.release))
    }

    /// Returns the files of a module and of those that it needs, in the order of loading.
    fn modules(&self, name: &str) -> Result<Vec<PathBuf>> {
        let root = self.root.as_os_str();
        let options = [OsStr::new("-d"), root, OsStr::new("-S"), OsStr::new(&self.release)];
        let asked = [OsStr::new("--show-depends"), OsStr::new(name)];
        let listed = tool("modprobe", [&options[..], &asked[..]].concat())?.ok()?;
        let path = |line: &str| line.strip_prefix("insmod ").map(|path| PathBuf::from(path.trim()));
        if !listed.contains("insmod") && !listed.contains("builtin") {
            bail!("no module {name}: {listed}");
        }
        Ok(listed.lines().filter_map(path).collect())
    }
}

/// Returns the content of a module's file, which may be compressed.
fn plain(module: &Path) -> Result<Vec<u8>> {
    if module.extension() != Some(OsStr::new("xz")) {
        return fs::read(module).with_context(|| format!("no {}", module.display()));
    }
    let out = Command::new("xz").arg("-dc").arg(module).output().context("can't run xz")?;
    ensure!(out.status.success(), "can't unpack {}", module.display());
    Ok(out.stdout)
}

/// Returns the folder with Debian's packages that are unpacked, and not installed.
fn packages() -> Option<PathBuf> {
    std::env::var_os("GABION_PACKAGES").map(PathBuf::from)
}

/// Returns where a file of the host or of an unpacked package is. Later releases of Debian have
/// programs of `/sbin` in `/usr/sbin`.
fn unpacked(path: &str) -> Option<PathBuf> {
    let path = path.trim_start_matches('/');
    let roots = packages().into_iter().chain(["/".into()]);
    let mut places = roots.flat_map(|root| [root.join(path), root.join("usr").join(path)]);
    places.find(|file| file.exists())
}

/// Returns the path that a file of the host or of an unpacked package has in the machine.
fn inside(file: &Path) -> PathBuf {
    let below = packages().and_then(|root| file.strip_prefix(root).map(Path::to_owned).ok());
    below.map_or_else(|| file.to_owned(), |below| Path::new("/").join(below))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("no {}", file.display()))
}

/// Returns the libraries that a program is linked with, and its loader.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    if let Some(root) = packages() {
        let machine = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = ["lib", &machine, "usr/lib", &format!("usr/{machine}")].map(|f| root.join(f));
        ldd.env("LD_LIBRARY_PATH", std::env::join_paths(folders)?);
    }
    let linked = run(ldd.arg(program))?.ok()?;
    let path = |line: &str| {
        let word = line.split_whitespace().find(|word| word.starts_with('/'))?;
        Some(PathBuf::from(word))
    };
    let found: Vec<PathBuf> = linked.lines().filter_map(path).collect();
    ensure!(!found.is_empty(), "{} has no libraries: {linked}", program.display());
    Ok(found)
}

/// Returns files as an archive that the kernel unpacks: cpio, format "newc".
fn archive(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<u8> {
    const FOLDER: u32 = 0o040_755;
    const FILE: u32 = 0o100_755;
    let mut bytes = Vec::new();
    let mut number = 0;
    let mut add = |name: &str, mode: u32, content: &[u8]| {
        number += 1;
        let fields =
            [number, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        bytes.extend(b"070701");
        fields.iter().for_each(|field| bytes.extend(format!("{field:08x}").bytes()));
        bytes.extend(name.bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    };
    let mut folders: BTreeSet<&Path> = ["proc", "sys", "dev", "run", "mnt", "usr/bin", "tmp"]
        .iter()
        .flat_map(|name| Path::new(name).ancestors())
        .collect();
    let inside = |path: &'_ Path| -> PathBuf { path.strip_prefix("/").unwrap_or(path).to_owned() };
    let named: Vec<(PathBuf, &Vec<u8>)> =
        files.iter().map(|(path, content)| (inside(path), content)).collect();
    for (path, _) in &named {
        folders.extend(path.ancestors().skip(1));
    }
    for folder in folders.iter().filter(|folder| !folder.as_os_str().is_empty()) {
        add(&folder.to_string_lossy(), FOLDER, &[]);
    }
    for (path, content) in &named {
        add(&path.to_string_lossy(), FILE, content);
    }
    add("TRAILER!!!", 0, &[]);
    bytes
}
