use super::*;
use proptest::prelude::*;
use protocol::shard::space_taken;
use std::collections::VecDeque;

const MIB: u64 = 1 << 20;
const JOURNAL: u64 = 8 * MIB;

fn ratios() -> FullRatios {
    FullRatios { nearfull: 0.98, backfillfull: 0.99, full: 1.0 }
}

/// A disk, its cores, and sessions that write as fast as they may.
struct World {
    capacity: u64,
    used: u64,
    cores: Vec<Core>,
    /// By session, then core.
    sessions: Vec<Vec<Sender>>,
}

struct Core {
    space: DiskSpace,
    /// Fragment bytes of records taken and not in place.
    journal: VecDeque<u64>,
}

#[derive(Default)]
struct Sender {
    told: u64,
    /// Sent and not taken.
    way: VecDeque<u64>,
    /// What was taken, and what the acknowledgement says that is free.
    acks: VecDeque<(u64, u64)>,
}

impl Sender {
    fn on_the_way(&self) -> u64 {
        self.way
            .iter()
            .chain(self.acks.iter().map(|(bytes, _)| bytes))
            .map(|bytes| space_taken(*bytes))
            .sum()
    }
}

impl World {
    fn new(capacity: u64, cores: u16, sessions: usize) -> Self {
        let disk = DiskUse::new(cores);
        let core = |number| {
            let mut space = DiskSpace::new(disk.clone(), number, JOURNAL);
            space.set_sessions(sessions as u64);
            Core { space, journal: VecDeque::new() }
        };
        let senders = |_| (0..cores).map(|_| Sender::default()).collect();
        let mut world = Self {
            capacity,
            used: 0,
            cores: (0..cores).map(core).collect(),
            sessions: (0..sessions).map(senders).collect(),
        };
        (0..usize::from(cores)).for_each(|core| world.look_up(core));
        world
    }

    fn look_up(&mut self, core: usize) {
        let (capacity, free) = (self.capacity, self.capacity - self.used);
        let Core { space, journal } = &mut self.cores[core];
        let unplaced = journal.iter().map(|bytes| space_taken(*bytes)).sum();
        space.look_up(unplaced, || Ok::<_, ()>((capacity, free))).expect("the disk answers");
    }

    /// The session gets an acknowledgement, or asks.
    fn tell(&mut self, session: usize, core: usize) {
        let sender = &mut self.sessions[session][core];
        let acknowledged = sender.acks.pop_front().map(|(_, free)| free);
        sender.told = acknowledged.unwrap_or_else(|| self.cores[core].space.free(ratios()));
    }

    fn send(&mut self, session: usize, core: usize, bytes: u64) {
        let sender = &mut self.sessions[session][core];
        if sender.told > 0 && sender.on_the_way() + space_taken(bytes) <= SESSION_WINDOW_BYTES {
            sender.way.push_back(bytes);
        }
    }

    fn take(&mut self, session: usize, core: usize) {
        let Some(bytes) = self.sessions[session][core].way.pop_front() else { return };
        let Core { space, journal } = &mut self.cores[core];
        self.used += bytes;
        space.journalled(bytes, space_taken(bytes));
        journal.push_back(bytes);
        let free = space.free(ratios());
        self.sessions[session][core].acks.push_back((bytes, free));
    }

    fn place(&mut self, core: usize) {
        let Core { space, journal } = &mut self.cores[core];
        let Some(bytes) = journal.pop_front() else { return };
        self.used += space_taken(bytes);
        space.wrote(bytes);
    }

    fn finish(&mut self) {
        for core in 0..self.cores.len() {
            for session in 0..self.sessions.len() {
                while !self.sessions[session][core].way.is_empty() {
                    self.take(session, core);
                }
            }
            while !self.cores[core].journal.is_empty() {
                self.place(core);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    LookUp(usize),
    Tell(usize, usize),
    Send(usize, usize, u64),
    Take(usize, usize),
    Place(usize),
}

fn act(sessions: usize, cores: usize) -> impl Strategy<Value = Act> {
    let bytes = prop_oneof![512u64..4096, Just(512 * 1024), Just(2 * MIB)];
    prop_oneof![
        1 => (0..cores).prop_map(Act::LookUp),
        2 => (0..sessions, 0..cores).prop_map(|(s, c)| Act::Tell(s, c)),
        8 => (0..sessions, 0..cores, bytes).prop_map(|(s, c, bytes)| Act::Send(s, c, bytes)),
        6 => (0..sessions, 0..cores).prop_map(|(s, c)| Act::Take(s, c)),
        4 => (0..cores).prop_map(Act::Place),
    ]
}

proptest! {
    #[test]
    fn what_a_session_may_send_finds_its_place(
        sessions in 1usize..4,
        cores in 1u16..4,
        spare in 1u64..64 * MIB,
        acts in (1usize..4, 1usize..4).prop_flat_map(|(s, c)| prop::collection::vec(act(s, c), 1..600)),
    ) {
        let promised = u64::from(cores) * (JOURNAL + 2 * SESSION_WINDOW_BYTES * sessions as u64);
        let mut world = World::new(promised + spare, cores, sessions);
        for act in acts {
            let of = |session: usize, core: usize| (session % sessions, core % usize::from(cores));
            match act {
                Act::LookUp(core) => world.look_up(of(0, core).1),
                Act::Tell(s, c) => { let (s, c) = of(s, c); world.tell(s, c); }
                Act::Send(s, c, bytes) => { let (s, c) = of(s, c); world.send(s, c, bytes); }
                Act::Take(s, c) => { let (s, c) = of(s, c); world.take(s, c); }
                Act::Place(core) => world.place(of(0, core).1),
            }
        }
        world.finish();
        prop_assert!(world.used <= world.capacity, "{} of {} bytes are used", world.used, world.capacity);
    }
}

#[test]
fn a_disk_is_filled_up_to_what_is_promised() {
    let mut world = World::new(100 * MIB, 1, 1);
    let promised = JOURNAL + 2 * SESSION_WINDOW_BYTES;
    let mut sent = 0;
    loop {
        world.look_up(0);
        world.tell(0, 0);
        world.send(0, 0, 2 * MIB);
        if world.sessions[0][0].way.is_empty() {
            break;
        }
        sent += 1;
        world.take(0, 0);
        world.tell(0, 0);
        world.place(0);
        world.used -= 2 * MIB; // the journal is trimmed
    }
    let left = 100 * MIB - world.used;
    assert!(
        left.abs_diff(promised) < 3 * MIB && sent > 30,
        "{left} bytes are left after {sent} writes"
    );
}

#[test]
fn what_one_core_takes_the_others_know_at_once() {
    let disk = DiskUse::new(2);
    let mut cores = [0, 1].map(|core| DiskSpace::new(disk.clone(), core, 0));
    for core in &mut cores {
        core.look_up(0, || Ok::<_, ()>((1000 * MIB, 1000 * MIB))).expect("the disk answers");
    }
    cores[0].journalled(10 * MIB, 11 * MIB);
    cores[0].wrote(MIB);
    assert_eq!(cores.each_ref().map(|core| core.free(ratios()) / MIB), [978, 978]);
    // asked again, the disk tells of what was written; what is not in place is still to come
    cores[1].look_up(0, || Ok::<_, ()>((1000 * MIB, 989 * MIB))).expect("the disk answers");
    assert_eq!(cores[1].free(ratios()) / MIB, 978);
}

#[test]
fn what_is_taken_is_what_nobody_was_promised() {
    let disk = DiskUse::new(2);
    let mut cores = [0, 1].map(|core| DiskSpace::new(disk.clone(), core, 0));
    for core in &mut cores {
        core.set_sessions(1);
        core.look_up(0, || Ok::<_, ()>((1000 * MIB, 500 * MIB))).expect("the disk answers");
    }
    let free = cores[0].free(ratios());
    assert!(!cores[0].take(free + 1, ratios()) && cores[0].free(ratios()) == free);
    assert!(cores[0].take(free - MIB, ratios()));
    assert!(!cores[1].take(2 * MIB, ratios()), "the other core knows of it");
    assert!(cores[1].take(MIB, ratios()));
    assert_eq!(cores.each_ref().map(|core| core.free(ratios())), [0, 0]);
    assert!(!cores[0].take(u64::MAX, ratios()));
}
