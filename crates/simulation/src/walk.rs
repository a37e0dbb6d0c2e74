//! Random walks, their end, and how a broken one is made short and readable.

use crate::act::{Act, Fault};
use crate::focus::Focus;
use crate::world::{Bounds, Check, Then, World};
use fastrand::Rng;
use protocol::Rules;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Steps after the last fault in which everything must come to rest.
const REST_STEPS_MAX: usize = 30_000;

/// What a long run must have reached.
pub const STATES: &[&str] = &[
    "a PG becomes active",
    "a cached read",
    "a grant is void",
    "a piece of a held object",
    "a journal is trimmed",
    "a lease is recalled",
    "a live node finds itself marked down",
    "a member without its unsynced tail stays",
    "a message arrives late",
    "a read fails",
    "a read is started over",
    "a read lease is granted",
    "a request for a lease arrives late",
    "a restart finds a direct record without its bytes",
    "a rotten sector is found",
    "a rotten sector is mended",
    "a session closes",
    "a session finds itself fenced",
    "a session's time runs out on its own clock",
    "a shard is listed everything, as its dirty list was cut short",
    "a shard is written to while it joins",
    "a shard joins the in-sync set",
    "a shard refuses another attach",
    "a shard refuses another epoch",
    "all shards are back beside a writer that does not rest",
    "clean end",
    "object rebuilt before joining",
    "object rebuilt while joining",
    "pieces of different cuts are refused",
    "read",
    "rebuilt objects are reported",
    "session resolved",
    "stable advances",
    "the metadata service restarts",
    "the metadata service's machine loses what was not synced",
];

/// Walks in which all of that is reached for certain.
pub const WALKS_TO_REACH_ALL: u64 = 5000;

/// A broken invariant and the steps that lead to it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The invariant's name, and how it broke.
    pub what: String,
    /// Of the walk.
    pub seed: u64,
    /// What was done.
    pub trace: Vec<Act>,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Walks.
    pub walks: u64,
    /// Steps in all.
    pub steps: u64,
    /// What was reached, and how often.
    pub covered: BTreeMap<&'static str, u64>,
    /// The first broken invariant.
    pub found: Option<Found>,
}

fn mix(seed: u64, x: u64) -> u64 {
    let x = (seed ^ x.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ x >> 31
}

/// What tells kinds of steps, and steps at different places, apart.
fn shape(act: &Act) -> (u64, u64) {
    use Act::*;
    let kind = |n: u64| (n, n * 64);
    let at = |n: u64, a: usize, b: usize| (n, n * 64 + (a * 8 + b) as u64);
    match *act {
        Open => kind(1),
        Close { s } => at(2, s, 0),
        Learn { s, .. } => at(3, s, 0),
        Ask { s, o } => at(4, s, o),
        GiveBack { s, o } => at(5, s, o),
        Write { s, o, .. } => at(6, s, o),
        Read { s, .. } => at(7, s, 0),
        Fsync { s } => at(8, s, 0),
        Tick { s } => at(9, s, 0),
        Request { s, i } => at(10, s, i),
        LateRequest { s, i } => at(11, s, i),
        Reply { s, i } => at(12, s, i),
        LateReply { s, i } => at(13, s, i),
        Turn { i } => at(14, 0, i),
        Sync { i } => at(15, 0, i),
        Synced { i } => at(16, 0, i),
        Apply { i } => at(17, 0, i),
        Trim { i } => at(18, 0, i),
        TrimOn { i } => at(19, 0, i),
        Start { i } => at(20, 0, i),
        NodeLearn { i, .. } => at(21, 0, i),
        Tell { i } => at(22, 0, i),
        Hear { i } => at(23, 0, i),
        Way { i } => at(24, 0, i),
        Serve { i } => at(25, 0, i),
        ServeLate { .. } => kind(26),
        Coordinate => kind(27),
        Question { .. } => kind(28),
        Answer { i } => at(29, 0, i),
        HearAnswer { .. } => kind(30),
        MonitorTick => kind(31),
        MdsLearn => kind(32),
        MarkDown { i } => at(33, 0, i),
        Expire { s } => at(34, s, 0),
        Freed { i } => at(35, 0, i),
        Timeout { s, i } => at(36, s, i),
        Scrub { i } => at(38, 0, i),
        Mend { i } => at(39, 0, i),
        AskRead { s, o } => at(40, s, o),
        ReadCached { s, .. } => at(41, s, 0),
        Renew { s } => at(42, s, 0),
        Renewal { .. } => kind(43),
        MdsHear { s } => at(44, s, 0),
        MdsHearLate { s } => at(45, s, 0),
        MdsReply { s } => at(46, s, 0),
        MdsTick => kind(47),
        MdsSizes => kind(48),
        Healed => kind(49),
        _ => kind(37),
    }
}

/// What is late has this weight: that of other steps is between ten and some hundred times as much.
const LATE_WEIGHT: u64 = 10;

/// Each kind of step has its own weight, and in some walks some links, nodes and disks are slow.
fn weight(bounds: &Bounds, seed: u64, act: &Act) -> u64 {
    let (kind, place) = shape(act);
    let stale = |act: &Act, (node, session): (usize, usize)| match act {
        Act::NodeLearn { i, .. } => *i == node,
        Act::Learn { s, .. } => *s == session,
        _ => false,
    };
    let absent = |act: &Act| matches!(act, Act::Start { i } if Some(*i) == bounds.absent);
    let stale_mds = bounds.stale_mds && matches!(act, Act::MdsLearn);
    if bounds.stale.is_some_and(|who| stale(act, who)) || stale_mds || absent(act) {
        return 1;
    }
    if bounds.slow && kind != 14 && mix(seed, place + 1000).is_multiple_of(8) {
        return 1;
    }
    if (bounds.then.is_some() || bounds.unresting)
        && matches!(act, Act::Close { .. } | Act::GiveBack { .. })
    {
        // the writer stays until then
        return 0;
    }
    if bounds.stale_mds
        && let Some((node, reader)) = bounds.stale
    {
        match *act {
            Act::AskRead { s, .. } if s == reader => return LATE_WEIGHT,
            Act::Read { s, v, .. } if s == reader && v != 1 << node => return 0,
            Act::Ask { s, .. } if s == reader => return 0,
            Act::AskRead { .. } => return 0,
            _ => {}
        }
    }
    if bounds.late.holds(act) {
        return LATE_WEIGHT;
    }
    if bounds.unsynced && matches!(act, Act::Synced { .. }) {
        return 40;
    }
    let weight = [100, 400, 1000, 3000][(mix(seed, kind) % 4) as usize];
    // the end of a turn follows soon, and what never stops being possible comes seldom
    match act {
        Act::Turn { .. } => 3000,
        Act::Tick { .. } | Act::MonitorTick | Act::Close { .. } | Act::Coordinate => weight / 10,
        Act::MdsTick | Act::Healed | Act::Renew { .. } | Act::ReadCached { .. } => weight / 10,
        _ => weight,
    }
}

/// Is a fault among those that a walk dwells on?
fn fits(bounds: &Bounds, fault: Act) -> bool {
    let (victim, stale) = (bounds.victim, bounds.stale.map(|(_, session)| session));
    match fault {
        Act::Power { i, .. } => !bounds.everywhere && victim.is_none_or(|v| v == i),
        Act::Crash { i } | Act::MarkDown { i } | Act::Rot { i, .. } | Act::IoFails { i, .. } => {
            victim.is_none_or(|v| v == i)
        }
        Act::PowerAll { .. } => bounds.everywhere || bounds.then.is_none(),
        Act::Expire { s } => stale.is_none_or(|only| only == s),
        _ => true,
    }
}

struct Walker {
    world: World,
    seed: u64,
    rng: Rng,
    acts: Vec<Act>,
    trace: Vec<Act>,
}

impl Walker {
    fn new(rules: Rules, bounds: Bounds, seed: u64) -> Self {
        let world = World::new(rules, bounds);
        Self { world, seed, rng: Rng::with_seed(seed), acts: Vec::new(), trace: Vec::new() }
    }

    fn step(&mut self, act: Act) -> Check {
        self.trace.push(act);
        self.world.step(act)
    }

    fn go(&mut self) -> Check {
        begin(&mut self.world)?;
        for _ in 0..self.world.bounds.steps {
            self.world.acts(&mut self.acts);
            let Some(act) = self.pick() else { break };
            let act = act.with(self.rng.u32(..));
            self.step(act)?;
        }
        rest(&mut self.world, &mut self.rng, &mut self.acts, &mut self.trace)
    }

    fn has_reached(&self, what: &str) -> bool {
        self.world.covered.contains_key(what)
    }

    /// A fault that fits; with `kind`: of this kind.
    fn pick_fault(&mut self, kind: Option<Fault>) -> Option<Act> {
        let world = &self.world;
        let early =
            world.bounds.then.filter(|then| !self.has_reached(then.reached)).map(|then| then.fault);
        let fits = |(fault, act): &(Fault, Act)| {
            Some(*fault) != early
                && kind.is_none_or(|kind| kind == *fault)
                && fits(&world.bounds, *act)
        };
        let faults = self.acts.iter().filter_map(|act| Some((world.fault(*act)?, *act)));
        let faults: Vec<(Fault, Act)> = faults.filter(fits).collect();
        let mut kinds: Vec<Fault> = faults.iter().map(|(fault, _)| *fault).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() {
            return None;
        }
        let kind = kinds[self.rng.usize(0..kinds.len())];
        let of_kind: Vec<Act> =
            faults.iter().filter(|(k, _)| *k == kind).map(|(_, act)| *act).collect();
        Some(of_kind[self.rng.usize(0..of_kind.len())])
    }

    fn pick(&mut self) -> Option<Act> {
        if let Some(Then { reached, fault, steps }) = self.world.bounds.then
            && self.world.left[fault as usize] > 0
            && self.has_reached(reached)
            && self.rng.usize(0..steps) == 0
            && let Some(act) = self.pick_fault(Some(fault))
        {
            return Some(act);
        }
        let world = &self.world;
        let soon = world
            .bounds
            .trigger
            .is_some_and(|what| world.covered.get(what).is_some_and(|n| *n > 1));
        let rate = if soon { 80 } else { world.bounds.rate };
        if world.left.iter().any(|n| *n > 0)
            && self.rng.usize(0..1000) < rate
            && let Some(act) = self.pick_fault(None)
        {
            return Some(act);
        }
        let world = &self.world;
        let weigh = |act: &Act| {
            if world.fault(*act).is_some() { 0 } else { weight(&world.bounds, self.seed, act) }
        };
        let weights: Vec<u64> = self.acts.iter().map(weigh).collect();
        let sum: u64 = weights.iter().sum();
        if sum == 0 {
            return self.pick_fault(None);
        }
        let mut x = self.rng.u64(0..sum);
        let at = weights.iter().position(|w| {
            x < *w || {
                x -= w;
                false
            }
        })?;
        Some(self.acts[at])
    }
}

/// The start that all walks have in common: nodes boot, the PG becomes active, and a warm one has a
/// session attached that holds all leases; the others are attached, too, if the metadata service
/// will hear of nothing soon.
fn begin(world: &mut World) -> Check {
    let left = std::mem::take(&mut world.left);
    let mut acts = Vec::new();
    let is_first = |act: &Act, warm: bool| match act {
        Act::Start { .. }
        | Act::Hear { .. }
        | Act::NodeLearn { .. }
        | Act::Tell { .. }
        | Act::MdsLearn => true,
        Act::Turn { .. } | Act::Request { .. } | Act::Reply { .. } | Act::Learn { .. } => true,
        Act::MdsHear { .. } | Act::MdsReply { .. } => true,
        Act::Open => warm,
        Act::Ask { s, .. } => warm && *s == 0,
        _ => false,
    };
    let first = if world.bounds.stale_mds { world.bounds.sessions } else { 1 };
    for _ in 0..200 {
        world.acts(&mut acts);
        let warm = world.bounds.warm && world.map().view.active;
        let fits =
            |act: &&Act| is_first(act, warm && (**act != Act::Open || world.clients.len() < first));
        // until it knows a session, the service has it ask again
        let next =
            acts.iter().find(|act| **act == Act::MdsLearn).or_else(|| acts.iter().find(fits));
        let Some(act) = next.copied() else { break };
        world.step(act)?;
        if act == Act::Open {
            let now = world.now;
            let s = world.clients.len() - 1;
            world.clients[s].machine.want_attached(now);
            world.pump(s)?;
        }
    }
    assert!(world.map().view.active, "a plain start");
    world.left = left;
    Ok(())
}

/// Faults stop: everything must come to rest, whole.
fn rest(world: &mut World, rng: &mut Rng, acts: &mut Vec<Act>, trace: &mut Vec<Act>) -> Check {
    world.left = Default::default();
    if world.bounds.unresting {
        crate::unresting::write_on(world, rng, acts, trace)?;
    }
    for n in 0..REST_STEPS_MAX {
        world.acts(acts);
        acts.retain(|act| {
            !act.is_new()
                && !matches!(act, Act::Renew { .. })
                && !matches!(act, Act::MarkDown { i } if !world.nodes[*i].run)
        });
        if (n % 8 == 0 || acts.is_empty()) && world.is_over() {
            world.cover("clean end");
            return world.check_end();
        }
        if acts.is_empty() {
            break;
        }
        let act = acts[rng.usize(0..acts.len())].with(rng.u32(..));
        trace.push(act);
        world.step(act)?;
    }
    Err(format!("progress: no rest: {}; possible: {acts:?}", world.standing()))
}

fn guarded(f: impl FnOnce() -> Check) -> Check {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("assertion: {}", text.unwrap_or_default()))
    })
}

/// Walks until an invariant breaks, or `go_on` says no. With `safety` a broken `progress` counts
/// only if nothing else breaks.
pub fn walk(
    rules: Rules,
    focus: Focus,
    seeds: impl Iterator<Item = u64>,
    safety: bool,
    mut go_on: impl FnMut(&Run) -> bool,
) -> Run {
    let mut run = Run::default();
    for seed in seeds {
        if !go_on(&run) {
            break;
        }
        let mut walker = Walker::new(rules, focus.bounds(seed), seed);
        let result = guarded(|| walker.go());
        (run.walks, run.steps) = (run.walks + 1, run.steps + walker.trace.len() as u64);
        std::mem::take(&mut walker.world.covered)
            .into_iter()
            .for_each(|(what, n)| *run.covered.entry(what).or_default() += n);
        let Err(what) = result else { continue };
        let stuck = safety && what.starts_with("progress");
        if !stuck || run.found.is_none() {
            run.found = Some(Found { what, seed, trace: walker.trace });
        }
        if !stuck {
            break;
        }
    }
    run
}

/// Does the steps that are possible, in order, then comes to rest. Gives what broke, the steps
/// taken, and the notes.
fn replay(
    rules: Rules,
    bounds: Bounds,
    trace: &[Act],
    notes: bool,
) -> (Check, Vec<Act>, Vec<String>) {
    let mut world = World::new(rules, bounds);
    let (mut taken, mut acts) = (Vec::new(), Vec::new());
    let result = guarded(|| {
        begin(&mut world)?;
        world.notes = notes.then(Vec::new);
        for (n, &act) in trace.iter().enumerate() {
            world.acts(&mut acts);
            if !acts.iter().any(|possible| possible.is_like(act)) {
                continue;
            }
            taken.push(act);
            world.note(|| format!("{n:4} {act}"));
            world.step(act)?;
        }
        world.note(|| "     the faults end, and everything may come to rest".to_owned());
        rest(&mut world, &mut Rng::with_seed(1), &mut acts, &mut Vec::new())
    });
    (result, taken, world.notes.unwrap_or_default())
}

/// Does the history of a broken walk, step by step as far as they are possible, break an invariant
/// under these rules?
pub fn breaks_again(rules: Rules, focus: Focus, found: &Found) -> bool {
    replay(rules, focus.bounds(found.seed), &found.trace, false).0.is_err()
}

fn name(what: &str) -> &str {
    what.split(':').next().unwrap_or("")
}

/// Removes steps while the same invariant still breaks, and none does under the rules `whole`;
/// gives the shortest trace found and its story.
pub fn shrink(rules: Rules, whole: &[Rules], focus: Focus, found: &Found) -> (Found, Vec<String>) {
    let bounds = focus.bounds(found.seed);
    let broken = |trace: &[Act]| {
        let (result, taken, _) = replay(rules, bounds, trace, false);
        let what = result.err().filter(|what| name(what) == name(&found.what))?;
        let holds = |rules: &Rules| replay(*rules, bounds, trace, false).0.is_ok();
        whole.iter().all(holds).then_some((what, taken))
    };
    let (mut what, mut trace) = match broken(&found.trace) {
        Some(whole) => whole,
        None => return (found.clone(), vec!["it does not break again in a replay".to_owned()]),
    };
    let mut size = trace.len().div_ceil(2);
    while size > 0 {
        let (mut at, before) = (0, trace.len());
        while at < trace.len() {
            let shorter = [&trace[..at], &trace[(at + size).min(trace.len())..]].concat();
            match broken(&shorter) {
                Some((w, t)) if t.len() < trace.len() => (what, trace) = (w, t),
                _ => at += size,
            }
        }
        size = if size == 1 && trace.len() < before { 1 } else { size / 2 };
    }
    let (_, _, notes) = replay(rules, bounds, &trace, true);
    (Found { what, seed: found.seed, trace }, notes)
}
