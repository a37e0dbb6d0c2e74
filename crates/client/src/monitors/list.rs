//! Which monitor is dialled next: the configured addresses, and those that the map tells of.
//!
//! Contract: pure; the time is a parameter. Whatever a monitor says, the list has at most
//! [`MONITORS_MAX`] addresses beyond one hint, and the configured ones stay.

use messenger::address::{HOST_PORTS_MAX, HostPort, HostPorts};
use protocol::MONITOR_PORT;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Addresses in the list, at most.
pub const MONITORS_MAX: usize = HOST_PORTS_MAX;
/// Pause before an address that failed is dialled again; doubles with every failure in a row.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest such pause: a monitor that comes back is found soon.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Pause before an address is tried again where another cluster, another version or another program
/// listens; doubles likewise. Somebody has to do something there.
const WRONG_MIN: Duration = Duration::from_secs(1);
/// The longest such pause.
const WRONG_MAX: Duration = Duration::from_secs(16);

/// May somebody dial it? What a peer tells is not believed to be an address of its own machine.
pub fn is_dialable(addr: SocketAddr) -> bool {
    addr.port() != 0 && !addr.ip().is_unspecified() && !addr.ip().is_multicast()
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Dial this one, and tell what became of it.
    Dial(HostPort),
    /// Every other one failed of late: look again then.
    Wait(Instant),
    /// There is no other one.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    address: HostPort,
    is_learnt: bool,
    /// In a row.
    failures: u32,
    not_before: Option<Instant>,
    /// What listens there will not do, until somebody changes it.
    is_wrong: bool,
    /// What went wrong last, for people.
    problem: String,
}

impl Entry {
    fn new(address: HostPort, is_learnt: bool) -> Entry {
        let problem = String::new();
        Entry { address, is_learnt, failures: 0, not_before: None, is_wrong: false, problem }
    }

    /// One more failure; pauses double from `min` to `max`.
    fn failed(&mut self, now: Instant, why: &str, (min, max): (Duration, Duration)) {
        let pause = min.saturating_mul(1 << self.failures.min(10)).min(max);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause);
        why.clone_into(&mut self.problem);
    }

    fn addr(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(
            self.address.host().parse().ok()?,
            self.address.port().unwrap_or(MONITOR_PORT),
        ))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Monitors {
    entries: Vec<Entry>,
    /// Dialled next, in the order of the list.
    cursor: usize,
    /// Who leads, as another one said; dialled before all others, once.
    hint: Option<SocketAddr>,
}

impl Monitors {
    /// The configured ones.
    pub fn new(configured: &HostPorts) -> Monitors {
        let entry = |address: &HostPort| Entry::new(address.clone(), false);
        let entries = configured.as_slice().iter().map(entry).collect();
        Monitors { entries, cursor: 0, hint: None }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The map says where all monitors listen; an empty list: there is only the one that said so.
    /// Replaces what was learnt before.
    pub fn learn(&mut self, monitors: &[SocketAddr]) {
        let next = self.entries.get(self.cursor).map(|entry| entry.address.clone());
        let known = |entry: &Entry| entry.addr().is_some_and(|addr| monitors.contains(&addr));
        self.entries.retain(|entry| !entry.is_learnt || known(entry));
        for addr in monitors.iter().copied().filter(|addr| is_dialable(*addr)) {
            if self.entries.len() >= MONITORS_MAX {
                break;
            }
            if !self.entries.iter().any(|entry| entry.addr() == Some(addr)) {
                self.entries.push(Entry::new(addr.into(), true));
            }
        }
        let found = |next| self.entries.iter().position(|entry| Some(&entry.address) == next);
        self.cursor = found(next.as_ref()).unwrap_or(0);
    }

    /// Another monitor said that this one leads: it is next. False: it cannot be dialled.
    pub fn hint(&mut self, leader: SocketAddr) -> bool {
        let good = is_dialable(leader);
        if good {
            self.hint = Some(leader);
        }
        good
    }

    /// Which one to dial, beside the one at `current`, if there is one.
    pub fn next(&mut self, now: Instant, current: Option<SocketAddr>) -> Next {
        if let Some(leader) = self.hint.take().filter(|leader| Some(*leader) != current) {
            return Next::Dial(leader.into());
        }
        let count = self.entries.len();
        let mut earliest: Option<Instant> = None;
        for step in 0..count {
            let at = (self.cursor + step) % count;
            let entry = &self.entries[at];
            if current.is_some() && entry.addr() == current {
                continue;
            }
            match entry.not_before.filter(|due| *due > now) {
                Some(due) => earliest = Some(earliest.map_or(due, |known| known.min(due))),
                None => {
                    self.cursor = (at + 1) % count;
                    return Next::Dial(entry.address.clone());
                }
            }
        }
        earliest.map_or(Next::Nothing, Next::Wait)
    }

    /// Nothing answered there, and why.
    pub fn failed(&mut self, address: &HostPort, now: Instant, why: &str) {
        self.note(address, |entry| {
            entry.failed(now, why, (BACKOFF_MIN, BACKOFF_MAX));
            entry.is_wrong = false;
        });
    }

    /// What listens there is another cluster's, of another version, or no monitor.
    pub fn wrong(&mut self, address: &HostPort, now: Instant, why: &str) {
        self.note(address, |entry| {
            entry.failed(now, why, (WRONG_MIN, WRONG_MAX));
            entry.is_wrong = true;
        });
    }

    /// A monitor of the cluster is there.
    pub fn reached(&mut self, address: &HostPort) {
        self.note(address, |entry| *entry = Entry::new(entry.address.clone(), entry.is_learnt));
    }

    /// How often in a row it failed.
    pub fn failures(&self, address: &HostPort) -> u32 {
        let found = self.entries.iter().find(|entry| entry.address == *address);
        found.map_or(0, |entry| entry.failures)
    }

    /// Is what listens at every address wrong?
    pub fn is_hopeless(&self) -> bool {
        self.entries.iter().all(|entry| entry.is_wrong)
    }

    /// What went wrong last at each address that does not answer; empty if nothing did.
    pub fn problems(&self) -> String {
        match &self.entries[..] {
            [only] => only.problem.clone(),
            _ => {
                let failed = |entry: &&Entry| !entry.problem.is_empty();
                let told = |entry: &Entry| format!("{}: {}", entry.address, entry.problem);
                self.entries.iter().filter(failed).map(told).collect::<Vec<_>>().join("; ")
            }
        }
    }

    fn note(&mut self, address: &HostPort, change: impl FnOnce(&mut Entry)) {
        let with_port =
            |address: &HostPort| address.with_port(address.port().unwrap_or(MONITOR_PORT));
        let wanted = with_port(address);
        if let Some(entry) =
            self.entries.iter_mut().find(|entry| with_port(&entry.address) == wanted)
        {
            change(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn monitors(text: &str) -> Monitors {
        Monitors::new(&text.parse().expect(text))
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect(text)
    }

    fn dial(text: &str) -> Next {
        Next::Dial(text.parse().expect(text))
    }

    #[test]
    fn addresses_are_dialled_in_turn_and_again_after_a_pause() {
        let (mut list, now) = (monitors("a,b,10.0.0.3"), Instant::now());
        for name in ["a", "b", "10.0.0.3"] {
            assert_eq!(list.next(now, None), dial(name));
            list.failed(&name.parse().expect(name), now, "refused");
        }
        assert_eq!(list.next(now, None), Next::Wait(now + BACKOFF_MIN));
        let later = now + BACKOFF_MIN;
        assert_eq!(list.next(later, None), dial("a"));
        list.failed(&"a".parse().expect("a"), later, "silent");
        assert_eq!(list.next(later, None), dial("b"));
        list.reached(&"b".parse().expect("b"));
        assert_eq!(list.next(later, Some(addr("10.0.0.3:7400"))), dial("b"), "a failed twice");
    }

    #[test]
    fn the_only_one_is_not_dialled_beside_itself() {
        let mut list = monitors("127.0.0.1");
        assert_eq!(list.next(Instant::now(), None), dial("127.0.0.1"));
        assert_eq!(list.next(Instant::now(), Some(addr("127.0.0.1:7400"))), Next::Nothing);
    }

    #[test]
    fn a_leader_that_is_named_comes_first_and_once() {
        let (mut list, now) = (monitors("a,b"), Instant::now());
        assert!(list.hint(addr("10.0.0.9:1")));
        assert_eq!(list.next(now, None), dial("10.0.0.9:1"));
        assert_eq!((list.next(now, None), list.count()), (dial("a"), 2));
        assert!(!list.hint(addr("0.0.0.0:1")) && !list.hint(addr("10.0.0.9:0")));
        assert_eq!(list.next(now, None), dial("b"));
    }

    #[test]
    fn what_is_learnt_is_replaced_and_what_is_configured_stays() {
        let (mut list, now) = (monitors("10.0.0.1,node2"), Instant::now());
        list.learn(&["10.0.0.1:7400", "10.0.0.2:7400", "0.0.0.0:7400", "10.0.0.3:0"].map(addr));
        assert_eq!(list.count(), 3, "10.0.0.1 is known, and two cannot be dialled");
        list.learn(&[addr("10.0.0.3:7400")]);
        let all: Vec<_> = (0..3).map(|_| list.next(now, None)).collect();
        assert_eq!(all, ["10.0.0.1", "node2", "10.0.0.3:7400"].map(dial));
        list.learn(&[]);
        assert_eq!(list.count(), 2);
    }

    #[test]
    fn a_list_is_hopeless_when_all_are_wrong() {
        let (mut list, now) = (monitors("a,b"), Instant::now());
        let [a, b]: [HostPort; 2] = ["a", "b"].map(|name| name.parse().expect(name));
        list.wrong(&a, now, "version 3");
        assert!(!list.is_hopeless());
        list.wrong(&b, now, "no monitor");
        assert!(list.is_hopeless());
        assert_eq!(list.next(now, None), Next::Wait(now + WRONG_MIN));
        list.failed(&b, now, "refused");
        assert_eq!(list.problems(), "a: version 3; b: refused");
        assert!(!list.is_hopeless(), "nobody is there now, and the right one may come");
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_grow(told in prop::collection::vec(
            prop::collection::vec((any::<[u8; 4]>(), any::<u16>()), 0..40), 1..6)
        ) {
            let (mut list, now) = (monitors("a,b,c"), Instant::now());
            for addrs in told {
                let addrs: Vec<SocketAddr> = addrs.into_iter().map(SocketAddr::from).collect();
                list.learn(&addrs);
                prop_assert!((3..=MONITORS_MAX).contains(&list.count()));
                for addr in addrs {
                    if list.hint(addr) {
                        prop_assert_eq!(list.next(now, None), Next::Dial(addr.into()));
                    }
                }
                let all: Vec<_> = (0..list.count()).map(|_| list.next(now, None)).collect();
                for name in ["a", "b", "c"] {
                    prop_assert!(all.contains(&dial(name)));
                }
            }
        }
    }
}
