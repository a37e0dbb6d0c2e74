//! What can happen in a simulation: one random step at a time.

use super::super::shard::returning::{RebuiltPiece, common_cut, least_cut};
use super::super::shard::{SnapPlan, SnapQuestion};
use super::store::{SECTOR, SECTORS};
use super::world::*;
use bytes::Bytes;
use protocol::recovery::{RecoveryBody, RecoveryReply};
use protocol::{Epoch, Seq, ShardSet};

const HALF: usize = SECTORS / 2;

impl World {
    /// Something that happens by itself, or nothing if it is not possible.
    pub fn step(&mut self) -> Check {
        self.now += std::time::Duration::from_micros(200);
        let (s, i, o) = (self.random.usize(0..SESSIONS), self.random.usize(0..3), self.random.usize(0..OBJECTS));
        match self.random.u8(0..24) {
            0..=5 => self.request_step(s, i, false)?,
            6..=10 => self.reply_step(s, i, false)?,
            11 => self.map_step(s)?,
            12 => {
                self.now += JUMP.mul_f32(self.random.f32());
                for s in (0..SESSIONS).filter(|&s| self.sess[s].run).collect::<Vec<_>>() {
                    self.sess[s].machine.tick(self.now);
                    self.pump(s)?;
                }
            }
            13 => self.lease_step(s, o),
            14 => self.begin_sync(i),
            15 => self.end_sync(i),
            16 => {
                if let Node { shard: Some(shard), store, .. } = &mut self.nodes[i] {
                    shard.apply_some(store, 1).expect("memory");
                }
            }
            17 => self.prepare_trim(i),
            18 => self.shard_map_step(i),
            19 => self.resolve_step(s, i)?,
            _ => self.return_step(i)?,
        }
        Ok(())
    }

    pub fn client_step(&mut self) -> Check {
        let (s, o) = (self.random.usize(0..SESSIONS), self.random.usize(0..OBJECTS));
        if !self.sess[s].run {
            return Ok(());
        }
        match self.random.u8(0..4) {
            0 | 1 => self.write(s, o)?,
            2 => self.read(s, o),
            _ => {
                let (now, last) = (self.now, Seq::new(self.sess[s].writes));
                self.sess[s].machine.want_stable(now, last);
            }
        }
        self.pump(s)
    }

    pub fn request_step(&mut self, s: usize, i: usize, late: bool) -> Check {
        let conn = &mut self.net[s][i];
        let msg = if late { conn.old_req.pop_front() } else { conn.req.pop_front() };
        let ends = conn.holes && conn.req.is_empty() && conn.rep.is_empty();
        if let Some(msg) = msg {
            self.deliver(s, i, msg);
        } else if ends {
            self.reset(s, i, true);
        }
        Ok(())
    }

    pub fn reply_step(&mut self, s: usize, i: usize, late: bool) -> Check {
        let conn = &mut self.net[s][i];
        let rep = if late { conn.old_rep.pop_front() } else { conn.rep.pop_front() };
        rep.map_or(Ok(()), |rep| self.reply(s, i, rep))
    }

    fn map_step(&mut self, s: usize) -> Check {
        if self.sess[s].run && self.mon.active {
            if self.mon.table.dead.contains(&sid(s)) || self.resolved[s] {
                (self.sess[s].run, self.sess[s].read) = (false, None);
                return Ok(());
            }
            let view = self.mon.view();
            self.sess[s].machine.learn(self.now, view);
        }
        self.pump(s)
    }

    fn lease_step(&mut self, s: usize, o: usize) {
        if !self.sess[s].run {
            return;
        }
        if self.sess[s].held[o] {
            let stable = self.sess[s].last[o] <= self.sess[s].stable; // Rule: ReleaseStable
            if stable && self.sess[s].read.as_ref().is_none_or(|r| r.object != o) {
                self.sess[s].held[o] = false;
                self.lease[o] = None;
            }
            return;
        }
        let free = self.lease[o].is_none_or(|h| self.resolved[h]); // Rule: GrantResolved
        let current = self.sess[s].machine.view().epoch.get() == self.mon.epoch; // Rule: GrantEpoch
        if free && current && !self.mon.table.dead.contains(&sid(s)) && !self.resolved[s] {
            self.lease[o] = Some(s);
            self.sess[s].held[o] = true;
        }
    }

    fn shard_map_step(&mut self, i: usize) {
        if self.nodes[i].shard.is_none() {
            return self.start(i, true);
        }
        let epoch = self.nodes[i].shard.as_ref().map_or(0, |s| s.view().pg.epoch.get());
        if epoch < self.mon.epoch || self.random.u8(0..4) == 0 {
            self.learn(i);
        } else if !self.mon.up.contains(si(i)) {
            self.mon.boot(si(i), false, false);
            self.learn(i);
        } else if !self.mon.active && self.mon.map_sync.minus(self.mon.peered).contains(si(i)) {
            self.mon.peer(si(i));
        } else if self.mon.active && self.mon.up.minus(self.mon.iss).minus(self.mon.asked).contains(si(i)) {
            self.mon.ask_join(si(i));
        }
    }

    // ---- resolution of dead sessions

    fn resolve_step(&mut self, s: usize, i: usize) -> Check {
        if self.coordinator_epoch != self.mon.epoch {
            self.coordinator_epoch = self.mon.epoch;
            self.report.iter_mut().for_each(|r| *r = [None, None, None]);
            (self.choice, self.told) = ([None; SESSIONS], [ShardSet::EMPTY; SESSIONS]);
        }
        let member = self.mon.active && self.mon.iss.contains(si(i));
        if !member || !self.mon.table.dead.contains(&sid(s)) || self.nodes[i].shard.is_none() {
            return Ok(());
        }
        let epoch = Epoch::new(self.mon.epoch);
        let fenced = self.nodes[i].shard.as_mut().is_some_and(|shard| shard.fence(sid(s), epoch));
        if !fenced {
            return Ok(());
        }
        if self.report[s][i].is_none() {
            self.sync_now(i);
            let shard = self.nodes[i].shard.as_ref().expect("runs");
            self.report[s][i] = shard.holding(sid(s), epoch);
            return Ok(());
        }
        self.choose(s);
        let Some(cut) = self.choice[s] else { return Ok(()) };
        let Node { shard: Some(shard), store, .. } = &mut self.nodes[i] else { return Ok(()) };
        if shard.decide(store, sid(s), epoch, Seq::new(cut)).expect("memory") {
            self.sync_now(i);
            self.told[s] = self.told[s].with(si(i));
        }
        if self.mon.iss.minus(self.told[s]).is_empty() {
            self.resolved[s] = true;
            self.cut[s] = Some(cut);
            self.mon.table.dead.remove(&sid(s));
            self.cover("session resolved");
            return self.pump(s);
        }
        Ok(())
    }

    fn choose(&mut self, s: usize) {
        let members: Vec<usize> = self.mon.iss.iter().map(|m| usize::from(m.get())).collect();
        if self.choice[s].is_some() || members.iter().any(|&m| self.report[s][m].is_none()) {
            return;
        }
        let of = |m: usize| self.report[s][m].as_ref().expect("all reported");
        let mut cut = members.iter().map(|&m| of(m).settled.get()).max().unwrap_or(0);
        loop {
            let q = Seq::new(cut + 1);
            let holds = |m: usize| of(m).settled >= q || of(m).held.iter().any(|h| h.0 == q);
            let touch = members.iter().flat_map(|&m| &of(m).held).find(|h| h.0 == q).map(|h| h.1);
            let whole = touch.is_some_and(|t| members.iter().all(|&m| !t.contains(si(m)) || holds(m)));
            if !whole {
                break;
            }
            cut += 1;
        }
        self.choice[s] = Some(cut);
    }

    // ---- return of a shard

    fn return_step(&mut self, x: usize) -> Check {
        let epoch = Epoch::new(self.mon.epoch);
        let Some(shard) = &self.nodes[x].shard else { return Ok(()) };
        if !shard.is_returning() || shard.view().pg.epoch != epoch || !self.mon.up.contains(si(x)) {
            return Ok(());
        }
        if !shard.is_listed() {
            return self.list_step(x);
        }
        if shard.can_join() && self.random.bool() {
            let Node { shard: Some(shard), store, .. } = &mut self.nodes[x] else { return Ok(()) };
            shard.ready_to_join(store).expect("memory");
            self.nodes[x].store.synced_files = self.nodes[x].store.files.clone();
            self.sync_now(x);
            self.mon.join(si(x));
            self.cover("a shard joins");
            return Ok(());
        }
        let report = shard.to_report();
        if !report.is_empty() && self.random.u8(0..4) == 0 {
            return self.report_step(x, &report);
        }
        if self.nodes[x].job.is_none() {
            let next = self.nodes[x].shard.as_mut().and_then(|s| s.next_to_rebuild());
            let job = |object| Job { object, chunk: 0, pieces: vec![], cut: None, end: 0, exists: false };
            self.nodes[x].job = next.map(job);
            return Ok(());
        }
        self.snap_step(x)
    }

    fn member(&mut self, x: usize) -> Option<usize> {
        let m = self.random.usize(0..3);
        let epoch = self.nodes[m].shard.as_ref()?.view().pg.epoch;
        (m != x && self.mon.iss.contains(si(m)) && epoch.get() == self.mon.epoch).then_some(m)
    }

    fn list_step(&mut self, x: usize) -> Check {
        let Some(m) = self.member(x) else { return Ok(()) };
        let epoch = Epoch::new(self.mon.epoch);
        let RecoveryBody::List { after, blank, attached } = self.nodes[x].shard.as_ref().expect("runs").list_body(None)
        else {
            return Err("a list is asked for".into());
        };
        let Node { shard: Some(member), store, .. } = &mut self.nodes[m] else { return Ok(()) };
        let reply = member.list(store, epoch, si(x), after, blank, &attached).expect("memory");
        let Node { shard: Some(shard), store, .. } = &mut self.nodes[x] else { return Ok(()) };
        if let RecoveryReply::Listed { objects, marks, more } = reply
            && shard.unlisted().contains(si(m))
        {
            shard.listed(si(m), &objects, &marks, more);
            if shard.unlisted().is_empty() {
                shard.finish_list(store).expect("memory");
                self.sync_now(x);
                self.nodes[x].shard.as_mut().expect("runs").list_is_durable();
            }
        }
        Ok(())
    }

    fn report_step(&mut self, x: usize, report: &[protocol::ObjectId]) -> Check {
        let epoch = Epoch::new(self.mon.epoch);
        self.nodes[x].store.synced_files = self.nodes[x].store.files.clone();
        self.sync_now(x);
        for m in 0..3 {
            if m != x
                && self.mon.iss.contains(si(m))
                && let Node { shard: Some(member), store, .. } = &mut self.nodes[m]
            {
                member.report(store, epoch, si(x), report).expect("memory");
            }
        }
        let Node { shard: Some(shard), store, .. } = &mut self.nodes[x] else { return Ok(()) };
        shard.reported(store, report).expect("memory");
        self.cover("objects reported");
        Ok(())
    }

    fn snap_step(&mut self, x: usize) -> Check {
        let Some(m) = self.member(x) else { return Ok(()) };
        let epoch = Epoch::new(self.mon.epoch);
        let job = self.nodes[x].job.as_ref().expect("a job");
        let (object, chunk) = (job.object, job.chunk);
        if job.pieces.iter().any(|p| p.member == m) {
            return Ok(());
        }
        let body = self.nodes[x].shard.as_ref().expect("runs").snap_body(object, 0, 0);
        let RecoveryBody::Snap { known, floor, .. } = body else { return Err("a piece is asked for".into()) };
        let first = chunk == 0;
        let question = SnapQuestion { epoch, from: si(x), object, first, known: &known, floor: &floor };
        let Node { shard: Some(member), store, .. } = &mut self.nodes[m] else { return Ok(()) };
        let SnapPlan::Ready(snap) = member.snap(store, &question).expect("memory") else { return Ok(()) };
        let sectors: Result<Vec<_>, _> =
            (chunk * HALF..(chunk + 1) * HALF).map(|at| store.file_sector(object, at)).collect();
        let file = store.files.get(&object);
        let (exists, end) = (file.is_some(), file.map_or(0, |f| f.logical_end));
        member.unpin(object);
        let Ok(sectors) = sectors else {
            return if snap.has_unapplied { Ok(()) } else { Err("verified: a member's piece is corrupt".into()) };
        };
        let tags = sectors.iter().map(|s| u64::from_le_bytes(s[..8].try_into().expect("8 bytes"))).collect();
        let job = self.nodes[x].job.as_mut().expect("a job");
        job.pieces.push(PieceOf { member: m, marks: snap.marks, tags, end, exists });
        if job.pieces.len() == 2 { self.rebuild_step(x) } else { Ok(()) }
    }

    fn rebuild_step(&mut self, x: usize) -> Check {
        let Node { shard: Some(shard), store, job, .. } = &mut self.nodes[x] else { return Ok(()) };
        let Some(mut now) = job.take() else { return Ok(()) };
        let marks: Vec<&[_]> = now.pieces.iter().map(|p| &p.marks[..]).collect();
        let cut = match common_cut(&marks) {
            Ok(cut) => cut,
            Err(known) => {
                shard.learn_known(known);
                now.pieces.clear();
                *job = Some(now);
                self.cover("pieces of different cuts");
                return Ok(());
            }
        };
        // any two of the three xor to the third
        let tags = now.pieces[0].tags.iter().zip(&now.pieces[1].tags).map(|(a, b)| a ^ b);
        let at = |n: usize| ((now.chunk * HALF + n) * SECTOR) as u64;
        let data = tags.enumerate().filter(|(_, t)| *t != 0).map(|(n, t)| (at(n), Bytes::from(sector_of(t)))).collect();
        let piece = RebuiltPiece { offset: at(0), length: (HALF * SECTOR) as u64, data, logical_end: 0 };
        shard.write_rebuilt(store, now.object, &piece).expect("memory");
        if now.chunk == 0 {
            now.end = now.pieces.iter().map(|p| p.end).max().unwrap_or(0);
            now.exists = now.pieces.iter().any(|p| p.exists);
        }
        let cut = now.cut.take().map_or(cut.clone(), |c| least_cut(c, &cut));
        if now.chunk == 0 {
            (now.chunk, now.cut) = (1, Some(cut));
            now.pieces.clear();
            *job = Some(now);
            return Ok(());
        }
        let end = now.exists.then_some(((SECTOR * SECTORS) as u64, now.end));
        if shard.finish_rebuild(store, now.object, &cut, end).expect("memory") {
            self.cover("object rebuilt");
        }
        Ok(())
    }

    // ---- faults

    pub fn fault(&mut self, kind: u8) -> Check {
        let (s, i) = (self.random.usize(0..SESSIONS), self.random.usize(0..3));
        let blank = (0..3).filter(|&i| self.nodes[i].blank).fold(ShardSet::EMPTY, |set, i| set.with(si(i)));
        match kind {
            0 => self.net[s][i].holes |= self.net[s][i].req.pop_front().is_some(),
            1 => self.reset(s, i, true),
            2 => self.request_step(s, i, true)?,
            3 => self.reply_step(s, i, true)?,
            4 => self.stop(i),
            5 => self.power(i),
            6 => (0..3).for_each(|i| self.power(i)),
            7 if self.mon.can_lose(si(i), blank) => {
                self.stop(i);
                self.nodes[i] = Node { blank: true, ..Node::default() };
            }
            8 if self.mon.up.contains(si(i)) => self.mon.mark_down(si(i)),
            9 if !self.mon.table.dead.contains(&sid(s)) && !self.resolved[s] => self.mon.expire(sid(s)),
            10 => (self.sess[s].run, self.sess[s].read) = (false, None),
            _ => {}
        }
        for s in 0..SESSIONS {
            self.pump(s)?;
        }
        Ok(())
    }

    fn power(&mut self, i: usize) {
        self.stop(i);
        let mut random = self.random.fork();
        self.nodes[i].store.power(&mut random);
        self.nodes[i].lost = true;
    }

    /// Has everything come to rest?
    pub fn at_rest(&self) -> bool {
        let whole = self.mon.active && self.mon.iss == ShardSet::first(3);
        let over = |s: usize| match self.sess[s].run {
            true => self.sess[s].stable == self.sess[s].writes,
            false => self.resolved[s],
        };
        let idle = |n: &Node| {
            n.shard.as_ref().is_some_and(|s| s.journalled() == 0 && s.view().pg.epoch.get() == self.mon.epoch)
        };
        whole && (0..SESSIONS).all(over) && self.nodes.iter().all(idle)
    }

    pub fn expire_dead(&mut self) {
        for s in 0..SESSIONS {
            let known = self.mon.table.dead.contains(&sid(s)) || self.resolved[s];
            if !self.sess[s].run && !known {
                self.mon.expire(sid(s));
            }
        }
    }
}
