//! Writes of whole slots to free places of the file, see the module `slots`.

use super::super::slots::Placement;
use super::super::{FragmentError, Mark, ReadMode, ReadOutcome, SECTOR_BYTES, sectors_of};
use super::{FIRST_WRITE_BYTES, FragmentFile};
use crate::medium::Extent;

/// Bytes of a slot, and the places taken for slots one behind the other.
pub type TakenPlaces = (u32, Box<[u16]>);

impl FragmentFile {
    /// Writes the bytes of whole slots into free places, and gives the bytes of a slot, and the
    /// places; readers see the old bytes until [`FragmentFile::point`], and the places count as
    /// taken until [`FragmentFile::let_go`]. `None`, with nothing done, if these are no whole slots
    /// or there are not enough places.
    ///
    /// # Errors
    /// `Full` and `Io`: nothing visible has changed.
    pub fn place(&self, offset: u64, bytes: &[u8]) -> Result<Option<TakenPlaces>, FragmentError> {
        let length = bytes.len() as u64;
        sectors_of(self.key, self.profile, offset, length)?;
        let mut state = self.state.lock();
        let slots = state.slots.whole(offset, length).filter(|_| self.places_writes);
        let Some(places) = slots.and_then(|slots| state.slots.take(slots.len())) else {
            return Ok(None);
        };
        self.changed(bytes.len());
        let slot_bytes = state.slots.slot_bytes() as u32;
        let pieces = state.slots.pieces_in(Placement { slot_bytes, places: &places }, 0, length);
        if let Err((_, error)) =
            self.write_ranges(&self.ranges(&state.slots, &pieces), bytes, FIRST_WRITE_BYTES)
        {
            state.slots.let_go(&places);
            return Err(self.io(error));
        }
        Ok(Some((slot_bytes, places)))
    }

    /// A record at position `lsn` that was read from the journal names these places for whole
    /// slots: they count as taken, as by [`FragmentFile::place`], slots that lie there already are
    /// kept from older records' changes, and others have to leave. `false`, with nothing done, if
    /// they cannot be places of this fragment.
    pub fn keep_found(&self, lsn: u64, offset: u64, placement: Placement<'_>) -> bool {
        let mut state = self.state.lock();
        let Some(slots) = state.slots.named(offset, placement) else { return false };
        state.slots.keep_found(slots, placement.places, lsn)
    }

    /// The record that named these places is out of the journal, or did not get into it.
    pub fn let_go(&self, places: &[u16]) {
        self.state.lock().slots.let_go(places);
    }

    /// Makes what lies in these places the bytes of whole slots, with the checksum of each sector.
    /// Gives the places that the slots have left, which count as taken until
    /// [`FragmentFile::let_go`].
    ///
    /// # Errors
    /// `Io` and `BadRange`; nothing has changed.
    pub fn point(
        &self,
        offset: u64,
        placement: Placement<'_>,
        crcs: &[u32],
        mark: Mark,
    ) -> Result<Vec<u16>, FragmentError> {
        let length = crcs.len() as u64 * SECTOR_BYTES;
        let sectors = self.checked(offset, length, crcs)?;
        let mut state = self.state.lock();
        let Some(slots) =
            state.slots.named(offset, placement).filter(|_| placement.bytes() == length)
        else {
            return Err(FragmentError::BadRange { key: self.key, offset, length });
        };
        self.load(&mut state, sectors.clone())?;
        self.changed(0);
        let left = state.slots.point(slots, placement.places);
        state.table.set(sectors.start, crcs);
        state.apply(mark);
        Ok(left)
    }

    /// As [`FragmentFile::read_raw`], of what a placed record's places hold from byte `skip` of
    /// them on.
    ///
    /// # Errors
    /// `Io`; `BadRange` if these are no places of the fragment, or are shorter.
    pub fn read_places(
        &self,
        placement: Placement<'_>,
        skip: u64,
        buf: &mut [u8],
        mode: ReadMode,
    ) -> Result<ReadOutcome, FragmentError> {
        let length = buf.len() as u64;
        self.read_pieces(|slots| slots.pieces_in(placement, skip, length), buf, mode)
    }

    /// Gives the space of places that nobody counts on back to the file system. What was done
    /// before must be synced.
    ///
    /// # Errors
    /// `Io`; nothing visible has changed.
    pub fn give_back(&self) -> Result<(), FragmentError> {
        let free = self.state.lock().slots.free();
        for piece in free {
            // Others get their turn between two of them, and may take what was free.
            let state = self.state.lock();
            if state.is_deleted {
                return Ok(());
            }
            if state.slots.is_free(piece) {
                for (at, within) in self.ranges(&state.slots, &[piece]) {
                    self.file
                        .extent(Extent::Punch, at, within.len() as u64)
                        .map_err(|error| self.io(error))?;
                }
            }
        }
        Ok(())
    }
}
