//! `gabion deploy`: creates a cluster on several hosts.
//!
//! It checks all hosts of a topology, changes nothing unless every host passes, installs and starts
//! the roles, and waits until the cluster serves. The same steps work on real hosts over SSH, and
//! with `--local` in network namespaces of this machine.

mod ask;
mod check;
mod compare;
mod host;
pub mod local;
mod objects;
mod roles;
mod secrets;
pub mod topology;

use crate::lines;
use crate::mdm_cluster::{self, Member};
use crate::table::{right, table};
use crate::target::Target;
use admin::Admin;
use admin::exit::Exit;
use admin::report::{Report, UpDown};
use anyhow::{Context, Result, bail};
use check::Findings;
use clap::Args;
use daemon::size::Size;
use host::{Remote, Way};
use local::Local;
use secrets::Secrets;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use topology::{EXAMPLE, Host, Topology};
use wire::control::{Ask, CreateVolume, MdmStatus};

/// Time that the cluster gets until all its parts are up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `gabion deploy`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  gabion deploy --example > cluster.toml     a topology, every line explained
  gabion deploy cluster.toml --check         look at the hosts, change nothing
  gabion deploy cluster.toml                 install, start, wait until it serves
  gabion deploy                              the same, by question and answer
  gabion deploy cluster.toml --local --dir try    here, each host a network namespace (root)
  gabion deploy --down --dir try                  ends that one; its data stays in the directory

The hosts need only sshd, a shell and root's rights. It asks all of them first; if anything is \
wrong with one of them, nothing is changed. GABION_SSH names another program than `ssh`. A table \
works as a topology, too: name,address,mdm,domain,fault_set,pool,sdc,devices in a file NAME.csv.")]
pub struct DeployArgs {
    /// The hosts and their roles: TOML, or CSV
    topology: Option<PathBuf>,
    /// Use network namespaces of this machine as hosts, with their files in --dir
    #[arg(long)]
    local: bool,
    /// Only check the hosts
    #[arg(long)]
    check: bool,
    /// End the cluster of --local that is in --dir
    #[arg(long, conflicts_with_all = ["topology", "check", "example"])]
    down: bool,
    /// Print an example topology
    #[arg(long)]
    example: bool,
}

/// Runs `gabion deploy`.
pub fn run(target: &Target, args: &DeployArgs) -> Result<Exit> {
    if args.example {
        print!("{EXAMPLE}");
        return Ok(Exit::Ok);
    }
    if let Some(mdm) = target.mdm.first() {
        bail!("`deploy` makes a new cluster: leave out --mdm {mdm}");
    }
    if args.down {
        let ended = down(&target.dir)?;
        println!("The cluster has ended; its data is in {}.", target.dir.display());
        return Ok(ended);
    }
    let topology = match &args.topology {
        Some(file) => Topology::read(file)?,
        None => ask::topology(&mut std::io::stdin().lock(), &mut std::io::stdout(), args.local)?,
    };
    topology.check(args.local)?;
    if args.local {
        deploy_here(&target.dir, topology, args.check)
    } else {
        deploy(topology, args.check)
    }
}

fn deploy(topology: Topology, only_check: bool) -> Result<Exit> {
    let secrets = Secrets::read(&topology)?;
    let way = Way::Ssh { user: topology.user.clone() };
    let (topology, way, secrets) = (&topology, &way, &secrets);
    Deployment { topology, way, secrets, says: true }.run(only_check)
}

fn deploy_here(folder: &Path, topology: Topology, only_check: bool) -> Result<Exit> {
    match here(folder, topology, only_check, true)? {
        Some(_) => Ok(Exit::Ok),
        None => down(folder),
    }
}

/// Creates a cluster in namespaces of this machine, with its files in a folder. Returns `None` if
/// the hosts were only to be checked. With `says` it prints each step, else only what is wrong.
pub fn here(
    folder: &Path,
    topology: Topology,
    only_check: bool,
    says: bool,
) -> Result<Option<Local>> {
    if Local::open(folder)?.is_some() {
        bail!(
            "{} has a cluster that was deployed: `gabion deploy --down --dir {}` ends it",
            folder.display(),
            folder.display()
        );
    }
    let secrets = Secrets::read(&topology)?;
    let lock = local::lock()?;
    let local = Local::new(folder, topology)?;
    if let Err(why) = local.make(folder) {
        let _ = local.remove(folder);
        return Err(why);
    }
    drop(lock);
    let way = Way::Namespace { prefix: local.prefix() };
    let (topology, way, secrets) = (&local.topology, &way, &secrets);
    match (Deployment { topology, way, secrets, says }).run(only_check) {
        Ok(_) => Ok((!only_check).then_some(local)),
        Err(why) => {
            local.remove(folder)?;
            Err(why)
        }
    }
}

/// Starts a role again on a host in a namespace.
pub fn start_again(local: &Local, host: &Host, role: &str) -> Result<()> {
    let way = Way::Namespace { prefix: local.prefix() };
    let remote = Remote { host, way: &way };
    let roles = roles::of(host, &local.topology, false)?;
    let role = roles.iter().find(|r| r.name == role).context("the host has no such role")?;
    role.start(&remote, &Findings::default())
}

fn down(folder: &Path) -> Result<Exit> {
    match Local::open(folder)? {
        Some(local) => local.remove(folder)?,
        None => bail!("no cluster was deployed with --local in {}", folder.display()),
    }
    Ok(Exit::Ok)
}

struct Deployment<'a> {
    topology: &'a Topology,
    way: &'a Way,
    /// The files that are copied to the hosts.
    secrets: &'a Secrets,
    /// Prints each step.
    says: bool,
}

impl Deployment<'_> {
    fn run(&self, only_check: bool) -> Result<Exit> {
        let mut findings = self.on_each(|remote| Ok(check::check(remote)))?;
        compare::compare(self.topology, &mut findings);
        let wrong: usize = findings.iter().map(|f| f.wrong.len()).sum();
        if self.says || wrong > 0 {
            println!("{}", self.table(&findings));
        }
        if wrong > 0 {
            bail!("nothing was changed: first fix what the table shows");
        }
        if only_check {
            return Ok(Exit::Ok);
        }
        self.step("Installing", || self.on_each(roles::install).map(drop))?;
        self.copy_secrets()?;
        let founding = !findings.iter().any(|f| f.has_log);
        let start =
            |role| self.step(&format!("Starting {role}"), || self.start(role, &findings, founding));
        start("mdm")?;
        if self.topology.mdms().count() > 1 {
            self.step("Gathering the MDMs", || self.gather())?;
        }
        self.founded()?;
        let orders = self.orders()?;
        if !orders.is_empty() {
            self.step("Making pools and fault sets", || self.order(orders))?;
        }
        start("sds")?;
        start("sdc")?;
        let report = self.step("Waiting until all are there", || self.wait())?;
        let mut admin = self.admin()?;
        for volume in &self.topology.volumes {
            // A cluster that existed before, in these files, has its volumes.
            if !report.volumes.iter().any(|v| v.name == volume.spec.name) {
                let named = self.topology.names_pools();
                let pool = self.topology.pool_of_volume(volume).filter(|_| named);
                admin.make_volume(CreateVolume {
                    name: volume.spec.name.clone(),
                    size: volume.spec.size.0,
                    pool: pool.unwrap_or_default(),
                    ..CreateVolume::default()
                })?;
            }
        }
        if self.says {
            self.how_to_use(&report);
        }
        Ok(Exit::Ok)
    }

    /// Runs `f` on all hosts in parallel. Returns the results in the order of the hosts.
    fn on_each<T: Send>(&self, f: impl Fn(&Remote<'_>) -> Result<T> + Sync) -> Result<Vec<T>> {
        thread::scope(|scope| {
            let f = &f;
            let start = |host| scope.spawn(move || f(&Remote { host, way: self.way }));
            let running: Vec<_> = self.topology.hosts.iter().map(start).collect();
            let end =
                |r: thread::ScopedJoinHandle<'_, Result<T>>| r.join().expect("it doesn't panic");
            running.into_iter().map(end).collect()
        })
    }

    fn step<T>(&self, what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        let done = f().with_context(|| format!("{what} failed"))?;
        if self.says {
            println!("{what:<30} {:>6.1} s", begin.elapsed().as_secs_f64());
        }
        Ok(done)
    }

    /// Copies files with secrets to the hosts, and says which ones are new or have changed.
    fn copy_secrets(&self) -> Result<()> {
        if self.secrets.is_empty() {
            return Ok(());
        }
        let copy = || self.on_each(|remote| self.secrets.copy(remote));
        let copied = self.step("Copying secrets", copy)?;
        if self.says {
            copied.iter().flatten().for_each(|line| println!("  {line}"));
        }
        Ok(())
    }

    fn start(&self, role: &str, findings: &[Findings], founding: bool) -> Result<()> {
        let place = |host: &Host| self.topology.hosts.iter().position(|h| h.name == host.name);
        self.on_each(|remote| {
            let findings = &findings[place(remote.host).context("it is one of them")?];
            let mine = roles::of(remote.host, self.topology, founding)?;
            mine.iter().filter(|r| r.name == role).try_for_each(|r| r.start(remote, findings))
        })
        .map(drop)
    }

    fn admin(&self) -> Result<Admin> {
        Admin::find(&self.topology.mdms_at())
    }

    /// Forms one cluster from the MDMs.
    fn gather(&self) -> Result<()> {
        let founder = self.topology.founder()?;
        let rest = self.topology.mdms().filter(|h| h.name != founder.name);
        let member = |host: &Host| Member {
            name: host.name.clone(),
            address: host.mdm_at(),
            tie_breaker: host.is_tie_breaker(),
        };
        let members: Vec<Member> = std::iter::once(founder).chain(rest).map(member).collect();
        self.begun()?;
        self.refuse_two()?;
        if mdm_cluster::take_in(|| self.admin(), &members)? {
            self.until(|| {
                Ok(self.missing_mdm(&mut self.admin()?)?.map_or(Ok(()), |h| Err((h, "mdm"))))
            })?;
        }
        Ok(())
    }

    /// Waits until an MDM leads: then the cluster has begun.
    fn begun(&self) -> Result<()> {
        let founder = self.topology.founder()?;
        self.until(|| match self.admin() {
            Ok(_) => Ok(Ok(())),
            Err(_) => Ok(Err((founder, "mdm"))),
        })
    }

    /// Writes `join = true` into the founder's configuration once the cluster has begun. From then
    /// on no MDM would begin another cluster, even if it lost its log.
    fn founded(&self) -> Result<()> {
        self.begun()?;
        let founder = self.topology.founder()?;
        let remote = Remote { host: founder, way: self.way };
        let roles = roles::of(founder, self.topology, false)?;
        let mdm = roles.iter().find(|r| r.name == "mdm").context("it has an MDM")?;
        mdm.configure(&remote).map(drop)
    }

    /// Returns the orders that create the domains, fault sets and pools that the servers name.
    fn orders(&self) -> Result<Vec<Ask>> {
        self.until(|| {
            let mut admin = self.admin()?;
            Ok(Ok(objects::orders(self.topology, &admin.status()?.objects)))
        })
    }

    fn order(&self, orders: Vec<Ask>) -> Result<()> {
        let mut admin = self.admin()?;
        orders.into_iter().try_for_each(|order| admin.order(order).map(drop))
    }

    /// Refuses MDMs that lead different clusters, which can't be merged.
    fn refuse_two(&self) -> Result<()> {
        let mut first = None;
        for host in self.topology.mdms() {
            let Ok(mut admin) = Admin::connect(host.mdm_at()) else { continue };
            let cluster = admin.status()?.cluster;
            let (name, known) = first.get_or_insert((&host.name, cluster));
            if *known != cluster {
                bail!(
                    "the MDMs of {name} and {} belong to different clusters ({known:016x} and \
                     {cluster:016x}): stop one of them and remove its log, {}",
                    host.name,
                    host.path("var/lib/gabion/mdm.log").display()
                );
            }
        }
        Ok(())
    }

    /// Returns a host whose MDM does not vote yet, or is not heard.
    fn missing_mdm(&self, admin: &mut Admin) -> Result<Option<&Host>> {
        let mdms = admin.status()?.mdms;
        let works = |host: &&Host| {
            let own = |m: &&MdmStatus| m.info.as_ref().is_some_and(|i| i.name == host.name);
            mdms.iter().find(own).is_some_and(|m| m.voter && m.heard)
        };
        Ok(self.topology.mdms().find(|host| !works(host)))
    }

    /// Waits until every device and client is up.
    fn wait(&self) -> Result<Report> {
        self.until(|| {
            let mut admin = self.admin()?;
            let (info, mdm) = (admin.status()?, admin.mdm());
            let report = Report::new(&info, mdm);
            Ok(self.missing(&report).map_or(Ok(report), Err))
        })
    }

    /// Waits until `look` succeeds. Until then it returns the host and the role that are missing;
    /// an error counts as a missing MDM.
    fn until<'h, T>(
        &'h self,
        look: impl Fn() -> Result<Result<T, (&'h Host, &'static str)>>,
    ) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (host, role) = match look() {
                Ok(Ok(there)) => return Ok(there),
                Ok(Err(missing)) => missing,
                Err(_) => (self.topology.founder()?, "mdm"),
            };
            if Instant::now() > deadline {
                let said = roles::last_words(&Remote { host, way: self.way }, role);
                bail!(
                    "after {} s the {role} of {} is not there. It said: {said}",
                    PATIENCE.as_secs(),
                    host.name
                );
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns the first role that is not up, with its host.
    fn missing(&self, report: &Report) -> Option<(&Host, &'static str)> {
        let devices_up = |host: &Host| {
            let devices = report.sds.iter().find(|s| s.name == host.name).map(|s| &s.devices);
            devices.map_or(0, |d| d.iter().filter(|d| d.state == UpDown::Up).count())
        };
        let client_up =
            |name: &str| report.sdc.iter().any(|s| s.name == name && s.state == UpDown::Up);
        let server = self.topology.servers().find(|h| devices_up(h) < h.devices.len());
        let client = || self.topology.hosts.iter().find(|h| h.sdc.is_some() && !client_up(&h.name));
        server.map(|h| (h, "sds")).or_else(|| client().map(|h| (h, "sdc")))
    }

    fn table(&self, findings: &[Findings]) -> String {
        let mut t = table(&["host", "address", "roles", "kernel", "cores", "memory", "wrong"]);
        right(&mut t, &[4, 5]);
        for (host, found) in self.topology.hosts.iter().zip(findings) {
            let devices = format!("sds ({})", host.devices.len());
            let roles = [
                host.mdm.map(|_| if host.is_tie_breaker() { "tie-breaker" } else { "mdm" }),
                (!host.devices.is_empty()).then_some(devices.as_str()),
                host.sdc.map(|_| "sdc"),
            ];
            t.add_row([
                host.name.clone(),
                host.address.to_string(),
                roles.into_iter().flatten().collect::<Vec<_>>().join(", "),
                found.kernel.clone(),
                found.cores.clone(),
                Size(found.memory).to_string(),
                found.wrong.join("; "),
            ]);
        }
        t.to_string()
    }

    fn how_to_use(&self, report: &Report) {
        println!("\n{}\n", lines::headline(report));
        let mdms: Vec<String> = self.topology.mdms_at().iter().map(ToString::to_string).collect();
        println!("  export GABION_MDM={}\n  gabion status", mdms.join(","));
        for host in self.topology.hosts.iter().filter(|h| h.sdc.is_some()) {
            for volume in &self.topology.volumes {
                let base = host.nbd_at()[0].uri();
                let uri = admin::report::volume_uri(&base, &volume.spec.name);
                println!("  nbdinfo '{uri}'    (on {})", host.name);
            }
        }
    }
}
