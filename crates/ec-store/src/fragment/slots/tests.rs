//! Slots against records and bytes that are looked at one by one.

use super::*;
use proptest::prelude::*;

/// Bytes of a slot: two sectors.
const SLOT: u64 = 1024;

/// A record in the journal.
#[derive(Clone, Debug)]
struct Named {
    lsn: u64,
    slots: Range<u16>,
    places: Box<[u16]>,
    /// Places that its slots have left.
    left: Vec<u16>,
    /// Slots may still be pointed there.
    is_due: bool,
}

/// Numbers choose among what there is when the step is taken.
#[derive(Clone, Debug)]
enum Step {
    Take { first: u16, count: u16 },
    Point(usize),
    LetGo(usize),
    Reset,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<u16>(), prop_oneof![1u16..4, 1u16..24]).prop_map(|(first, count)| Step::Take { first, count }),
        5 => any::<usize>().prop_map(Step::Point),
        4 => any::<usize>().prop_map(Step::LetGo),
        1 => Just(Step::Reset),
        2 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Slots, and what is known of them from outside.
struct Model {
    slots: Slots,
    bytes: u64,
    at: Vec<u16>,
    named: Vec<Named>,
    lsn: u64,
}

impl Model {
    fn new(bytes: u64) -> Self {
        let slots = Slots::new(SLOT as u32, bytes);
        let at = (0..slots.count()).collect();
        Self { slots, bytes, at, named: Vec::new(), lsn: 0 }
    }

    fn is_used(&self, place: u16) -> bool {
        self.at.contains(&place)
            || self
                .named
                .iter()
                .any(|named| named.places.contains(&place) || named.left.contains(&place))
    }

    fn take(&mut self, first: u16, count: u16) {
        let slots = self.slots.count();
        let first = first % slots;
        let count = count.min(slots - first);
        let free = (0..slots * 2).filter(|&place| !self.is_used(place)).count();
        let Some(places) = self.slots.take(usize::from(count)) else {
            assert!(free < usize::from(count), "{free} places are free, and {count} are not found");
            return;
        };
        assert_eq!(places.len(), usize::from(count));
        for (n, place) in places.iter().enumerate() {
            assert!(
                !self.is_used(*place) && !places[..n].contains(place),
                "place {place} is taken twice"
            );
            assert!(*place < slots * 2, "place {place} of a file with {slots} slots");
        }
        self.lsn += 1;
        self.named.push(Named {
            lsn: self.lsn,
            slots: first..first + count,
            places,
            left: Vec::new(),
            is_due: true,
        });
    }

    fn point(&mut self, which: usize) {
        let mut due: Vec<_> = self.named.iter_mut().filter(|named| named.is_due).collect();
        let count = due.len().max(1);
        let Some(named) = due.get_mut(which % count) else { return };
        let left = self.slots.point(named.slots.clone(), &named.places);
        named.left.extend(left);
        for (slot, place) in named.slots.clone().zip(&named.places) {
            self.at[usize::from(slot)] = *place;
        }
    }

    fn let_go(&mut self, which: usize) {
        if self.named.is_empty() {
            return;
        }
        let named = self.named.remove(which % self.named.len());
        self.slots.let_go(&named.places);
        self.slots.let_go(&named.left);
    }

    /// All bytes are taken away, once no record names a place any more.
    fn reset(&mut self) {
        while !self.named.is_empty() {
            self.let_go(0);
        }
        self.slots.reset();
        self.at = (0..self.slots.count()).collect();
    }

    /// The file is opened again, and the journal read.
    fn restart(&mut self) {
        let mut map = self.slots.encode();
        map.resize(self.slots.map_bytes() as usize, 0);
        let layout = self.slots.layout();
        self.slots = Slots::new(SLOT as u32, self.bytes);
        if let Some((slot_bytes, places)) = layout {
            assert_eq!(u64::from(slot_bytes), SLOT);
            self.slots.decode(places, &map);
            assert!(!self.slots.take_dirty(), "a map that the file was given is as it should be");
        }
        for named in &mut self.named {
            named.left.clear();
            let placement = Placement { slot_bytes: SLOT as u32, places: &named.places };
            let offset = u64::from(named.slots.start) * SLOT;
            assert_eq!(self.slots.named(offset, placement), Some(named.slots.clone()));
            assert!(self.slots.keep_found(named.slots.clone(), &named.places, named.lsn));
        }
    }

    fn check(&mut self) {
        let mut taken = std::collections::BTreeSet::new();
        for (slot, place) in self.at.iter().enumerate() {
            assert_eq!(self.slots.place_of(slot as u16), *place, "slot {slot}");
            assert!(taken.insert(*place), "two slots lie in place {place}");
        }
        let mut free = self.slots.free().into_iter().flat_map(|piece| match piece {
            Piece::Places { at, length } => at / SLOT..(at + length) / SLOT,
            Piece::Rest { .. } => panic!("the rest is never free"),
        });
        assert!(
            free.all(|place| !self.is_used(place as u16)),
            "what somebody counts on is not free"
        );
        check_pieces(&self.slots, self.bytes);
    }
}

/// Bytes in a place, or in the rest.
type Run = (bool, Range<u64>);

fn run_of(piece: &Piece) -> Run {
    match *piece {
        Piece::Places { at, length } => (true, at..at + length),
        Piece::Rest { at, length } => (false, at..at + length),
    }
}

/// What a range has of the bytes of one slot, which lie in a place of this number.
fn in_place(place: u16, slot: u64, slot_bytes: u64, range: &Range<u64>) -> Run {
    let (start, place) = (slot * slot_bytes, u64::from(place) * slot_bytes);
    let part = range.start.max(start)..range.end.min(start + slot_bytes);
    (
        true,
        if part.is_empty() { 0..0 } else { place + part.start - start..place + part.end - start },
    )
}

/// The same bytes in the same order in as few runs as possible: equal if every byte lies where the
/// other's does.
fn joined(runs: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for (is_place, bytes) in runs.filter(|(_, bytes)| !bytes.is_empty()) {
        match all.last_mut() {
            Some((kind, last)) if *kind == is_place && last.end == bytes.start => {
                last.end = bytes.end
            }
            _ => all.push((is_place, bytes)),
        }
    }
    all
}

fn check_pieces(slots: &Slots, bytes: u64) {
    let slotted = u64::from(slots.count()) * SLOT;
    for range in [
        0..bytes,
        0..0,
        700..700,
        512..bytes - 512,
        SLOT..3 * SLOT,
        slotted - 1..bytes,
        slotted..bytes,
    ] {
        let slot = |slot: u16| in_place(slots.place_of(slot), u64::from(slot), SLOT, &range);
        let rest = (false, range.start.max(slotted)..range.end);
        let pieces = slots.pieces(range.clone());
        let expected = joined((0..slots.count()).map(slot).chain([rest]));
        assert_eq!(joined(pieces.iter().map(run_of)), expected, "{range:?}");
    }
}

proptest! {
    #[test]
    fn no_two_slots_lie_in_one_place_and_no_place_in_use_is_taken(
        steps in steps(),
        count in 4u64..20,
        rest in prop_oneof![Just(0), Just(512u64)],
    ) {
        let mut model = Model::new(count * SLOT + rest);
        for step in steps {
            match step {
                Step::Take { first, count } => model.take(first, count),
                Step::Point(which) => model.point(which),
                Step::LetGo(which) => model.let_go(which),
                Step::Reset => model.reset(),
                Step::Restart => model.restart(),
            }
            model.check();
        }
        // Nothing is lost for good: with no records left, all but the slots' own places are free.
        while !model.named.is_empty() {
            model.let_go(0);
        }
        prop_assert!(model.slots.take(usize::from(model.slots.count() / 2)).is_some());
    }

    #[test]
    fn any_map_gives_each_slot_a_place_of_its_own(
        count in 1u16..200,
        more in 0u16..100,
        entries in proptest::collection::vec(prop_oneof![0u16..8, 0u16..320, any::<u16>()], 200),
    ) {
        let places = count + more;
        let new = || Slots::new(SLOT as u32, u64::from(count) * SLOT);
        let mut slots = new();
        let map: Vec<u8> = entries.iter().take(usize::from(count)).flat_map(|entry| entry.to_le_bytes()).collect();
        slots.decode(places, &map);
        let mut found: Vec<u16> = (0..count).map(|slot| slots.place_of(slot)).collect();
        let mut again = new();
        again.decode(places, &slots.encode());
        prop_assert_eq!((0..count).map(|slot| again.place_of(slot)).collect::<Vec<_>>(), found.clone());
        prop_assert!(!again.take_dirty(), "what was mended stays so");
        let is_possible = |entry: &&u16| usize::from(**entry) <= usize::from(places);
        if entries.iter().take(usize::from(count)).all(|entry| is_possible(&entry)) && !slots.take_dirty() {
            prop_assert_eq!(slots.encode(), map.chunks_exact(2).enumerate().flat_map(|(slot, entry)| {
                // Its own place has two names.
                let is_own = usize::from(u16::from_le_bytes([entry[0], entry[1]])) == slot + 1;
                if is_own { [0, 0] } else { [entry[0], entry[1]] }
            }).collect::<Vec<u8>>());
        }
        found.sort_unstable();
        prop_assert!(found.windows(2).all(|two| two[0] < two[1]), "two slots lie in one place");
        prop_assert!(found.iter().all(|&place| place < places));
        // Nor are such places given to others.
        if let Some(taken) = slots.take(1) {
            prop_assert!(!found.contains(&taken[0]));
        }
    }

    #[test]
    fn older_records_change_all_but_what_later_ones_left(
        ahead in proptest::collection::btree_map(0u16..12, 1u64..9, 0..8),
        start in 0u64..28,
        sectors in 0u64..28,
        lsn in 0u64..10,
    ) {
        let mut slots = Slots::new(SLOT as u32, 12 * SLOT + 4 * SECTOR_BYTES);
        for (&slot, &lsn) in &ahead {
            assert!(slots.keep_found(slot..slot + 1, &[slot], lsn));
        }
        let sectors = start..(start + sectors).min(28);
        let parts = slots.behind(sectors.start * SECTOR_BYTES..sectors.end * SECTOR_BYTES, lsn);
        prop_assert!(parts.windows(2).all(|two| two[0].end < two[1].start), "{parts:?}");
        prop_assert!(parts.iter().all(|part| !part.is_empty()));
        for sector in 0..40 {
            let is_later = ahead.get(&((sector * SECTOR_BYTES / SLOT) as u16)).is_some_and(|by| *by > lsn);
            let is_changed = parts.iter().any(|part| part.contains(&(sector * SECTOR_BYTES)));
            prop_assert_eq!(is_changed, sectors.contains(&sector) && !is_later, "sector {}", sector);
        }
    }

    #[test]
    fn places_that_cannot_be_have_no_pieces(
        slot_bytes in prop_oneof![Just(0u32), Just(512), Just(1024), Just(2048), Just(1 << 20), any::<u32>()],
        own_bytes in prop_oneof![Just(0u32), Just(1024)],
        places in proptest::collection::vec(prop_oneof![0u16..24, any::<u16>()], 0..6),
        skip in 0u64..5000,
        length in 0u64..5000,
        is_touched in any::<bool>(),
    ) {
        let mut slots = Slots::new(own_bytes, 16 * SLOT);
        if is_touched {
            slots.take(1);
        }
        let pieces = slots.pieces_in(Placement { slot_bytes, places: &places }, skip, length);
        let runs = joined(pieces.iter().map(run_of));
        let is_cut_so = slots.slot_bytes() > 0 && slots.slot_bytes() == u64::from(slot_bytes);
        let places_max = u64::from(slots.count()) * 2;
        if !is_cut_so || places.iter().any(|&place| u64::from(place) >= places_max) {
            prop_assert_eq!(runs, vec![]);
        } else {
            let slot = u64::from(slot_bytes);
            let end = (skip + length).min(slot * places.len() as u64);
            let expected = (0..).zip(&places).map(|(at, place)| in_place(*place, at, slot, &(skip..end)));
            prop_assert_eq!(runs, joined(expected));
        }
        prop_assert!(!is_touched || own_bytes == 0 || slots.slot_bytes() == SLOT, "slots in use are not cut anew");
    }
}

#[test]
fn a_record_older_than_a_setting_is_found_where_it_was_put() {
    for own in [0, 512, 2048, 1 << 20] {
        let mut slots = Slots::new(own, 16 * SLOT);
        let placement = Placement { slot_bytes: SLOT as u32, places: &[20, 3] };
        assert_eq!(slots.named(2 * SLOT, placement), Some(2..4), "slots of {own} bytes");
        assert!(slots.keep_found(2..4, &[20, 3], 1));
        slots.point(2..4, &[20, 3]);
        assert_eq!(slots.layout(), Some((SLOT as u32, 21)));
        assert_eq!(slots.named(0, Placement { slot_bytes: 512, places: &[1] }), None);
    }
}

/// As many slots as a place has numbers for.
#[test]
fn every_slot_of_the_largest_fragment_can_be_named() {
    for count in [3, 1024, u64::from(COUNT_MAX)] {
        let mut slots = Slots::new(512, count * 512);
        let last = u16::try_from(count - 1).unwrap();
        let places = [slots.place_of(last)];
        slots.keep(&places);
        let placement = Placement { slot_bytes: 512, places: &places };
        assert_eq!(
            slots.named(u64::from(last) * 512, placement),
            Some(last..last + 1),
            "{count} slots"
        );
        assert!(slots.take(count as usize - 1).is_some_and(|places| !places.contains(&u16::MAX)));
        let end = slots.places_max() - 1;
        slots.keep(&[end]);
        slots.let_go(&[end]);
        slots.cursor = end - 1;
        assert_eq!(slots.free_in(slots.cursor..end + 1).last(), Some(end), "{count} slots");
    }
    assert_eq!(
        Slots::new(512, (u64::from(COUNT_MAX) + 1) * 512).slot_bytes(),
        0,
        "no numbers for all places"
    );
}

#[test]
fn a_slot_that_a_damaged_map_has_in_a_named_place_leaves_it() {
    let mut slots = Slots::new(SLOT as u32, 4 * SLOT);
    assert!(slots.keep_found(1..2, &[0], 1), "slot 0 lies there, by the map");
    slots.point(1..2, &[0]);
    let mut places: Vec<u16> = (0..4).map(|slot| slots.place_of(slot)).collect();
    assert_eq!(places[1], 0);
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 4, "no two in one");
}

proptest! {
    /// Passing over places that are taken misses no free one.
    #[test]
    fn free_places_are_those_that_nobody_counts_on(
        taken in prop::collection::vec(prop::bool::weighted(0.97), 1..400),
        from in 0usize..400,
        wanted in 1usize..4,
    ) {
        let mut slots = Slots::new(SLOT as u32, taken.len() as u64 * SLOT);
        slots.users = taken.iter().map(|&taken| u16::from(taken)).collect();
        let from = from.min(taken.len());
        let free: Vec<u16> = (from as u16..taken.len() as u16).filter(|&place| !taken[usize::from(place)]).collect();
        prop_assert_eq!(slots.free_in(from as u16..taken.len() as u16).collect::<Vec<_>>(), free);
        let run = taken.windows(wanted).position(|some| some.iter().all(|&taken| !taken));
        prop_assert_eq!(slots.free_run(wanted), run.map(|first| first as u16));
    }
}
