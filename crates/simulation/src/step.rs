//! Which steps are possible, and what they do.

use crate::act::{Act, Fault};
use crate::disk::Failing;
use crate::partition::Party;
use crate::world::{Check, N, World};
use protocol::namespace::LeaseMode;
use std::time::Duration;

/// By how much a client's clock jumps ahead.
const CLOCK_JUMP: Duration = Duration::from_secs(3600);

impl World {
    /// The kind of fault that a step is; none, if it is something that happens by itself.
    pub fn fault(&self, act: Act) -> Option<Fault> {
        Some(match act {
            Act::DropAnswer { i } if self.is_cut_off(i) => return None,
            Act::Drop { .. } | Act::DropAnswer { .. } | Act::DropHolding { .. } => Fault::Drop,
            Act::Reset { .. } | Act::MdsReset { .. } => Fault::Reset,
            Act::Crash { i } if !self.nodes[i].poisoned => Fault::Crash,
            Act::MonitorRestart | Act::MdsRestart { .. } => Fault::Crash,
            Act::Power { .. } | Act::PowerAll { .. } => Fault::Power,
            Act::LoseDisk { .. } => Fault::Lose,
            Act::MarkDown { i } if self.apart(Party::Node(i), Party::Monitor) => return None,
            Act::MarkDown { i } if self.nodes[i].run && !self.nodes[i].poisoned => Fault::Down,
            Act::Expire { s } if self.apart(Party::Client(s), Party::Monitor) => return None,
            Act::Expire { s } if self.clients[s].run => Fault::Zombie,
            Act::ClientCrash { .. } => Fault::Client,
            Act::SyncFails { .. } | Act::IoFails { .. } => Fault::Io,
            Act::Part { .. } => Fault::Part,
            Act::Fills { .. } => Fault::Full,
            Act::ClockJump | Act::ClientClockJump { .. } => Fault::Clock,
            Act::Rot { .. } => Fault::Rot,
            _ => return None,
        })
    }

    /// Everything that can happen now.
    pub fn acts(&self, out: &mut Vec<Act>) {
        out.clear();
        (0..self.clients.len()).for_each(|s| self.session_acts(s, out));
        (0..N).for_each(|i| self.node_acts(i, out));
        if self.clients.len() < self.bounds.sessions {
            out.push(Act::Open);
        }
        out.extend((0..self.strays.len()).map(|n| Act::ServeLate { n }));
        let reaches = |n: &usize| !self.apart(Party::Monitor, Party::Node(self.questions[*n].to));
        out.extend((0..self.questions.len()).filter(reaches).map(|n| Act::Question { n }));
        out.extend((0..self.answers.len()).map(|n| Act::HearAnswer { n }));
        if !self.map().table.dead.is_empty() {
            out.push(Act::Coordinate);
        }
        if !self.map().view.active {
            out.push(Act::MonitorTick);
        }
        if self.mds.known.is_none_or(|known| known + 1 < self.maps.len())
            && !self.apart(Party::Mds, Party::Monitor)
        {
            out.push(Act::MdsLearn);
        }
        if self.mds.owes_sizes {
            out.push(Act::MdsSizes);
        }
        if self.mds_may_tick() {
            out.push(Act::MdsTick);
        }
        let reaches =
            |n: &usize| !self.apart(Party::Client(self.renewals[*n].session()), Party::Monitor);
        out.extend((0..self.renewals.len()).filter(reaches).map(|n| Act::Renewal { n }));
        if self.partition != 0 {
            out.push(Act::Healed);
        }
        if self.left != [0; Fault::ALL.len()] {
            self.fault_acts(out);
        }
        let left = |act: &Act| self.fault(*act).is_none_or(|fault| self.left[fault as usize] > 0);
        out.retain(|act| left(act) && self.is_bearable(*act));
    }

    fn session_acts(&self, s: usize, out: &mut Vec<Act>) {
        let client = &self.clients[s];
        for i in 0..N {
            let (conn, up) = (&self.net[s][i], self.nodes[i].run);
            if self.apart(Party::Client(s), Party::Node(i)) {
                if client.run && (!conn.req.is_empty() || !conn.rep.is_empty()) {
                    out.push(Act::Timeout { s, i });
                }
                continue;
            }
            if up && !conn.req.is_empty() {
                out.push(Act::Request { s, i });
            }
            if up && !conn.old_req.is_empty() {
                out.push(Act::LateRequest { s, i });
            }
            if !client.run {
                continue;
            }
            if !conn.rep.is_empty() {
                out.push(Act::Reply { s, i });
            }
            if !conn.old_rep.is_empty() {
                out.push(Act::LateReply { s, i });
            }
            if conn.holes && conn.req.is_empty() && conn.rep.is_empty() {
                out.push(Act::Timeout { s, i });
            }
        }
        if self.is_live(s) {
            out.push(Act::Expire { s });
        }
        if self.has_line(s) {
            let line = &self.lines[s];
            if !line.up.is_empty() {
                out.push(Act::MdsHear { s });
            }
            if !line.late.is_empty() {
                out.push(Act::MdsHearLate { s });
            }
            if client.run && !line.down.is_empty() {
                out.push(Act::MdsReply { s });
            }
        }
        if !client.run {
            return;
        }
        if self.should_renew(s) {
            out.push(Act::Renew { s });
        }
        if client.known + 1 < self.maps.len() && !self.apart(Party::Client(s), Party::Monitor) {
            out.push(Act::Learn { s, v: 0 });
        }
        if client.machine.next_deadline().is_some() {
            out.push(Act::Tick { s });
        }
        if client.stable < client.writes {
            out.push(Act::Fsync { s });
        }
        if self.can_close(s) && client.writes > 0 {
            out.push(Act::Close { s });
        }
        for o in self.objects() {
            if self.can_give_back(s, o) {
                out.push(Act::GiveBack { s, o });
            }
            if self.may_ask(s, o, LeaseMode::Write) {
                out.push(Act::Ask { s, o });
            }
            if self.may_ask(s, o, LeaseMode::Read) {
                out.push(Act::AskRead { s, o });
            }
            if self.may_use(s, o, LeaseMode::Write)
                && self.ghost.order.iter().map(Vec::len).sum::<usize>() < self.bounds.writes
            {
                out.push(Act::Write { s, o, v: 0 });
            }
            if (self.reads as usize) < self.bounds.reads {
                if client.leases.files[o].cached.is_some() && self.may_use(s, o, LeaseMode::Read) {
                    out.push(Act::ReadCached { s, o });
                }
                let masks = [0b011, 0b101, 0b110, 0b001, 0b010].into_iter();
                out.extend(masks.filter(|v| self.may_read(s, o, *v)).map(|v| Act::Read {
                    s,
                    o,
                    v,
                }));
            }
        }
    }

    fn node_acts(&self, i: usize, out: &mut Vec<Act>) {
        let node = &self.nodes[i];
        if self.map().up[i] {
            out.push(Act::MarkDown { i });
        }
        let reaches = !self.apart(Party::Node(i), Party::Monitor);
        if !self.to_mon[i].is_empty() && reaches {
            out.push(Act::Hear { i });
        }
        if node.disk.full {
            out.push(Act::Freed { i });
        }
        if !node.run {
            return out.push(Act::Start { i });
        }
        if node.poisoned {
            out.push(Act::Crash { i });
        }
        if self.next_map(i).is_some() && reaches {
            out.push(Act::NodeLearn { i, v: 0 });
        }
        let Some(shard) = &node.shard else { return };
        if node.has_turn() {
            out.push(Act::Turn { i });
        }
        if shard.is_unsynced() && node.syncs.running.is_none() && !node.syncs.wanted {
            out.push(Act::Sync { i });
        }
        if node.syncs.running.is_some() {
            out.push(Act::Synced { i });
        }
        if shard.has_to_apply() {
            out.push(Act::Apply { i });
        }
        if node.can_trim() {
            out.push(Act::Trim { i });
        }
        if node.trim_is_ready() {
            out.push(Act::TrimOn { i });
        }
        if self.wish(i).is_some() {
            out.push(Act::Tell { i });
        }
        if self.way_is_ready(i) {
            out.push(Act::Way { i });
        }
        if node
            .way
            .as_ref()
            .and_then(|way| way.call.as_ref())
            .is_some_and(|call| call.answer.is_none())
        {
            out.push(if self.is_cut_off(i) { Act::DropAnswer { i } } else { Act::Serve { i } });
        }
        if self.has_to_scrub(i) {
            out.push(Act::Scrub { i });
        }
        if self.has_to_mend(i) {
            out.push(Act::Mend { i });
        }
        if node.holdings.iter().any(|held| node.syncs.is_done(held.wait)) {
            out.push(Act::Answer { i });
        }
    }

    fn fault_acts(&self, out: &mut Vec<Act>) {
        for s in 0..self.clients.len() {
            if self.clients[s].run {
                out.extend([Act::ClientCrash { s }, Act::ClientClockJump { s }]);
                if !self.clients[s].leases.is_idle() || !self.lines[s].down.is_empty() {
                    out.push(Act::MdsReset { s });
                }
            }
            for i in 0..N {
                if !self.net[s][i].req.is_empty() {
                    out.push(Act::Drop { s, i });
                }
                if self.clients[s].run
                    && (self.clients[s].machine.attached(crate::world::si(i))
                        || !self.net[s][i].req.is_empty())
                {
                    out.push(Act::Reset { s, i });
                }
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            if node.run && !node.poisoned {
                out.push(Act::Crash { i });
            }
            out.push(Act::Power { i, v: 0 });
            if self.can_lose(i) {
                out.push(Act::LoseDisk { i });
            }
            if node.syncs.running.is_some() {
                out.push(Act::SyncFails { i, v: 0 });
            }
            if node.run && !node.disk.full {
                out.push(Act::Fills { i });
            }
            if node.run && !node.poisoned && node.disk.fails.is_none() {
                out.push(Act::IoFails { i, v: 0 });
            }
            if node.way.as_ref().is_some_and(|way| way.call.is_some()) {
                out.push(Act::DropAnswer { i });
            }
            if self.can_rot(i) {
                out.push(Act::Rot { i, v: 0 });
            }
        }
        out.extend((0..self.answers.len()).map(|n| Act::DropHolding { n }));
        out.extend([
            Act::PowerAll { v: 0 },
            Act::MonitorRestart,
            Act::MdsRestart { v: 0 },
            Act::ClockJump,
        ]);
        if self.partition == 0 {
            out.push(Act::Part { v: 0 });
        }
    }

    /// Is the member that shard `i` asks for its way back out of reach?
    fn is_cut_off(&self, i: usize) -> bool {
        let call = self.nodes[i].way.as_ref().and_then(|way| way.call.as_ref());
        call.is_some_and(|call| self.apart(Party::Node(i), Party::Node(call.to)))
    }

    /// Does one step.
    ///
    /// # Errors
    /// An invariant's name, and how it broke.
    pub fn step(&mut self, act: Act) -> Check {
        if let Some(fault) = self.fault(act) {
            let left = &mut self.left[fault as usize];
            *left = left.saturating_sub(1);
            self.cover(fault.counted());
        }
        match act {
            Act::Open => self.open(),
            Act::Close { s } => self.close(s)?,
            Act::Learn { s, v } => self.learn(s, v)?,
            Act::Ask { s, o } => self.ask_lease(s, o, LeaseMode::Write),
            Act::AskRead { s, o } => self.ask_lease(s, o, LeaseMode::Read),
            Act::GiveBack { s, o } => self.give_back(s, o),
            Act::ReadCached { s, o } => self.read_cached(s, o)?,
            Act::Renew { s } => self.renew(s),
            Act::MdsHear { s } => {
                if let Some(request) = self.lines[s].up.pop_front() {
                    self.mds_hears(s, request);
                }
            }
            Act::MdsHearLate { s } => {
                if let Some(request) = self.lines[s].late.pop_front() {
                    self.cover("a request for a lease arrives late");
                    self.mds_hears(s, request);
                }
            }
            Act::MdsReply { s } => self.mds_reply(s),
            Act::MdsReset { s } => self.line_lost(s),
            Act::ClientClockJump { s } => self.clients[s].leases.ahead += CLOCK_JUMP,
            Act::Write { s, o, v } => self.write(s, o, v)?,
            Act::Read { s, o, v } => self.read(s, o, v),
            Act::Fsync { s } => {
                let (now, client) = (self.now, &mut self.clients[s]);
                client.machine.want_stable(now, protocol::Seq::new(client.writes));
                self.pump(s)?;
            }
            Act::Tick { s } => {
                if let Some(deadline) = self.clients[s].machine.next_deadline() {
                    self.now = self.now.max(deadline);
                    self.clients[s].machine.tick(self.now);
                    self.pump(s)?;
                }
            }
            Act::Request { s, i } => {
                if let Some(msg) = self.net[s][i].req.pop_front() {
                    self.deliver(s, i, msg)?;
                }
            }
            Act::LateRequest { s, i } => {
                if let Some(msg) = self.net[s][i].old_req.pop_front() {
                    self.cover("a message arrives late");
                    self.deliver(s, i, msg)?;
                }
            }
            Act::Reply { s, i } => {
                if let Some(rep) = self.net[s][i].rep.pop_front() {
                    self.reply(s, i, rep)?;
                }
            }
            Act::LateReply { s, i } => {
                if let Some(rep) = self.net[s][i].old_rep.pop_front() {
                    self.cover("an answer arrives late");
                    self.reply(s, i, rep)?;
                }
            }
            Act::Timeout { s, i } | Act::Reset { s, i } => {
                self.reset(s, i);
                self.pump(s)?;
            }
            _ => self.node_step(act)?,
        }
        for node in self.nodes.iter_mut().filter(|node| node.disk.failed) {
            node.poisoned = true;
        }
        self.look_at_rot();
        self.check()
    }

    fn node_step(&mut self, act: Act) -> Check {
        match act {
            Act::Turn { i } => self.turn(i),
            Act::Sync { i } => self.nodes[i].syncs.wanted = true,
            Act::Synced { i } => self.nodes[i].synced(),
            Act::Apply { i } => self.apply(i)?,
            Act::Trim { i } => self.nodes[i].begin_trim(),
            Act::TrimOn { i } => {
                if self.nodes[i].trim_on() {
                    self.cover("a journal is trimmed");
                }
            }
            Act::Start { i } => self.start(i),
            Act::NodeLearn { i, v } => self.node_learns(i, v),
            Act::Tell { i } => self.tell(i),
            Act::Hear { i } => self.hear(i),
            Act::Way { i } => self.way_on(i)?,
            Act::Serve { i } => self.serve(i)?,
            Act::ServeLate { n } => self.serve_late(n)?,
            Act::Coordinate => self.coordinate(),
            Act::Question { n } => self.question(n)?,
            Act::Answer { i } => self.answer(i),
            Act::HearAnswer { n } => self.hear_answer(n, false)?,
            Act::DropHolding { n } => self.hear_answer(n, true)?,
            Act::MonitorTick => self.silence(None, None),
            Act::MdsLearn => self.mds_learns(),
            Act::MdsTick => self.mds_ticks(),
            Act::MdsSizes => self.mds_sizes(),
            Act::MdsRestart { v } => self.mds_restarts(v.is_multiple_of(2)),
            Act::Renewal { n } => self.renewal(n),
            Act::Part { v } => self.part(v),
            Act::Healed => self.partition = 0,
            Act::IoFails { i, v } => {
                let fails = if v.is_multiple_of(3) { Failing::Read } else { Failing::Write };
                self.nodes[i].disk.fails = Some(fails);
            }
            Act::MarkDown { i } => self.silence(Some(i), None),
            Act::Expire { s } => self.silence(None, Some(s)),
            Act::Freed { i } => self.nodes[i].disk.full = false,
            Act::Fills { i } => self.nodes[i].disk.full = true,
            Act::Drop { s, i } => {
                self.net[s][i].holes = true;
                self.net[s][i].req.pop_front();
            }
            Act::DropAnswer { i } => self.drop_answer(i),
            Act::Crash { i } => self.stop_and_pump(|world| world.stop(i))?,
            Act::MonitorRestart => self.monitor_restarts(),
            Act::Power { i, v } => self.stop_and_pump(|world| world.power(i, v))?,
            Act::PowerAll { v } => {
                let all: [usize; N] = std::array::from_fn(|i| i);
                self.stop_and_pump(|world| {
                    all.iter().for_each(|&i| world.power(i, v.rotate_left(7 * i as u32)))
                })?;
            }
            Act::LoseDisk { i } => self.stop_and_pump(|world| world.lose_disk(i))?,
            Act::ClientCrash { s } => self.stop_client(s),
            Act::SyncFails { i, .. } => self.sync_fails(i),
            Act::ClockJump => self.clock_jump()?,
            Act::Rot { i, v } => self.rot(i, v),
            Act::Scrub { i } => self.scrub(i),
            Act::Mend { i } => self.mend_on(i)?,
            other => unreachable!("a step of a session: {other:?}"),
        }
        Ok(())
    }

    fn drop_answer(&mut self, i: usize) {
        let way = self.nodes[i].way.as_mut();
        let Some(call) = way.and_then(|way| way.call.as_mut()) else { return };
        if call.answer.is_none() {
            self.strays.push((call.to, call.request.clone()));
        }
        call.answer = Some(crate::way::Answer::No);
    }

    fn stop_and_pump(&mut self, stop: impl FnOnce(&mut Self)) -> Check {
        stop(self);
        (0..self.clients.len()).try_for_each(|s| self.pump(s))
    }
}
