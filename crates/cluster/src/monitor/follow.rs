//! A monitor of several that does not lead: what it shows, and what it takes along when it leads.
//!
//! Contract: pure. An [`Observer`] has the state as it is committed, and what it heard of OSDs
//! itself, for they report to all monitors. It decides nothing. It becomes a [`Monitor`] as after a
//! restart: every session has its full time again, from now on; an OSD that was heard keeps the
//! moment, but for half of the grace at most, one that was not has the full grace.

use super::{Liveness, Monitor, Settings};
use crate::map::ClusterMap;
use crate::state::MonitorState;
use protocol::Rules;
use protocol::monitor::{ClusterStatus, Health, MapUpdate, MonitorReply, MonitorRequest};
use protocol::quorum::QuorumStatus;
use std::time::Duration;

/// Is it for the leader alone? Anything else is answered by every monitor, from what it has.
///
/// Rule: ConfirmRenew - a leader answers what is for it alone only after a majority has followed it
/// since the question came.
pub fn decides(request: &MonitorRequest) -> bool {
    !matches!(
        request,
        MonitorRequest::Subscribe
            | MonitorRequest::Status
            | MonitorRequest::Events { .. }
            | MonitorRequest::Heartbeat { .. }
    )
}

/// See the module.
#[derive(Debug)]
pub struct Observer(Monitor);

impl Observer {
    /// One that has this state.
    pub fn new(state: MonitorState, settings: Settings, now: Duration) -> Self {
        let live = Liveness { last_tick: now, ..Liveness::default() };
        let resolver = super::Resolver::new(Rules::default());
        Self(Monitor { settings, state, live, resolver, change: super::Change::default() })
    }

    /// The state that is committed by now.
    pub fn see(&mut self, state: MonitorState) {
        self.0.state = state;
        self.0.live.watch.look_again();
    }

    /// The map.
    pub fn map(&self) -> &ClusterMap {
        self.0.map()
    }

    /// The map as a message.
    pub fn update(&self) -> MapUpdate {
        self.0.update()
    }

    /// How the cluster is, as far as it knows.
    pub fn status(&self) -> ClusterStatus {
        self.0.status()
    }

    /// The answer, or `None`: only the leader has one.
    pub fn answer(&mut self, request: MonitorRequest, now: Duration) -> Option<MonitorReply> {
        (!decides(&request)).then(|| self.0.handle(request, now))
    }

    /// Time passes, and this is known of the monitors.
    pub fn tick(&mut self, quorum: QuorumStatus, now: Duration) {
        self.0.live.last_tick = self.0.live.last_tick.max(now);
        self.0.set_quorum(quorum);
        self.0.watch_health(now);
    }

    /// An event, for people.
    pub fn remember(&mut self, severity: Health, what: &str) {
        self.0.note(severity, what);
    }

    /// It leads from now on. `waited`: for how long this monitor has heard OSDs already, of the
    /// time for which one that starts waits for those that were down.
    pub fn lead(self, waited: Duration, now: Duration) -> Monitor {
        let Monitor { settings, state, live: own, .. } = self.0;
        let start_wait = settings.start_wait.saturating_sub(waited);
        let mut monitor = Monitor::start(state, Settings { start_wait, ..settings }, now);
        let least = now.saturating_sub(settings.heartbeat_grace / 2);
        for (id, at) in own.osds {
            if let Some(known) = monitor.live.osds.get_mut(&id) {
                *known = at.max(least);
                monitor.live.heard.insert(id);
            }
        }
        let live = &mut monitor.live;
        (live.reports, live.progress) = (own.reports, own.progress);
        (live.events, live.watch, live.quorum) = (own.events, own.watch, own.quorum);
        monitor
    }
}

impl Monitor {
    /// It leads no longer: what it had not committed is forgotten, `state` is what is committed.
    pub fn follow(self, state: MonitorState, now: Duration) -> Observer {
        let Monitor { settings, live: own, .. } = self;
        let mut observer = Observer::new(state, settings, now);
        let live = &mut observer.0.live;
        (live.osds, live.reports, live.progress) = (own.osds, own.reports, own.progress);
        (live.events, live.watch, live.quorum) = (own.events, own.watch, own.quorum);
        observer
    }

    /// What is known of the monitors, where there are several.
    pub fn set_quorum(&mut self, quorum: QuorumStatus) {
        if self.live.quorum.as_ref() != Some(&quorum) {
            self.live.quorum = Some(quorum);
            self.live.watch.look_again();
        }
    }

    /// An event, for people.
    pub fn remember(&mut self, severity: Health, what: &str) {
        self.note(severity, what);
    }
}
