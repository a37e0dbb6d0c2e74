//! What is done to the processes and their network, and how it is undone.
//!
//! Contract: a [`Strike`] does one fault or several at once, never two to the same process, and
//! ends with all of them undone: every process runs and every packet passes. Sessions of clients
//! live 10 s without the monitor, so whatever keeps a client from it is over well before; a storage
//! daemon is marked down after 2 s, so what happens to one lasts sometimes longer and sometimes
//! not.

use super::load::Load;
use crate::cluster::Cluster;
use crate::cluster::layout::MOUNT;
use crate::error::{Outcome, fail};
use crate::netns::Net;
use crate::testrun::Bench;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGKILL to so many storage daemons at once; 0: to all.
    KillOsds(usize),
    /// SIGKILL to the monitor.
    KillMonitor,
    /// SIGKILL to the metadata service.
    KillMds,
    /// SIGKILL to every daemon at once.
    KillAll,
    /// SIGKILL to the client under its writers.
    KillClient,
    /// SIGSTOP, and later SIGCONT, to a storage daemon.
    StopOsd,
    /// The same to the metadata service.
    StopMds,
    /// The same to the client.
    StopClient,
    /// A storage daemon reaches nobody.
    CutOsd,
    /// The monitor reaches nobody.
    CutMonitor,
    /// The client reaches nobody.
    CutClient,
    /// Two storage daemons do not reach each other, but all others.
    PartOsds,
    /// The client and a storage daemon do not reach each other, but all others.
    PartClient,
    /// A fifth of a storage daemon's packets is lost.
    Lossy,
    /// A storage daemon's link is thin and congested.
    Slow,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 17] = [
        Fault::KillOsds(1),
        Fault::KillOsds(2),
        Fault::KillOsds(0),
        Fault::KillMonitor,
        Fault::KillMds,
        Fault::KillAll,
        Fault::KillClient,
        Fault::StopOsd,
        Fault::StopMds,
        Fault::StopClient,
        Fault::CutOsd,
        Fault::CutMonitor,
        Fault::CutClient,
        Fault::PartOsds,
        Fault::PartClient,
        Fault::Lossy,
        Fault::Slow,
    ];

    /// In words, for the count.
    pub fn name(self) -> &'static str {
        match self {
            Fault::KillOsds(1) => "kill an osd",
            Fault::KillOsds(0) => "kill all osds",
            Fault::KillOsds(_) => "kill two osds",
            Fault::KillMonitor => "kill the monitor",
            Fault::KillMds => "kill the mds",
            Fault::KillAll => "kill all daemons",
            Fault::KillClient => "kill the client",
            Fault::StopOsd => "stop an osd",
            Fault::StopMds => "stop the mds",
            Fault::StopClient => "stop the client",
            Fault::CutOsd => "cut an osd off",
            Fault::CutMonitor => "cut the monitor off",
            Fault::CutClient => "cut the client off",
            Fault::PartOsds => "part two osds",
            Fault::PartClient => "part client and osd",
            Fault::Lossy => "lose packets",
            Fault::Slow => "slow a link",
        }
    }

    /// How long it lasts, in milliseconds.
    fn lasts(self) -> Range<u64> {
        match self {
            Fault::KillOsds(_) | Fault::KillMonitor | Fault::KillMds | Fault::KillAll => 20..2_500,
            Fault::KillClient => 0..300,
            Fault::StopClient | Fault::CutClient | Fault::CutMonitor | Fault::StopMds => 300..2_500,
            Fault::StopOsd
            | Fault::CutOsd
            | Fault::PartOsds
            | Fault::PartClient
            | Fault::Lossy
            | Fault::Slow => 500..4_000,
        }
    }
}

/// Deals every fault once before any a second time.
#[derive(Debug)]
pub struct Deck(Vec<Fault>);

impl Deck {
    /// A shuffled one.
    pub fn new(rng: &mut fastrand::Rng) -> Deck {
        let mut faults = Fault::ALL.to_vec();
        rng.shuffle(&mut faults);
        Deck(faults)
    }

    /// The next fault.
    pub fn deal(&mut self, rng: &mut fastrand::Rng) -> Fault {
        match self.0.pop() {
            Some(fault) => fault,
            None => {
                *self = Deck::new(rng);
                self.0.pop().expect("a new deck is full")
            }
        }
    }
}

/// Faults under way.
pub struct Strike<'a> {
    /// Decides on whom and how long.
    pub rng: &'a mut fastrand::Rng,
    bench: &'a Bench,
    cluster: &'a Cluster,
    load: &'a mut Load,
    net: Option<Net>,
    struck: BTreeSet<String>,
    killed: Vec<String>,
    stopped: Vec<String>,
    cut: Vec<String>,
}

impl<'a> Strike<'a> {
    /// None yet.
    pub fn new(
        bench: &'a Bench,
        cluster: &'a Cluster,
        load: &'a mut Load,
        rng: &'a mut fastrand::Rng,
    ) -> Strike<'a> {
        let (net, struck) = (cluster.layout().net(), BTreeSet::new());
        let (killed, stopped, cut) = (Vec::new(), Vec::new(), Vec::new());
        Strike { rng, bench, cluster, load, net, struck, killed, stopped, cut }
    }

    /// Begins one, and says what in words; `None` if those that it needs are struck already.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn begin(&mut self, fault: Fault) -> Outcome<Option<String>> {
        let all = self.cluster.layout().osds.len();
        let Some(victims) = (match fault {
            Fault::KillOsds(0) => self.osds(all),
            Fault::KillOsds(count) => self.osds(count),
            Fault::PartOsds => self.osds(2),
            Fault::StopOsd | Fault::CutOsd | Fault::Lossy | Fault::Slow => self.osds(1),
            Fault::PartClient => self.osds(1).filter(|_| !self.struck.contains(MOUNT)),
            Fault::KillMonitor | Fault::CutMonitor => self.one("monitor"),
            Fault::KillMds | Fault::StopMds => self.one("mds"),
            Fault::KillClient | Fault::StopClient | Fault::CutClient => self.one(MOUNT),
            Fault::KillAll => {
                Some(self.cluster.layout().daemons()).filter(|_| self.struck.is_empty())
            }
        }) else {
            return Ok(None);
        };
        self.struck.extend(victims.iter().cloned());
        match fault {
            Fault::KillOsds(_)
            | Fault::KillMonitor
            | Fault::KillMds
            | Fault::KillAll
            | Fault::KillClient => {
                victims.iter().try_for_each(|name| self.cluster.kill(name))?;
                self.killed.extend(victims.iter().cloned());
            }
            Fault::StopOsd | Fault::StopMds | Fault::StopClient => {
                for name in &victims {
                    self.cluster.daemon(name)?.signal(Signal::STOP)?;
                    self.stopped.push(name.clone());
                }
            }
            Fault::CutOsd
            | Fault::CutMonitor
            | Fault::CutClient
            | Fault::PartOsds
            | Fault::PartClient
            | Fault::Lossy
            | Fault::Slow => self.disturb(fault, &victims)?,
        }
        Ok(Some(format!("{} ({})", fault.name(), victims.join("+"))))
    }

    fn disturb(&mut self, fault: Fault, victims: &[String]) -> Outcome {
        let Some(net) = self.net.clone() else {
            return fail("this cluster has no network of its own");
        };
        let name = &victims[0];
        self.cut.push(name.clone());
        let endpoints = self.cluster.layout().endpoints();
        let address =
            |of: &str| endpoints.iter().find(|(name, _)| name == of).map(|(_, addr)| *addr);
        match fault {
            Fault::Lossy => net.lossy(name),
            Fault::Slow => net.slow(name),
            Fault::PartOsds | Fault::PartClient => {
                let other = victims.get(1).map_or(MOUNT, String::as_str);
                self.struck.insert(other.to_owned());
                net.part(name, address(other).expect("every process has an address"))
            }
            _ => net.cut(name),
        }
    }

    /// Waits as long as the fault is to last.
    ///
    /// # Errors
    /// Only on Ctrl-C.
    pub fn hold(&mut self, fault: Fault) -> Outcome {
        let time = Duration::from_millis(self.rng.u64(fault.lasts()));
        self.bench.interrupt.sleep(time)
    }

    /// Undoes everything. The client comes last: it needs the others.
    ///
    /// # Errors
    /// When a process does not come back.
    pub fn end(self) -> Outcome {
        if let Some(net) = &self.net {
            self.cut.iter().try_for_each(|name| net.mend(name))?;
        }
        for name in &self.stopped {
            self.cluster.daemon(name)?.signal(Signal::CONT)?;
        }
        let order = self.cluster.layout().daemons();
        let dead = order.iter().filter(|name| self.killed.contains(name));
        dead.into_iter().try_for_each(|name| self.cluster.start(name, &self.bench.interrupt))?;
        if self.killed.iter().any(|name| name == MOUNT) {
            self.load.abandon(self.bench)?;
            self.cluster.start(MOUNT, &self.bench.interrupt)?;
            self.load.start(self.bench)?;
        }
        Ok(())
    }

    /// So many storage daemons that nothing was done to yet.
    fn osds(&mut self, count: usize) -> Option<Vec<String>> {
        let mut names: Vec<String> = self.cluster.layout().daemons();
        names.retain(|name| name.starts_with("osd-") && !self.struck.contains(name));
        self.rng.shuffle(&mut names);
        names.truncate(count);
        (names.len() == count).then_some(names)
    }

    fn one(&self, name: &str) -> Option<Vec<String>> {
        (!self.struck.contains(name)).then(|| vec![name.to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deck_deals_every_fault_before_any_twice() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut deck = Deck::new(&mut rng);
        for _ in 0..3 {
            let dealt: BTreeSet<&str> =
                (0..Fault::ALL.len()).map(|_| deck.deal(&mut rng).name()).collect();
            assert_eq!(dealt.len(), Fault::ALL.len());
        }
    }
}
