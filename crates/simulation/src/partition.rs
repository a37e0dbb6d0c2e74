//! Partitions: who can talk to whom.
//!
//! Contract: two sides at most. What is on its way across stays there until the partition heals or
//! its connection is given up; nobody is told.

use crate::world::{N, SESSIONS, World};

/// Who takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// A node.
    Node(usize),
    /// A session's client.
    Client(usize),
    /// The monitor.
    Monitor,
    /// The metadata service.
    Mds,
}

impl Party {
    const ALL: usize = N + SESSIONS + 2;

    fn bit(self) -> u32 {
        1 << match self {
            Party::Node(i) => i,
            Party::Client(s) => N + s,
            Party::Monitor => N + SESSIONS,
            Party::Mds => N + SESSIONS + 1,
        }
    }
}

impl World {
    /// Can these not talk to each other?
    pub fn apart(&self, a: Party, b: Party) -> bool {
        let side = |party: Party| self.partition & party.bit() != 0;
        side(a) != side(b)
    }

    /// The network falls apart: a few parties, by `v`, are cut off from all others.
    pub fn part(&mut self, v: u32) {
        let party = |n: u32| 1 << ((v >> (8 * n)) as usize % Party::ALL);
        self.partition = (0..1 + (v >> 24) % 3).fold(0, |side, n| side | party(n));
    }
}
