//! What must hold, by name (docs/develop/simulator.md), and what the checker knows to tell.
//!
//! * **no-lost-ack**: what was stable is never dropped; what was reported only if fewer than k
//!   members kept power.
//! * **no-torn-stripe**: at rest any two in-sync shards give the same bytes, those of the kept
//!   writes in order; no record beyond a cut is ever applied; at the end this holds of the synced
//!   files.
//! * **prefix**: the kept writes of a session are a prefix (built into the expected content).
//! * **order**: a read returns all writes before it (`client`).
//! * **fenced**: no in-sync shard holds a dropped record of a resolved session.
//! * **progress**: after the last fault everything comes to rest (`walk`).
//! * **verified**: what an in-sync shard gives passes its checksums (`node`, `way`).
//! * **bounded**: a journal holds no more records than it may (`node`).

use crate::client::{Content, Effect};
use crate::disk::{File, OBJECTS, SECTORS, Tags, object};
use crate::node::{Unreadable, read_here};
use crate::world::{Check, N, SESSIONS, World, pg_id};
use protocol::ShardSet;

/// What only the checker knows.
#[derive(Debug, Default)]
pub struct Ghost {
    /// All writes, in order.
    pub order: [Vec<Effect>; OBJECTS],
    /// Cuts of resolved sessions.
    pub cut: [Option<u64>; SESSIONS],
    /// The cut that was last chosen.
    pub chosen: [u64; SESSIONS],
    /// What was reported of each session when members had to stay that had lost their unsynced
    /// tails.
    pub may_lose: Vec<u64>,
    /// The shard that a sector of rotted, until it is whole again.
    pub rotten: Option<usize>,
    /// The last record that was ever applied anywhere.
    pub applied: [u64; SESSIONS],
}

impl World {
    /// What object `o` must hold: all writes in order, less what decisions dropped.
    pub fn content(&self, o: usize) -> Content {
        let mut content = Content::default();
        let kept = |e: &&Effect| self.ghost.cut[e.session].is_none_or(|cut| e.seq <= cut);
        self.ghost.order[o].iter().filter(kept).for_each(|e| content.take(e));
        content
    }

    /// Everything that session `s` reported or fsynced must lie below its cut.
    pub fn check_kept(&self, s: usize) -> Check {
        let (Some(cut), client) = (self.ghost.cut[s], &self.clients[s]) else { return Ok(()) };
        let may_lose = self.ghost.may_lose.get(s).copied().unwrap_or(0);
        if client.stable > cut || client.reported > cut.max(may_lose) {
            let (reported, stable) = (client.reported, client.stable);
            return Err(format!(
                "no-lost-ack: of session {s}, {reported} reported, {stable} stable, and recovery kept {cut}"
            ));
        }
        Ok(())
    }

    /// Notes which records shard `i` has applied.
    pub fn look_at_applied(&mut self, i: usize) -> Check {
        let Some(shard) = &self.nodes[i].shard else { return Ok(()) };
        for (session, seq, _) in shard.records().filter(|(.., applied)| *applied) {
            let s = session.get() as usize - 1;
            self.ghost.applied[s] = self.ghost.applied[s].max(seq.get());
            if self.ghost.cut[s].is_some_and(|cut| seq.get() > cut) {
                return Err(format!(
                    "no-torn-stripe: shard {i} applies {seq} of session {s} beyond its cut"
                ));
            }
        }
        Ok(())
    }

    fn confirmed(&self) -> ShardSet {
        self.mon.state().pgs[&pg_id()].confirmed
    }

    /// Has session `s` nothing open: resolved if dead, all stable if alive?
    pub fn is_at_rest(&self, s: usize) -> bool {
        let client = &self.clients[s];
        if self.is_live(s) {
            client.run && client.stable == client.writes
        } else {
            !self.is_dead(s)
        }
    }

    /// What must hold after every step.
    ///
    /// # Errors
    /// The invariant's name, and how it broke.
    pub fn check(&mut self) -> Check {
        let confirmed = self.confirmed();
        if self.ghost.cut != [None; SESSIONS] {
            for i in confirmed.iter().map(|i| usize::from(i.get())) {
                let Some(shard) = &self.nodes[i].shard else { continue };
                for (session, seq, _) in shard.records() {
                    let s = session.get() as usize - 1;
                    if self.ghost.cut[s].is_some_and(|cut| seq.get() > cut) {
                        return Err(format!(
                            "fenced: in-sync shard {i} holds {seq} of session {s} beyond its cut"
                        ));
                    }
                }
            }
        }
        if !self.map().view.active || !(0..self.clients.len()).all(|s| self.is_at_rest(s)) {
            return Ok(());
        }
        self.check_clean(confirmed)
    }

    /// Any two in-sync shards give the right bytes.
    fn check_clean(&mut self, confirmed: ShardSet) -> Check {
        let members: Vec<usize> = confirmed.iter().map(|i| usize::from(i.get())).collect();
        for o in self.objects() {
            let want = self.content(o);
            for &i in &members {
                let node = &mut self.nodes[i];
                let Some(shard) = node.shard.as_mut().filter(|_| !node.blank) else { continue };
                let got = match read_here(shard, &node.disk, object(o)) {
                    Ok(tags) => tags,
                    Err(Unreadable::Rotten(_)) => continue,
                    Err(Unreadable::Wrong(what)) => return Err(format!("{what} at shard {i}")),
                };
                if got != want.piece(i) {
                    let want = want.piece(i);
                    return Err(format!(
                        "no-torn-stripe: shard {i} gives {got:x?} of object {o}, not {want:x?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Has everything come to rest?
    pub fn is_over(&self) -> bool {
        let view = &self.map().view;
        let clean = view.active
            && view.in_sync == ShardSet::first(N as u8)
            && self.confirmed() == view.in_sync;
        let current = |i: usize| self.nodes[i].known == Some(self.maps.len() - 1);
        let idle =
            |i: usize| self.nodes[i].shard.as_ref().is_some_and(|shard| shard.journalled() == 0);
        let given = |s: usize| self.clients[s].leases.is_empty() || !self.clients[s].run;
        let quiet = |s: usize| self.is_at_rest(s) && given(s);
        let sound = |i: usize| self.nodes[i].disk.rotten().next().is_none();
        clean
            && (0..N).all(|i| idle(i) && current(i) && sound(i))
            && (0..self.clients.len()).all(quiet)
    }

    /// What must hold then, of what is synced.
    ///
    /// # Errors
    /// The invariant's name, and how it broke.
    pub fn check_end(&self) -> Check {
        for o in self.objects() {
            let want = self.content(o);
            for (i, node) in self.nodes.iter().enumerate() {
                let tags = |file: Option<File>| -> Result<Tags, String> {
                    let file = file.unwrap_or_default();
                    let mut tags = [0; SECTORS];
                    for (at, tag) in tags.iter_mut().enumerate() {
                        *tag = match file.sector(at) {
                            Some(tag) => tag,
                            // found anew whenever it comes back
                            None if file.is_rotten(at) => want.piece(i)[at],
                            None => return Err(format!("verified: shard {i}, object {o}")),
                        };
                    }
                    Ok(tags)
                };
                let got = (tags(node.disk.files[o])?, tags(node.disk.durable(o))?);
                if got != (want.piece(i), want.piece(i)) {
                    let want = want.piece(i);
                    return Err(format!(
                        "no-torn-stripe: shard {i} ends with {got:x?} of object {o}, not {want:x?}"
                    ));
                }
            }
            let end = self
                .nodes
                .iter()
                .filter_map(|node| node.disk.durable(o))
                .map(|file| file.end)
                .max()
                .unwrap_or(0);
            if end != want.end {
                return Err(format!(
                    "no-torn-stripe: object {o} ends at {end}, not at {}",
                    want.end
                ));
            }
        }
        Ok(())
    }

    /// Where everything stands, for a message.
    pub fn standing(&self) -> String {
        let sessions: Vec<_> =
            self.clients.iter().map(|c| (c.run, c.known, c.writes, c.reported, c.stable)).collect();
        let node = |i: usize| {
            let (node, shard) = (&self.nodes[i], self.nodes[i].shard.as_ref());
            (
                node.known,
                node.trim.is_some(),
                shard.map(|s| (s.records().collect::<Vec<_>>(), s.to_rebuild())),
                &node.way,
            )
        };
        let nodes: Vec<_> = (0..N).map(node).collect();
        format!(
            "{:?}, of {} maps, sessions {sessions:?}, nodes {nodes:?}",
            self.map(),
            self.maps.len()
        )
    }
}
