//! Sectors that rot on a disk, and how they are found and mended, as `ec_store::core` does it
//! (`recovery`, `scrub`).
//!
//! Contract: a sector that fails its checksum is never given to anybody; it counts as an erasure
//! until it was rebuilt from the other shards. What is simpler than there: a node scrubs its own
//! files, one sector is mended at a time, and a member answers in the step in which it is asked.

use crate::act::Act;
use crate::disk::{SECTOR, number, object, sector_bytes};
use crate::way::{Answer, Piece};
use crate::world::{Check, N, World, pg_id, si};
use ec_store::pg::shard::returning::common_cut;
use ec_store::pg::shard::{RebuiltPiece, ShardStore};
use protocol::recovery::{RecoveryRequest, SessionMark};
use protocol::{Epoch, ShardIndex, ShardSet};

/// A repair under way.
#[derive(Debug)]
pub struct Mend {
    epoch: Epoch,
    object: usize,
    at: usize,
    pieces: Vec<Piece>,
}

impl World {
    /// May a sector of node `i` rot? With one parity shard only while all shards are whole, and one
    /// sector at a time.
    pub fn can_rot(&self, i: usize) -> bool {
        self.ghost.rotten.is_none()
            && self.partition == 0
            && self.is_sound()
            && !self.nodes[i].disk.sound_sectors().is_empty()
    }

    /// Is every shard whole, in sync and there?
    fn is_sound(&self) -> bool {
        let (state, all) = (&self.mon.state().pgs[&pg_id()], ShardSet::first(N as u8));
        let whole =
            self.map().view.active && state.confirmed == all && self.map().view.in_sync == all;
        let sound = |i: usize| {
            let node = &self.nodes[i];
            let told = node.run
                && !node.poisoned
                && !node.lost
                && !node.blank
                && !node.booting
                && self.map().up[i];
            told && node.known == Some(self.maps.len() - 1) && !node.disk.has_rot()
        };
        whole && state.lost.is_empty() && state.gone.is_empty() && (0..N).all(sound)
    }

    /// After a step: is the shard that had a rotten sector whole again?
    pub fn look_at_rot(&mut self) {
        if self.ghost.rotten.is_some() && self.is_sound() {
            self.ghost.rotten = None;
        }
    }

    /// While one shard is not whole, as a sector of it rotted, no other may go away: that would be
    /// more than the code can bear.
    pub fn is_bearable(&self, act: Act) -> bool {
        let others = |i: usize| self.ghost.rotten.is_none_or(|rotten| rotten == i);
        match act {
            Act::PowerAll { .. } | Act::Part { .. } => self.ghost.rotten.is_none(),
            Act::Crash { i }
            | Act::Power { i, .. }
            | Act::MarkDown { i }
            | Act::LoseDisk { i }
            | Act::SyncFails { i, .. }
            | Act::IoFails { i, .. } => others(i),
            _ => true,
        }
    }

    /// A sector of node `i` rots.
    pub fn rot(&mut self, i: usize, v: u32) {
        let disk = &mut self.nodes[i].disk;
        let sectors = disk.sound_sectors();
        let Some(&(o, at)) = sectors.get(v as usize % sectors.len().max(1)) else { return };
        disk.rot(o, at);
        self.ghost.rotten = Some(i);
        self.note(|| format!("sector {at} of object {o} rots at shard {i}"));
    }

    /// A sector of node `i` failed its checksum.
    pub fn note_damaged(&mut self, i: usize, o: usize, at: usize) {
        self.nodes[i].damaged.insert((o, at));
        self.cover("a rotten sector is found");
    }

    fn is_serving(&self, i: usize) -> bool {
        let shard = self.nodes[i].shard.as_ref().filter(|_| !self.nodes[i].poisoned);
        shard.is_some_and(|shard| shard.view().pg.active && shard.view().is_in_sync())
    }

    /// Would a scrub of node `i` find anything new?
    pub fn has_to_scrub(&self, i: usize) -> bool {
        let node = &self.nodes[i];
        self.is_serving(i) && node.disk.rotten().any(|sector| !node.damaged.contains(&sector))
    }

    /// Node `i` checks its files.
    pub fn scrub(&mut self, i: usize) {
        let found: Vec<(usize, usize)> = self.nodes[i].disk.rotten().collect();
        found.into_iter().for_each(|(o, at)| self.note_damaged(i, o, at));
    }

    /// Has node `i` anything to mend?
    pub fn has_to_mend(&self, i: usize) -> bool {
        self.is_serving(i) && !self.nodes[i].damaged.is_empty()
    }

    /// Node `i` asks the next member for its piece, or writes what two pieces give.
    pub fn mend_on(&mut self, i: usize) -> Check {
        let node = &mut self.nodes[i];
        let (Some(shard), Some(&(object, at))) = (&node.shard, node.damaged.first()) else {
            return Ok(());
        };
        let epoch = shard.view().pg.epoch;
        let under_way = node
            .mend
            .take()
            .filter(|mend| (mend.epoch, mend.object, mend.at) == (epoch, object, at));
        let mut mend = under_way.unwrap_or(Mend { epoch, object, at, pieces: Vec::new() });
        let mut members: Vec<ShardIndex> = shard.view().pg.in_sync.without(si(i)).iter().collect();
        if members.len() < 2 {
            return Ok(());
        }
        // some pieces fit in one order only
        members.rotate_left(node.mends_failed % 2);
        if mend.pieces.len() == 2 {
            let mended = self.write_mended(i, &mend);
            self.nodes[i].mends_failed += usize::from(!mended);
            return Ok(());
        }
        let body = shard.repair_body(self::object(object), (at * SECTOR) as u64, SECTOR as u32);
        let request = RecoveryRequest { pg: pg_id(), epoch, from: si(i), body };
        let member = usize::from(members[mend.pieces.len()].get());
        if let Answer::Piece(piece) = self.answer_of(member, &request)? {
            mend.pieces.push(piece);
            self.nodes[i].mend = Some(mend);
        }
        Ok(())
    }

    /// True: the pieces fit together and to what is here.
    fn write_mended(&mut self, i: usize, mend: &Mend) -> bool {
        let Mend { object, at, ref pieces, .. } = *mend;
        let node = &mut self.nodes[i];
        let Some(shard) = &mut node.shard else { return false };
        let marks: Vec<&[SessionMark]> = pieces.iter().map(|piece| &piece.marks[..]).collect();
        if let Err(known) = common_cut(self.rules, &marks) {
            shard.learn_known(known);
            return false;
        }
        let (id, offset, length) = (self::object(object), (at * SECTOR) as u64, SECTOR as u64);
        let exists = pieces.iter().any(|piece| piece.file.is_some());
        if exists && !shard.may_repair(id, &(offset..offset + length), &marks) {
            return false;
        }
        if exists {
            let files = || pieces.iter().filter_map(|piece| piece.file);
            let logical_end = files().map(|file| file.end).max().unwrap_or(0);
            let sector = || sector_bytes(std::iter::once(pieces[0].tags[at] ^ pieces[1].tags[at]));
            let is_data = files().any(|file| file.crcs[at] != 0);
            let data = is_data.then(|| (offset, sector())).into_iter().collect();
            let piece = RebuiltPiece { offset, length, data, logical_end };
            let profile = shard.view().pg.profile;
            if node.disk.apply(pg_id(), &profile, id, &piece.changes()).is_err() {
                return false;
            }
            node.disk.note_rebuilt(number(id));
        }
        node.damaged.remove(&(object, at));
        self.note(|| format!("sector {at} of object {object} is mended at shard {i}"));
        self.cover("a rotten sector is mended");
        true
    }
}
