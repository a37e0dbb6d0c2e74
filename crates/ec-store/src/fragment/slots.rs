//! Where the slots of one fragment lie in its file.
//!
//! Contract: pure bookkeeping. A fragment is cut into *slots* of one size; what is left behind the
//! last whole one never moves. A file has *places* for them: as many as slots, in which each lies
//! at first, and more behind those, so that what overwrites whole slots can be put elsewhere while
//! readers still see the old bytes. A place counts as taken as long as a slot lies there, or a
//! record in the journal names it: a restart compares the bytes there with the record's checksums.
//! No two slots lie in one place, whatever the file says.

use super::SECTOR_BYTES;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a slot, at most.
pub(super) const SLOT_BYTES_MAX: u32 = 1 << 20;

/// Slots of a fragment, at most: each place has a number of two bytes, and 0 is another's. A
/// fragment with more has none.
const COUNT_MAX: u16 = u16::MAX / 2;

/// Can slots be of this size?
pub fn is_slot_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (SECTOR_BYTES as u32..=SLOT_BYTES_MAX).contains(&bytes)
}

/// Places that a record names for slots one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement<'a> {
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// The place of each.
    pub places: &'a [u16],
}

impl Placement<'_> {
    /// Bytes of all of them.
    pub fn bytes(self) -> u64 {
        u64::from(self.slot_bytes) * self.places.len() as u64
    }
}

/// How many places are looked at together for a free one: the counters of two cache lines.
const PASSED_AT_ONCE: usize = 64;

/// A part of the file's space for data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// A range of bytes within places one behind the other, the first place counted from 0.
    Places {
        /// The first byte, from the beginning of place 0 on.
        at: u64,
        /// Bytes.
        length: u64,
    },
    /// A range of the fragment that lies where it belongs.
    Rest {
        /// In bytes of the fragment.
        at: u64,
        /// Bytes.
        length: u64,
    },
}

/// The pieces of a range.
pub(super) type Pieces = SmallVec<[Piece; 2]>;

/// See the module.
#[derive(Debug)]
pub(super) struct Slots {
    fragment_bytes: u64,
    /// Bytes of each; 0: there are none.
    slot_bytes: u64,
    count: u16,
    /// Places of the file, those of its own for each slot included.
    places: u16,
    /// By slot its place; empty as long as each is in its own.
    at: Vec<u16>,
    /// By place who counts on it: a slot, and records. Empty until a record does.
    users: Vec<u16>,
    /// Slots that were found where a record in the journal is to bring them, each with that
    /// record's position: what older records did to them is not to be repeated.
    ahead: BTreeMap<u16, u64>,
    /// Where the search for free places goes on.
    cursor: u16,
    is_dirty: bool,
}

impl Slots {
    /// All in their own places. `slot_bytes`: 0 or a power of two.
    pub fn new(slot_bytes: u32, fragment_bytes: u64) -> Self {
        let slot_bytes = u64::from(slot_bytes);
        let count = fragment_bytes
            .checked_div(slot_bytes)
            .filter(|&count| count <= u64::from(COUNT_MAX))
            .unwrap_or(0) as u16;
        Self {
            fragment_bytes,
            slot_bytes: if count == 0 { 0 } else { slot_bytes },
            count,
            places: count,
            at: Vec::new(),
            users: Vec::new(),
            ahead: BTreeMap::new(),
            cursor: 0,
            is_dirty: false,
        }
    }

    /// Bytes of the map in a file.
    pub fn map_bytes(&self) -> u64 {
        u64::from(self.count) * 2
    }

    /// Bytes of a slot and number of places, if a file has to say so.
    pub fn layout(&self) -> Option<(u32, u16)> {
        (self.places > self.count).then_some((self.slot_bytes as u32, self.places))
    }

    /// How many slots there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Bytes of a slot; 0: there are none.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Was anything moved since it was last asked?
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.is_dirty)
    }

    /// The map did not reach the file: it is still to be written.
    pub fn set_dirty(&mut self) {
        self.is_dirty = true;
    }

    // ---- on disk

    /// The map as a file holds it: for each slot 0 if it is in its own place, else its place plus
    /// 1; little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let entry =
            |(slot, place): (usize, &u16)| if slot == usize::from(*place) { 0 } else { place + 1 };
        self.at.iter().enumerate().flat_map(|entry_of| entry(entry_of).to_le_bytes()).collect()
    }

    /// Takes over a map. An entry that cannot be, or a place that another slot has, is none of this
    /// fragment's bytes: that slot gets a place of its own, whose bytes fail its checksums until a
    /// record in the journal, or another shard, gives them back.
    pub fn decode(&mut self, places: u16, map: &[u8]) {
        self.places = places.max(self.count);
        let mut taken = vec![false; usize::from(self.places)];
        let mut homeless = Vec::new();
        self.at = vec![0; usize::from(self.count)];
        for (slot, entry) in map.chunks_exact(2).take(self.at.len()).enumerate() {
            let entry = u16::from_le_bytes([entry[0], entry[1]]);
            let place = if entry == 0 { slot } else { usize::from(entry - 1) };
            match taken.get_mut(place) {
                Some(taken) if !*taken => {
                    *taken = true;
                    self.at[slot] = place as u16;
                }
                _ => homeless.push(slot),
            }
        }
        let mut free =
            taken.iter().enumerate().filter(|(_, taken)| !**taken).map(|(place, _)| place as u16);
        for slot in homeless {
            self.at[slot] = free.next().expect("as many places as slots, or more");
            self.is_dirty = true;
        }
    }

    // ---- look-up

    /// The slots that a range consists of; `None` if it does not consist of whole ones.
    pub fn whole(&self, offset: u64, length: u64) -> Option<Range<u16>> {
        let end = offset.checked_add(length)?;
        let is_whole = self.slot_bytes > 0
            && length > 0
            && offset.is_multiple_of(self.slot_bytes)
            && length.is_multiple_of(self.slot_bytes)
            && end <= u64::from(self.count) * self.slot_bytes;
        is_whole.then(|| (offset / self.slot_bytes) as u16..(end / self.slot_bytes) as u16)
    }

    fn place_of(&self, slot: u16) -> u16 {
        self.at.get(usize::from(slot)).copied().unwrap_or(slot)
    }

    /// Where a range of the fragment lies, in order.
    pub fn pieces(&self, range: Range<u64>) -> Pieces {
        let slotted = u64::from(self.count) * self.slot_bytes;
        let mut pieces = Pieces::new();
        if self.at.is_empty() {
            let end = range.end.min(slotted);
            push_places(&mut pieces, range.start, end.saturating_sub(range.start));
        } else {
            let mut at = range.start;
            while at < range.end.min(slotted) {
                let (slot, within) = (at / self.slot_bytes, at % self.slot_bytes);
                let length = (self.slot_bytes - within).min(range.end - at);
                push_places(
                    &mut pieces,
                    u64::from(self.place_of(slot as u16)) * self.slot_bytes + within,
                    length,
                );
                at += length;
            }
        }
        let rest = range.start.max(slotted)..range.end;
        if !rest.is_empty() {
            pieces.push(Piece::Rest { at: rest.start, length: rest.end - rest.start });
        }
        pieces
    }

    /// The slots from `offset` on that a record names places for; `None` if it cannot. A setting
    /// may have changed since the record was made: slots of which nothing else is known are cut as
    /// it has them.
    pub fn named(&mut self, offset: u64, placement: Placement<'_>) -> Option<Range<u16>> {
        self.cut_as(placement);
        let slots = self
            .whole(offset, placement.bytes())
            .filter(|slots| slots.len() == placement.places.len());
        slots.filter(|_| self.can_have(placement))
    }

    fn cut_as(&mut self, placement: Placement<'_>) {
        let is_untouched = self.users.is_empty() && self.at.is_empty() && self.places == self.count;
        if is_untouched
            && is_slot_size(placement.slot_bytes)
            && u64::from(placement.slot_bytes) != self.slot_bytes
        {
            *self = Self::new(placement.slot_bytes, self.fragment_bytes);
        }
    }

    /// Do all these places exist, or could they?
    fn can_have(&self, placement: Placement<'_>) -> bool {
        let places_max = self.places_max();
        let is_cut_so = self.slot_bytes > 0 && u64::from(placement.slot_bytes) == self.slot_bytes;
        is_cut_so && placement.places.iter().all(|&place| place < places_max)
    }

    /// A range of bytes, from `skip` on, within the places that a record names; shorter if it has
    /// not so many.
    pub fn pieces_in(&mut self, placement: Placement<'_>, skip: u64, length: u64) -> Pieces {
        self.cut_as(placement);
        let mut pieces = Pieces::new();
        if !self.can_have(placement) {
            return pieces;
        }
        let (mut at, end) = (skip, skip + length);
        while at < end {
            let within = at % self.slot_bytes;
            let Some(&place) = placement.places.get((at / self.slot_bytes) as usize) else { break };
            let part = (self.slot_bytes - within).min(end - at);
            push_places(&mut pieces, u64::from(place) * self.slot_bytes + within, part);
            at += part;
        }
        pieces
    }

    /// The parts of a range that a record at this position of the journal is to change: all but
    /// what the file shows as a later one left it.
    pub fn behind(&self, range: Range<u64>, lsn: u64) -> SmallVec<[Range<u64>; 1]> {
        let mut parts = SmallVec::new();
        let mut start = range.start;
        let first = range
            .start
            .checked_div(self.slot_bytes)
            .map_or(0, |slot| u16::try_from(slot).unwrap_or(u16::MAX));
        let later = self.ahead.range(first..).filter(|(_, by)| **by > lsn);
        for slot in later.map(|(&slot, _)| u64::from(slot) * self.slot_bytes) {
            if slot >= range.end {
                break;
            }
            if slot > start {
                parts.push(start..slot);
            }
            start = slot + self.slot_bytes;
        }
        if start < range.end {
            parts.push(start..range.end);
        }
        parts
    }

    // ---- changes

    /// Places that the file may have: twice as many as slots.
    fn places_max(&self) -> u16 {
        self.count * 2
    }

    fn count_users(&mut self) {
        if self.users.is_empty() {
            self.users = vec![0; usize::from(self.places)];
            for slot in 0..self.count {
                let place = self.place_of(slot);
                self.users[usize::from(place)] += 1;
            }
        }
    }

    /// Takes free places for a record, one behind the other if there are such; `None`: there are
    /// not enough. The file grows only where there are not enough: space that is taken anew costs
    /// more than space that is used again.
    pub fn take(&mut self, wanted: usize) -> Option<Box<[u16]>> {
        self.count_users();
        let found: Box<[u16]> = match self.free_run(wanted) {
            Some(first) => (first..first + wanted as u16).collect(),
            None => {
                let free = self.free_in(0..self.places);
                // Behind them those that the file may still get.
                let some: Box<[u16]> =
                    free.chain(self.places..self.places_max()).take(wanted).collect();
                (some.len() == wanted).then_some(some)?
            }
        };
        self.cursor = found.last().map_or(0, |last| last + 1);
        self.keep(&found);
        Some(found)
    }

    fn free_run(&self, wanted: usize) -> Option<u16> {
        let find = |range: Range<u16>| {
            let (mut first, mut run) = (0, 0);
            for place in self.free_in(range) {
                if run == 0 || usize::from(first) + run != usize::from(place) {
                    (first, run) = (place, 0);
                }
                run += 1;
                if run == wanted {
                    return Some(first);
                }
            }
            None
        };
        find(self.cursor.min(self.places)..self.places).or_else(|| find(0..self.places))
    }

    /// The places of a range that nobody counts on. Most are taken: those are passed over many at a
    /// time.
    fn free_in(&self, range: Range<u16>) -> impl Iterator<Item = u16> {
        let users = &self.users[usize::from(range.start)..usize::from(range.end)];
        // Without a way out of the loop, it is done for many at once.
        let has_free =
            |part: &[u16]| part.iter().fold(false, |has_free, &users| has_free | (users == 0));
        // Numbers come second, so that none beyond the last is made.
        let parts = users.chunks(PASSED_AT_ONCE).zip((range.start..).step_by(PASSED_AT_ONCE));
        parts.filter(move |(part, _)| has_free(part)).flat_map(|(part, first)| {
            part.iter().zip(first..).filter(|(users, _)| **users == 0).map(|(_, place)| place)
        })
    }

    fn grow(&mut self, places: u16) {
        self.places = self.places.max(places);
        if !self.users.is_empty() {
            self.users.resize(usize::from(self.places), 0);
        }
    }

    /// A record names these places, each of which can be ([`Slots::can_have`]).
    pub fn keep(&mut self, places: &[u16]) {
        self.count_users();
        places.iter().for_each(|&place| self.use_place(place));
    }

    /// A record that is in the journal when it is read again names these places for slots. Another
    /// slot that the file has in one of them has none of its bytes there, and gets a place that
    /// nobody counts on. `false`, with nothing done: there is none.
    pub fn keep_found(&mut self, slots: Range<u16>, places: &[u16], lsn: u64) -> bool {
        self.count_users();
        let mut moved: Vec<(u16, u16, u16)> = Vec::new();
        for (slot, &place) in slots.clone().zip(places) {
            let lies_there = |other: &u16| *other != slot && self.place_of(*other) == place;
            let Some(other) = (0..self.count).find(lies_there) else { continue };
            let is_free = |free: &u16| {
                let is_used = self.users.get(usize::from(*free)).is_some_and(|users| *users > 0);
                !is_used && !places.contains(free) && moved.iter().all(|(_, _, to)| to != free)
            };
            let Some(to) = (0..self.places_max()).find(is_free) else { return false };
            moved.push((other, place, to));
        }
        for (other, from, to) in moved {
            self.use_place(to);
            self.users[usize::from(from)] -= 1;
            self.set_place(other, to);
        }
        self.keep(places);
        for (slot, &place) in slots.zip(places) {
            if self.place_of(slot) == place {
                self.ahead.insert(slot, lsn);
            }
        }
        true
    }

    /// The record that named these places is out of the journal.
    pub fn let_go(&mut self, places: &[u16]) {
        for &place in places {
            if let Some(users) = self.users.get_mut(usize::from(place)) {
                *users = users.saturating_sub(1);
            }
        }
    }

    /// Slots lie in these places from now on, in which no others do. Gives the places that they
    /// left; they count as taken.
    pub fn point(&mut self, slots: Range<u16>, places: &[u16]) -> Vec<u16> {
        self.count_users();
        let mut left = Vec::new();
        for (slot, &place) in slots.zip(places) {
            self.ahead.remove(&slot);
            let old = self.place_of(slot);
            if old != place {
                self.use_place(place);
                self.set_place(slot, place);
                left.push(old);
            }
        }
        left
    }

    fn set_place(&mut self, slot: u16, place: u16) {
        if self.at.is_empty() {
            self.at = (0..self.count).collect();
        }
        self.at[usize::from(slot)] = place;
        self.is_dirty = true;
    }

    /// One more counts on a place.
    fn use_place(&mut self, place: u16) {
        self.grow(place + 1);
        self.users[usize::from(place)] += 1;
    }

    /// Every slot lies in its own place again: the file has no data. What records name stays named.
    pub fn reset(&mut self) {
        self.count_users();
        for slot in 0..self.count {
            let old = usize::from(self.place_of(slot));
            self.users[old] = self.users[old].saturating_sub(1);
            self.users[usize::from(slot)] += 1;
        }
        self.is_dirty |= !self.at.is_empty();
        self.at.clear();
        self.ahead.clear();
    }

    /// Does nobody count on any of these places?
    pub fn is_free(&self, piece: Piece) -> bool {
        let Piece::Places { at, length } = piece else { return false };
        let mut places = at / self.slot_bytes..(at + length) / self.slot_bytes;
        places.all(|place| self.users.get(place as usize).is_some_and(|users| *users == 0))
    }

    /// Runs of places that nobody counts on, to be given back to the file system.
    pub fn free(&mut self) -> Vec<Piece> {
        if self.layout().is_none() {
            return Vec::new();
        }
        self.count_users();
        let mut pieces = Pieces::new();
        for place in self.free_in(0..self.places) {
            push_places(&mut pieces, u64::from(place) * self.slot_bytes, self.slot_bytes);
        }
        pieces.into_vec()
    }
}

/// Appends a range within places, to the piece before it where it goes on there.
fn push_places(pieces: &mut Pieces, at: u64, length: u64) {
    match pieces.last_mut() {
        Some(Piece::Places { at: before, length: long }) if *before + *long == at => {
            *long += length
        }
        _ if length == 0 => {}
        _ => pieces.push(Piece::Places { at, length }),
    }
}

#[cfg(test)]
mod tests;
