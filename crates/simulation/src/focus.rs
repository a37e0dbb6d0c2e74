//! What walks dwell on: bounds, and which steps are early, late or seldom.
//!
//! Contract: a focus only makes some of the possible histories likelier; none of its walks does
//! what could not happen.

use crate::act::Fault;
use crate::world::{Bounds, Late, N, SESSIONS, Then};
use fastrand::Rng;

/// What a walk dwells on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// By the seed, any of the others.
    Any,
    /// Bounds and faults are drawn freely.
    Mixed,
    /// One session, one object, few writes; crashes, power and expiry.
    Small,
    /// Shards leave and return, again and again, under one writer.
    Return,
    /// Sessions die and others take over.
    Takeover,
    /// Connections are lost and messages arrive late.
    Network,
    /// Maps are learned late, nodes are silenced, files change hands.
    Stale,
    /// Files change hands while power is lost.
    Handover,
    /// A shard joins while its writer dies.
    Joining,
    /// Power is lost while a shard is away.
    Absent,
    /// A shard joins while messages, syncs or maps are late; about then its writer dies.
    Owing,
    /// A shard that has rebuilt what it missed loses power.
    Rebuilt,
    /// All lose power while messages are late, and then the writer dies.
    Blackout,
    /// A sector rots, is read, scrubbed and mended while shards restart and sessions die.
    Rotten,
    /// Shards leave and return while dirty lists are cut short.
    Forgetful,
    /// Sessions that read from their kernels' caches are expired, and find out late.
    Cached,
    /// What overwrites whole slots is placed beside them; crashes and power.
    Placed,
}

impl Focus {
    /// Those with bounds of their own.
    pub const ALL: [Focus; 16] = [
        Focus::Mixed,
        Focus::Small,
        Focus::Return,
        Focus::Takeover,
        Focus::Network,
        Focus::Stale,
        Focus::Handover,
        Focus::Joining,
        Focus::Absent,
        Focus::Owing,
        Focus::Rebuilt,
        Focus::Blackout,
        Focus::Rotten,
        Focus::Forgetful,
        Focus::Cached,
        Focus::Placed,
    ];

    /// The focus of this name.
    pub fn named(name: &str) -> Option<Focus> {
        let all = Focus::ALL.into_iter().chain([Focus::Any]);
        all.into_iter().find(|focus| format!("{focus:?}").eq_ignore_ascii_case(name))
    }

    /// The bounds of a walk.
    pub fn bounds(self, seed: u64) -> Bounds {
        let mut rng = Rng::with_seed(seed ^ 0x5EED_B0D5);
        let focus = match self {
            Focus::Any => Focus::ALL[rng.usize(0..Focus::ALL.len())],
            focus => focus,
        };
        let mut bounds = mixed(&mut rng);
        focus.dwell(&mut bounds, &mut rng);
        if bounds.sessions > 1 {
            // Journals that are full of several sessions' records may wait for each other: nothing
            // here solves that.
            bounds.records_max = 64;
        }
        bounds
    }

    fn dwell(self, bounds: &mut Bounds, rng: &mut Rng) {
        match self {
            Focus::Small => {
                let kinds = [
                    (Fault::Crash, 2),
                    (Fault::Power, 2),
                    (Fault::Zombie, 1),
                    (Fault::Client, 1),
                    (Fault::Lose, 1),
                ];
                only(bounds, rng, &kinds);
                (bounds.sessions, bounds.objects, bounds.writes) = (1, 1, 1 + bounds.writes % 3);
                bounds.warm = true;
            }
            Focus::Return => {
                let kinds = [
                    (Fault::Crash, 4),
                    (Fault::Power, 2),
                    (Fault::Down, 3),
                    (Fault::Lose, 1),
                    (Fault::Client, 1),
                ];
                only(bounds, rng, &kinds);
                (bounds.sessions, bounds.warm) = (1 + bounds.sessions % 2, true);
                bounds.writes += 3;
            }
            Focus::Takeover => {
                let kinds = [
                    (Fault::Zombie, 2),
                    (Fault::Client, 2),
                    (Fault::Crash, 2),
                    (Fault::Power, 1),
                    (Fault::Down, 1),
                ];
                only(bounds, rng, &kinds);
                (bounds.sessions, bounds.objects) = (SESSIONS, 1);
            }
            Focus::Network => {
                let kinds = [
                    (Fault::Drop, 3),
                    (Fault::Reset, 4),
                    (Fault::Crash, 2),
                    (Fault::Down, 1),
                    (Fault::Power, 1),
                ];
                only(bounds, rng, &kinds);
                bounds.faults[Fault::Part as usize] = rng.u8(0..3);
                bounds.slow = true;
            }
            Focus::Stale => stale(bounds, rng),
            Focus::Handover => {
                only(
                    bounds,
                    rng,
                    &[(Fault::Power, 2), (Fault::Crash, 1), (Fault::Reset, 2), (Fault::Zombie, 1)],
                );
                (bounds.sessions, bounds.objects, bounds.warm) = (2, 1, true);
                (bounds.writes, bounds.reads) = (bounds.writes + 2, 4);
                (bounds.everywhere, bounds.unsynced) = (rng.bool(), rng.bool());
            }
            Focus::Joining => joining(bounds, rng),
            Focus::Absent => absent(bounds, rng),
            Focus::Owing => owing(bounds, rng),
            Focus::Rebuilt => rebuilt(bounds, rng),
            Focus::Blackout => blackout(bounds, rng),
            Focus::Rotten => rotten(bounds, rng),
            Focus::Forgetful => forgetful(bounds, rng),
            Focus::Cached => cached(bounds, rng),
            Focus::Placed => placed(bounds, rng),
            Focus::Any | Focus::Mixed => {}
        }
    }
}

/// Bounds that are drawn freely.
fn mixed(rng: &mut Rng) -> Bounds {
    Bounds {
        sessions: 1 + rng.usize(0..SESSIONS),
        objects: 1 + rng.usize(0..2),
        writes: 1 + rng.usize(0..6),
        reads: 12,
        direct: rng.u8(0..4) > 0,
        placed: false,
        ops: rng.u8(0..4) == 0,
        warm: rng.u8(0..4) > 0,
        faults: some_faults(rng),
        steps: 30 + rng.usize(0..450),
        rate: [2, 8, 20, 60][rng.usize(0..4)],
        slow: rng.bool(),
        victim: None,
        everywhere: false,
        unsynced: false,
        trigger: None,
        then: None,
        absent: None,
        stale: None,
        stale_mds: false,
        dirty_max: usize::MAX,
        late: Late::default(),
        records_max: if rng.u8(0..4) == 0 { 3 } else { 64 },
    }
}

/// Few objects, many writes of all lengths over each other.
fn placed(bounds: &mut Bounds, rng: &mut Rng) {
    let kinds = [
        (Fault::Crash, 4),
        (Fault::Power, 3),
        (Fault::Down, 1),
        (Fault::Client, 1),
        (Fault::Lose, 1),
    ];
    only(bounds, rng, &kinds);
    (bounds.placed, bounds.warm, bounds.objects) = (true, true, 1);
    (bounds.ops, bounds.writes) = (rng.u8(0..3) == 0, bounds.writes + 5);
    (bounds.everywhere, bounds.unsynced) = (rng.bool(), rng.u8(0..4) == 0);
}

/// Of all kinds but rot, which bars most others while it lasts.
fn some_faults(rng: &mut Rng) -> [u8; Fault::ALL.len()] {
    let most = [2, 2, 3, 3, 1, 3, 2, 2, 1, 1, 1, 0, 2];
    most.map(|n| if n > 0 && rng.bool() { 1 + rng.u8(0..n) } else { 0 })
}

/// Up to so many faults of these kinds, and at least one of the first.
fn only(bounds: &mut Bounds, rng: &mut Rng, kinds: &[(Fault, u8)]) {
    bounds.faults = [0; Fault::ALL.len()];
    kinds.iter().for_each(|(kind, n)| bounds.faults[*kind as usize] = rng.u8(0..=*n));
    bounds.faults[kinds[0].0 as usize] += 1;
}

fn stale(bounds: &mut Bounds, rng: &mut Rng) {
    only(
        bounds,
        rng,
        &[(Fault::Down, 3), (Fault::Zombie, 2), (Fault::Client, 1), (Fault::Reset, 2)],
    );
    (bounds.sessions, bounds.objects, bounds.warm) = (2, 1, true);
    bounds.stale = Some((rng.usize(0..2), rng.usize(0..2)));
    bounds.victim = bounds.stale.map(|(node, _)| node);
    if rng.bool() {
        // the first session writes, and the second, which reads, knows no more than the service
        only(bounds, rng, &[(Fault::Down, 0)]);
        (bounds.stale_mds, bounds.stale) = (true, bounds.stale.map(|(node, _)| (node, 1)));
        (bounds.rate, bounds.late.writes, bounds.slow) = (60, true, false);
    }
    (bounds.reads, bounds.steps) = (30, bounds.steps + 200);
}

fn joining(bounds: &mut Bounds, rng: &mut Rng) {
    let kinds = [
        (Fault::Power, 0),
        (Fault::Crash, 1),
        (Fault::Client, 1),
        (Fault::Zombie, 1),
        (Fault::Down, 1),
    ];
    only(bounds, rng, &kinds);
    (bounds.sessions, bounds.objects, bounds.warm) = (1 + rng.usize(0..2), 1, true);
    (bounds.writes, bounds.reads, bounds.rate) = (bounds.writes + 2, 4, 20);
    (bounds.unsynced, bounds.victim) = (rng.bool(), Some(rng.usize(0..N)));
    let triggers =
        ["a shard joins the in-sync set", "object rebuilt while joining", "a PG becomes active"];
    bounds.trigger = Some(triggers[rng.usize(0..3)]);
}

fn absent(bounds: &mut Bounds, rng: &mut Rng) {
    only(bounds, rng, &[(Fault::Power, 3), (Fault::Crash, 2), (Fault::Down, 1)]);
    (bounds.sessions, bounds.objects, bounds.warm) = (1, 1 + rng.usize(0..2), true);
    (bounds.rate, bounds.reads) = (20, 4);
    if rng.bool() {
        bounds.absent = Some(rng.usize(0..N));
    } else {
        (bounds.victim, bounds.trigger) =
            (Some(rng.usize(0..N)), Some("rebuilt objects are reported"));
    }
}

/// One writer and one file, a shard that leaves once, and reads only as far as they are needed.
fn one_leaves(bounds: &mut Bounds, rng: &mut Rng, then: Fault, reached: &'static str) -> usize {
    let victim = rng.usize(0..N);
    only(bounds, rng, &[(Fault::Crash, 0)]);
    bounds.faults[then as usize] = 1;
    (bounds.then, bounds.victim) = (Some(Then { reached, fault: then, steps: 8 }), Some(victim));
    (bounds.sessions, bounds.objects, bounds.warm) = (1, 1, true);
    (bounds.reads, bounds.rate, bounds.slow, bounds.ops) = (2, 60, false, false);
    (bounds.steps, bounds.records_max) = (bounds.steps + 300, 64);
    victim
}

fn owing(bounds: &mut Bounds, rng: &mut Rng) {
    let then = [Fault::Client, Fault::Zombie][rng.usize(0..2)];
    let reached =
        ["a shard is written to while it joins", "a shard joins the in-sync set"][rng.usize(0..2)];
    let victim = one_leaves(bounds, rng, then, reached);
    let mut some = || -> [bool; N] { std::array::from_fn(|_| rng.u8(0..3) == 0) };
    bounds.late = Late {
        requests: some(),
        replies: some(),
        syncs: some(),
        maps: some()[0],
        ..Late::default()
    };
    bounds.late.writes = rng.bool();
    (bounds.late.starts[victim], bounds.late.ways[victim]) = (true, rng.u8(0..3) == 0);
}

fn rebuilt(bounds: &mut Bounds, rng: &mut Rng) {
    let reached =
        ["rebuilt objects are reported", "a shard joins the in-sync set"][rng.usize(0..2)];
    let victim = one_leaves(bounds, rng, Fault::Power, reached);
    // what it misses is written, applied and trimmed by the others first
    bounds.absent = Some(victim);
}

fn blackout(bounds: &mut Bounds, rng: &mut Rng) {
    only(bounds, rng, &[(Fault::Power, 0)]);
    bounds.faults[Fault::Client as usize] = 1;
    let reached = "a member without its unsynced tail stays";
    // long enough to attach, to write and to report
    bounds.then = Some(Then { reached, fault: Fault::Client, steps: 30 });
    (bounds.sessions, bounds.objects, bounds.warm) = (1, 1, true);
    (bounds.writes, bounds.reads, bounds.rate, bounds.ops) = (2 + bounds.writes / 2, 2, 25, false);
    (bounds.slow, bounds.everywhere, bounds.unsynced, bounds.records_max) = (false, true, true, 64);
    let (one, only_one) = (rng.usize(0..N), rng.bool());
    let some = |rng: &mut Rng| -> [bool; N] {
        std::array::from_fn(|i| if only_one { i == one } else { rng.bool() })
    };
    (bounds.late.requests, bounds.late.replies) = (some(rng), some(rng));
    bounds.late.writes = rng.bool();
}

fn rotten(bounds: &mut Bounds, rng: &mut Rng) {
    let kinds =
        [(Fault::Rot, 2), (Fault::Crash, 2), (Fault::Power, 2), (Fault::Down, 1), (Fault::Lose, 1)];
    only(bounds, rng, &kinds);
    (bounds.faults[Fault::Client as usize], bounds.faults[Fault::Reset as usize]) =
        (rng.u8(0..2), rng.u8(0..2));
    (bounds.sessions, bounds.warm, bounds.writes) = (1 + rng.usize(0..2), true, 2 + bounds.writes);
    (bounds.reads, bounds.rate, bounds.steps) = (30, 20, bounds.steps + 200);
}

fn forgetful(bounds: &mut Bounds, rng: &mut Rng) {
    let (victim, then) = (rng.usize(0..N), [Fault::Crash, Fault::Down][rng.usize(0..2)]);
    only(
        bounds,
        rng,
        &[
            (Fault::Power, 1),
            (Fault::Crash, 2),
            (Fault::Down, 2),
            (Fault::Lose, 1),
            (Fault::Client, 1),
        ],
    );
    (bounds.sessions, bounds.objects, bounds.warm) =
        (1 + rng.usize(0..2), 1 + rng.usize(0..2), true);
    (bounds.writes, bounds.reads, bounds.rate) = (bounds.writes + 3, 4, 20);
    bounds.dirty_max = rng.usize(0..2);
    // what it misses is written, applied and trimmed by the others first
    (bounds.absent, bounds.victim) = (Some(victim), Some(victim));
    if rng.bool() {
        let reached = "a shard is listed everything, as its dirty list was cut short";
        (bounds.then, bounds.faults[then as usize]) =
            (Some(Then { reached, fault: then, steps: 3 }), 1);
        bounds.late.ways[victim] = rng.bool();
    }
}

fn cached(bounds: &mut Bounds, rng: &mut Rng) {
    only(
        bounds,
        rng,
        &[
            (Fault::Zombie, 1),
            (Fault::Part, 1),
            (Fault::Clock, 1),
            (Fault::Reset, 1),
            (Fault::Down, 1),
        ],
    );
    (bounds.sessions, bounds.objects, bounds.warm) = (2, 1, true);
    (bounds.writes, bounds.reads, bounds.steps) = (bounds.writes + 2, 40, bounds.steps + 200);
    (bounds.late.renewals, bounds.late.maps) = (true, rng.bool());
}
