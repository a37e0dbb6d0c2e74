//! The monitor and its coordinator of dead sessions, as the daemons drive them.

use crate::node::{Held, Told};
use crate::partition::Party;
use crate::world::{Check, N, Question, World, pg_id, si, sid};
use cluster::Monitor;
use ec_store::pg::shard::Step;
use protocol::monitor::{MonitorReply, MonitorRequest, OsdReport, ResolveReply, ResolveRequest};
use protocol::{Epoch, OsdId, ShardSet};
use std::time::Duration;

/// Time after which the monitor counts a silent peer as gone; below what it takes for a stall of
/// its own.
pub const SILENCE: Duration = Duration::from_millis(800);

impl World {
    fn osd(&self, i: usize) -> OsdId {
        self.mon.map().osd_of(pg_id(), si(i)).expect("every shard has an OSD")
    }

    /// Passes something into the monitor and looks what became of it.
    fn monitor<R>(&mut self, input: impl FnOnce(&mut Monitor, Duration) -> R) -> R {
        let state = self.mon.state().pgs[&pg_id()];
        let proposed = self.map().view;
        self.mon_now += Duration::from_millis(1);
        let result = input(&mut self.mon, self.mon_now);
        self.take_map();
        if !self.map().view.joining.minus(proposed.joining).is_empty() {
            self.cover("a shard is written to while it joins");
        }
        if !proposed.active && self.map().view.active {
            self.cover("a PG becomes active");
            if state.forced && !state.lost.intersection(self.map().view.in_sync).is_empty() {
                self.cover("a member without its unsynced tail stays");
                self.ghost.may_lose = self.clients.iter().map(|client| client.reported).collect();
            }
        }
        result
    }

    /// Those that can reach the monitor are heard, but for these.
    fn everyone_is_heard(&mut self, but_node: Option<usize>, but_session: Option<usize>) {
        for i in 0..N {
            if Some(i) == but_node || self.apart(Party::Node(i), Party::Monitor) {
                continue;
            }
            let osd = self.osd(i);
            let report = OsdReport { osd, ..OsdReport::default() };
            self.mon.handle(MonitorRequest::Heartbeat { report }, self.mon_now);
        }
        for s in 0..self.clients.len() {
            if Some(s) == but_session || self.apart(Party::Client(s), Party::Monitor) {
                continue;
            }
            let reply =
                self.mon.handle(MonitorRequest::RenewSession { session: sid(s) }, self.mon_now);
            if self.clients[s].run && !matches!(reply, MonitorReply::Fenced) {
                self.was_renewed(s);
            }
        }
    }

    /// Time passes in which one peer is silent, or none.
    pub fn silence(&mut self, but_node: Option<usize>, but_session: Option<usize>) {
        self.everyone_is_heard(None, None);
        self.monitor(|mon, now| mon.tick(now));
        self.mon_now += SILENCE;
        self.everyone_is_heard(but_node, but_session);
        self.monitor(|mon, now| mon.tick(now));
    }

    /// The monitor stands still for long: nobody else is to blame.
    pub fn clock_jump(&mut self) -> Check {
        self.everyone_is_heard(None, None);
        // Who cannot reach it may have been silent for too long before.
        self.monitor(|mon, now| mon.tick(now));
        let before = self.mon.map().epoch;
        self.mon_now += Duration::from_secs(3600);
        self.monitor(|mon, now| mon.tick(now));
        if self.mon.map().epoch == before || self.mon.map().pgs.values().any(|pg| !pg.active) {
            return Ok(());
        }
        Err("progress: the monitor blamed others for its own stall".into())
    }

    /// The monitor is started again from what it saved.
    pub fn monitor_restarts(&mut self) {
        let settings = cluster::Settings {
            heartbeat_grace: SILENCE / 2,
            session_ttl: SILENCE / 2,
            start_wait: Duration::ZERO,
            rules: self.rules,
        };
        self.mon = Monitor::start(self.mon.state().clone(), settings, self.mon_now);
        self.take_map();
        // what is on its way arrives all the same, and nobody takes the answer
        self.questions.iter_mut().for_each(|question| question.ticket = u64::MAX);
        self.nodes
            .iter_mut()
            .flat_map(|node| &mut node.holdings)
            .for_each(|held| held.ticket = u64::MAX);
        self.answers.clear();
    }

    /// The monitor takes the next message of node `i`.
    pub fn hear(&mut self, i: usize) {
        let Some(request) = self.to_mon[i].pop_front() else { return };
        let boots = matches!(request, MonitorRequest::Boot { .. });
        let joins = matches!(request, MonitorRequest::Join { .. });
        let reply = self.monitor(|mon, now| mon.handle(request, now));
        match reply {
            // The answer to a process that is dead by now reaches nobody.
            MonitorReply::Done(_) if boots && self.nodes[i].stale_boots > 0 => {
                self.nodes[i].stale_boots -= 1
            }
            MonitorReply::Done(epoch) if boots && self.nodes[i].booting => {
                let node = &mut self.nodes[i];
                (node.booting, node.serve_from) =
                    (false, Some(node.serve_from.map_or(epoch, |e| e.max(epoch))));
                (node.lost, node.blank) = (false, false);
            }
            MonitorReply::Done(_) if joins => self.cover("a shard joins the in-sync set"),
            MonitorReply::Refused(_) if joins => self.cover("a join of another epoch is refused"),
            _ => {}
        }
    }

    /// The boot message of node `i`.
    pub fn boot(&mut self, i: usize) {
        let osd = self.osd(i);
        let stale = self.to_mon[i]
            .iter()
            .filter(|request| matches!(request, MonitorRequest::Boot { .. }))
            .count();
        let node = &mut self.nodes[i];
        (node.booting, node.stale_boots) = (true, stale);
        let request = MonitorRequest::Boot {
            osd,
            // Always the same: that the operator consents to another disk is not what is walked
            // here, its being blank is.
            fsid: 1,
            addr: ([127, 0, 0, 1], 7000 + i as u16).into(),
            cores: 1,
            lost: node.lost,
            blank: node.blank,
            host: format!("host-{i}"),
        };
        self.to_mon[i].push_back(request);
    }

    /// What node `i` should tell the monitor and has not.
    pub fn wish(&self, i: usize) -> Option<(Epoch, Told)> {
        let node = &self.nodes[i];
        let view = node.shard.as_ref()?.view();
        let way =
            node.way.as_ref().filter(|way| way.epoch == view.pg.epoch).map(|way| way.stage.told());
        let wish = match way.flatten() {
            _ if view.is_in_sync() && !view.pg.active => Told::Peered,
            Some(Told::AskJoin) if !view.is_joining() => Told::AskJoin,
            Some(Told::Join) if view.is_joining() => Told::Join,
            _ => return None,
        };
        (node.told != Some((view.pg.epoch, wish))).then_some((view.pg.epoch, wish))
    }

    /// Node `i` tells it.
    pub fn tell(&mut self, i: usize) {
        let Some((epoch, wish)) = self.wish(i) else { return };
        self.nodes[i].told = Some((epoch, wish));
        let (osd, pgs) = (self.osd(i), vec![(pg_id(), epoch)]);
        self.to_mon[i].push_back(match wish {
            Told::Peered => MonitorRequest::Peered { osd, pgs },
            Told::AskJoin => MonitorRequest::AskJoin { osd, pgs },
            Told::Join => MonitorRequest::Join { osd, pg: pg_id(), epoch },
        });
    }

    /// May this disk be lost? Never more than the code can bear.
    pub fn can_lose(&self, i: usize) -> bool {
        let state = &self.mon.state().pgs[&pg_id()];
        let blank =
            (0..N).filter(|i| self.nodes[*i].blank).fold(ShardSet::EMPTY, |set, i| set.with(si(i)));
        let safe = |set: ShardSet| {
            set.minus(state.gone).minus(blank).without(si(i)).len() >= crate::world::K
        };
        let view = &self.map().view;
        state.begun
            && safe(state.confirmed)
            && (view.active || view.in_sync.is_empty() || safe(view.in_sync))
    }

    // ---- the end of dead sessions

    /// The monitor's questions.
    pub fn coordinate(&mut self) {
        self.mon_now += Duration::from_millis(100);
        for action in self.mon.actions(self.mon_now) {
            let to = (0..N).find(|i| self.osd(*i) == action.osd).expect("every OSD has a shard");
            self.questions.push(Question { ticket: action.ticket, to, request: action.request });
        }
    }

    /// A node takes question `n`.
    pub fn question(&mut self, n: usize) -> Check {
        let Question { ticket, to, request } = self.questions.swap_remove(n);
        let node = &mut self.nodes[to];
        let Some(shard) = node.shard.as_mut().filter(|_| node.run && !node.poisoned) else {
            self.answers.push((ticket, None));
            return Ok(());
        };
        let (taken, step) = match &request {
            ResolveRequest::Collect { session, pgs } => {
                (shard.fence(*session, pgs[0].1), Step::TellHolding)
            }
            ResolveRequest::Decide { session, cuts } => {
                let (_, epoch, cut) = cuts[0];
                (
                    shard
                        .decide(&mut node.disk, *session, epoch, cut)
                        .expect("deltas are always taken"),
                    Step::TellDecided,
                )
            }
        };
        if let ResolveRequest::Decide { session, cuts } = &request {
            let (s, cut) = (session.get() as usize - 1, cuts[0].2.get());
            self.note(|| format!("session {s} is cut at {cut} at shard {to}: {taken}"));
            self.ghost.chosen[s] = if taken { cut } else { self.ghost.chosen[s] };
            if self.ghost.applied[s] > cut && taken {
                return Err(format!(
                    "no-torn-stripe: a record of session {s} beyond its cut {cut} was applied"
                ));
            }
        }
        if !taken {
            self.answers.push((ticket, Some(ResolveReply::NotYet)));
            return Ok(());
        }
        let wait = self.nodes[to].barrier(step);
        self.nodes[to].holdings.push(Held { ticket, request, wait });
        Ok(())
    }

    /// Node `i` answers the first question whose sync has ended.
    pub fn answer(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        let Some(at) = node.holdings.iter().position(|held| node.syncs.is_done(held.wait)) else {
            return;
        };
        let Held { ticket, request, .. } = node.holdings.swap_remove(at);
        let Some(shard) = &node.shard else { return };
        let reply = match request {
            ResolveRequest::Collect { session, pgs } => match shard.holding(session, pgs[0].1) {
                Some(holding) => ResolveReply::Collected(vec![holding]),
                None => ResolveReply::NotYet,
            },
            ResolveRequest::Decide { cuts, .. } => {
                ResolveReply::Decided(cuts.iter().map(|cut| cut.0).collect())
            }
        };
        self.answers.push((ticket, Some(reply)));
    }

    /// The monitor takes answer `n`.
    pub fn hear_answer(&mut self, n: usize, lost: bool) -> Check {
        let (ticket, reply) = self.answers.swap_remove(n);
        let before = self.map().table.dead.clone();
        let reply = reply.filter(|_| !lost);
        self.monitor(|mon, now| mon.resolve_answer(ticket, reply, now));
        for session in before {
            if !self.mon.map().sessions.contains_key(&session) {
                self.cover("session resolved");
                let s = session.get() as usize - 1;
                self.ghost.cut[s] = Some(self.ghost.chosen[s]);
                self.check_kept(s)?;
            }
        }
        Ok(())
    }
}
