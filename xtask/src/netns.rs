//! A network of its own for each process of a cluster, so that it can be cut off or slowed without
//! touching the machine's.
//!
//! Contract: a network is a prefix and nothing else: `PREFIX-hub` holds a bridge and the address of
//! commands, `PREFIX-NAME` one process each, with the address [`address`] on a veth pair. All of it
//! goes with the namespaces; the machine's own interfaces, routes and tables are never touched, so
//! every network may use the same addresses.
//!
//! Needs root, iproute2, nftables and nsenter. Faults: [`Net::cut`], [`Net::part`], [`Net::lossy`],
//! [`Net::slow`], all undone by [`Net::mend`].

use crate::error::{Outcome, ensure};
use crate::exec::{self, Interrupt};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Each of these commands takes milliseconds.
const COMMAND_MAX: Duration = Duration::from_secs(20);
/// Where commands of the developer stand.
const HUB: &str = "hub";
/// What a slowed process gets, both ways: some hundred 4 KiB writes a second, each behind a queue
/// of up to `latency`; beyond that packets are dropped, as on a congested link.
const SLOW: [&str; 6] = ["rate", "16mbit", "burst", "16kb", "latency", "400ms"];
/// The firewall table of all faults.
const TABLE: &str = "inet trefoil_fault";

/// Address of the process with this place among all.
pub fn address(place: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 10 + place)
}

/// A network; see the module.
#[derive(Clone, Debug)]
pub struct Net {
    prefix: String,
}

impl Net {
    /// The network of this prefix, made or not.
    pub fn new(prefix: &str) -> Net {
        Net { prefix: prefix.into() }
    }

    /// A command within the namespace of a process.
    pub fn command(&self, name: &str, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path(name).display())).arg(program);
        command
    }

    /// A command from which every process is reached.
    pub fn hub_command(&self, program: &Path) -> Command {
        self.command(HUB, program)
    }

    /// Makes it, if it is not there; `names` are the processes with their addresses.
    ///
    /// # Errors
    /// When the kernel or a program refuses; nothing is left then.
    pub fn build(&self, names: &[(String, IpAddr)]) -> Outcome {
        if self.path(HUB).exists() {
            return Ok(());
        }
        let built = self.build_all(names);
        if built.is_err() {
            self.destroy();
        }
        built
    }

    fn build_all(&self, names: &[(String, IpAddr)]) -> Outcome {
        let hub = self.namespace(HUB);
        run("ip", &["netns", "add", &hub])?;
        run("ip", &["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        run(
            "ip",
            &[
                "-n",
                &hub,
                "address",
                "add",
                &format!("{}/24", Ipv4Addr::new(10, 77, 0, 1)),
                "dev",
                "bridge",
            ],
        )?;
        run("ip", &["-n", &hub, "link", "set", "bridge", "up"])?;
        for (name, addr) in names {
            let (own, port) = (self.namespace(name), port(name));
            run("ip", &["netns", "add", &own])?;
            run(
                "ip",
                &[
                    "link", "add", &port, "netns", &hub, "type", "veth", "peer", "name", "eth0",
                    "netns", &own,
                ],
            )?;
            run("ip", &["-n", &hub, "link", "set", &port, "master", "bridge", "up"])?;
            run("ip", &["-n", &own, "address", "add", &format!("{addr}/24"), "dev", "eth0"])?;
            run("ip", &["-n", &own, "link", "set", "eth0", "up"])?;
            run("ip", &["-n", &own, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// Takes it away, with every fault.
    pub fn destroy(&self) {
        for name in namespaces().iter().filter(|n| n.starts_with(&format!("{}-", self.prefix))) {
            if let Err(error) = run("ip", &["netns", "delete", name]) {
                eprintln!("warning: {error}");
            }
        }
    }

    /// Nothing reaches or leaves this process.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn cut(&self, name: &str) -> Outcome {
        self.fault(name, "oifname eth0 drop", "iifname eth0 drop")
    }

    /// Nothing passes between this process and that address; both reach all others.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn part(&self, name: &str, from: IpAddr) -> Outcome {
        self.fault(name, &format!("ip daddr {from} drop"), &format!("ip saddr {from} drop"))
    }

    /// One packet in five to and from this process is lost.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn lossy(&self, name: &str) -> Outcome {
        self.fault(name, "numgen random mod 100 < 20 drop", "numgen random mod 100 < 20 drop")
    }

    /// A thin and congested link, both ways.
    ///
    /// # Errors
    /// When tc refuses.
    pub fn slow(&self, name: &str) -> Outcome {
        for (namespace, device) in
            [(self.namespace(name), "eth0".into()), (self.namespace(HUB), port(name))]
        {
            let mut words =
                vec!["-n", &namespace, "qdisc", "replace", "dev", &device, "root", "tbf"];
            words.extend(SLOW);
            run("tc", &words)?;
        }
        Ok(())
    }

    /// Undoes every fault of this process's network.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn mend(&self, name: &str) -> Outcome {
        for (namespace, device) in
            [(self.namespace(name), "eth0".into()), (self.namespace(HUB), port(name))]
        {
            // Fails if it was not slow.
            let _ = run("tc", &["-n", &namespace, "qdisc", "delete", "dev", &device, "root"]);
        }
        // Adding first makes the deletion work whether it was there or not.
        self.nft(name, &format!("add table {TABLE}; delete table {TABLE}"))
    }

    fn fault(&self, name: &str, out: &str, into: &str) -> Outcome {
        let chain = |hook: &str, rule: &str| {
            format!(
                "add chain {TABLE} {hook} {{ type filter hook {hook} priority 0; }}; add rule {TABLE} {hook} {rule}; "
            )
        };
        let rules = format!("add table {TABLE}; {}{}", chain("output", out), chain("input", into));
        self.nft(name, &rules)
    }

    fn nft(&self, name: &str, rules: &str) -> Outcome {
        let mut command = self.command(name, Path::new("nft"));
        exec::run_ok(command.arg(rules), COMMAND_MAX, &Interrupt::never()).map(drop)
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("/run/netns").join(self.namespace(name))
    }
}

/// A namespace with a loopback and nothing else, for what shall talk only to itself. Whatever runs
/// in it, and all of its addresses, are out of everybody's way.
#[derive(Clone, Debug)]
pub struct Loopback {
    namespace: String,
}

impl Loopback {
    /// The namespace of a purpose of this process, made or not.
    pub fn new(purpose: &str) -> Loopback {
        Loopback { namespace: format!("{}-{HUB}", prefix_of_this_process(purpose)) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.namespace
    }

    /// Makes it, with one more address on its loopback: many programs do not listen on 127.0.0.1.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn build(&self, address: &str) -> Outcome {
        run("ip", &["netns", "add", &self.namespace])?;
        run("ip", &["-n", &self.namespace, "link", "set", "lo", "up"])?;
        run("ip", &["-n", &self.namespace, "address", "add", address, "dev", "lo"])
    }

    /// A command within it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg(program);
        command
    }

    /// Takes it away, if it is there.
    pub fn destroy(&self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).output();
    }
}

/// A prefix that names this process, so that [`sweep`] knows whether it is still wanted.
pub fn prefix_of_this_process(purpose: &str) -> String {
    format!("trefoil{}-{purpose}", std::process::id())
}

/// Takes away the networks of processes that were killed.
pub fn sweep() {
    for name in namespaces().iter().filter(|name| is_orphan(name)) {
        let _ = run("ip", &["netns", "delete", name]);
    }
}

/// Does a name that [`prefix_of_this_process`] began come from a process that is gone?
pub fn is_orphan(name: &str) -> bool {
    let owner =
        name.strip_prefix("trefoil").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn namespaces() -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Name of a process's port at the bridge; the kernel takes 15 bytes.
fn port(name: &str) -> String {
    format!("p-{name}")
}

fn run(program: &str, words: &[&str]) -> Outcome {
    exec::run_ok(Command::new(program).args(words), COMMAND_MAX, &Interrupt::never()).map(drop)
}

/// Can this machine make networks?
///
/// # Errors
/// With what is missing.
pub fn check() -> Outcome {
    let net = Net::new(&prefix_of_this_process("check"));
    let made = net.build(&[("one".into(), address(0).into()), ("two".into(), address(1).into())]);
    let made = made.and_then(|()| net.cut("one")).and_then(|()| net.slow("two"));
    let made = made.and_then(|()| net.mend("one")).and_then(|()| net.mend("two"));
    net.destroy();
    ensure!(
        made.is_ok(),
        "network namespaces with nftables and tbf do not work here (run as root, on a kernel with net namespaces, veth, \
         bridge, nf_tables and sch_tbf): {}",
        made.expect_err("not ok")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_dead_processes_are_orphans() {
        assert!(!is_orphan(&prefix_of_this_process("test")));
        assert!(!is_orphan("trefoil-hub") && !is_orphan("docker0"));
        // Above the largest pid that Linux gives.
        assert!(is_orphan("trefoil4194305-compare-hub"));
    }
}
