//! A monitor of several that does not lead: what it shows, and what it takes along when it leads.
//!
//! Contract: pure. An [`Observer`] has the state as it is committed, and what it heard of OSDs
//! itself, for they report to all monitors. It decides nothing. It becomes a [`Monitor`] as after a
//! restart. Rule: LeadTtl - every session has its full time again, from now on. An OSD that was
//! heard keeps the moment, but for half of the grace at most; one that was not has the full grace.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpectedOsd, PoolSpec, create_cluster};
    use protocol::health::HealthCode;
    use protocol::monitor::OsdReport;
    use protocol::quorum::MonitorStatus;
    use protocol::{ClusterId, OsdId, SessionId};

    const SETTINGS: fn() -> Settings = Settings::default;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Two OSDs that are up, and a session, as a leader left them.
    fn state() -> MonitorState {
        let pool = PoolSpec::new("data", 1, 1, 512, 1).expect("a profile");
        let state =
            create_cluster(ClusterId::new(1), &ExpectedOsd::first(2), &pool).expect("enough OSDs");
        let mut monitor = Monitor::start(state, SETTINGS(), at(0));
        for osd in [0, 1].map(OsdId::new) {
            let (addr, host) = (([127, 0, 0, 1], 7410).into(), "here".to_owned());
            let fsid = 1 + u128::from(osd.get());
            let boot =
                MonitorRequest::Boot { osd, fsid, addr, cores: 1, lost: false, blank: true, host };
            assert!(matches!(monitor.handle(boot, at(0)), MonitorReply::Done(_)));
        }
        let open = MonitorRequest::OpenSession { name: "c".into() };
        assert!(matches!(monitor.handle(open, at(0)), MonitorReply::Session { .. }));
        monitor.state().clone()
    }

    fn heartbeat(osd: u32) -> MonitorRequest {
        let report = OsdReport { osd: OsdId::new(osd), total_bytes: 7, ..OsdReport::default() };
        MonitorRequest::Heartbeat { fsid: 1 + u128::from(report.osd.get()), report }
    }

    fn up(monitor: &Monitor) -> Vec<bool> {
        monitor.map().osds.values().map(|osd| osd.up).collect()
    }

    #[test]
    fn it_shows_and_decides_nothing() {
        let (state, session) = (state(), SessionId::new(1));
        let mut observer = Observer::new(state.clone(), SETTINGS(), at(0));
        assert_eq!(observer.answer(MonitorRequest::RenewSession { session }, at(1)), None);
        assert_eq!(observer.answer(MonitorRequest::EvictSession { session }, at(1)), None);
        let done = MonitorReply::Done(state.map.epoch);
        assert_eq!(observer.answer(heartbeat(0), at(1)), Some(done));
        let monitors = [true, true, false].map(|up| MonitorStatus {
            addr: ([127, 0, 0, 1], 7400).into(),
            up,
            votes: true,
        });
        let quorum =
            QuorumStatus { term: 3, leader: Some(1), told_by: 0, monitors: monitors.to_vec() };
        observer.tick(quorum.clone(), at(60_000));
        assert_eq!(observer.map(), &state.map, "nobody is marked down by it, no session dies");
        let status = observer.status();
        assert_eq!(status.quorum.as_ref(), Some(&quorum));
        assert_eq!(status.osds[0].report.total_bytes, 7);
        let check = |status: &ClusterStatus| {
            let check = status.checks.iter().find(|check| check.code == HealthCode::MonDown);
            check.map(|check| (check.severity, check.summary.clone()))
        };
        let (severity, summary) = check(&status).expect("one is down");
        assert_eq!(severity, Health::Degraded);
        assert!(summary.starts_with("monitor.2 at 127.0.0.1:7400 is not heard"), "{summary}");
        observer.tick(QuorumStatus { leader: None, ..quorum }, at(61_000));
        assert_eq!(check(&observer.status()).expect("none leads").0, Health::Down);
    }

    #[test]
    fn a_new_leader_gives_sessions_all_their_time_and_osds_half_the_grace() {
        let mut observer = Observer::new(state(), SETTINGS(), at(0));
        observer.answer(heartbeat(0), at(9_900));
        observer.answer(heartbeat(1), at(5_000));
        let mut monitor = observer.lead(at(10_000), at(10_000));
        monitor.tick(at(10_900));
        assert_eq!(up(&monitor), [true, true]);
        monitor.tick(at(11_100));
        assert_eq!(up(&monitor), [true, false], "it was silent to this monitor for long");
        monitor.handle(heartbeat(0), at(11_900));
        (12..20).for_each(|second| {
            monitor.handle(heartbeat(0), at(second * 1000));
            monitor.tick(at(second * 1000));
        });
        let session = SessionId::new(1);
        let renewed = monitor.handle(MonitorRequest::RenewSession { session }, at(19_900));
        assert!(matches!(renewed, MonitorReply::Done(_)), "{renewed:?}");
        // one that was never heard has the full grace
        let mut monitor = Observer::new(state(), SETTINGS(), at(0)).lead(at(0), at(50_000));
        monitor.tick(at(51_900));
        assert_eq!(up(&monitor), [true, true]);
    }

    #[test]
    fn what_a_deposed_leader_had_not_committed_is_gone() {
        let committed = state();
        let mut monitor = Monitor::start(committed.clone(), SETTINGS(), at(0));
        monitor.handle(heartbeat(1), at(5));
        let session = SessionId::new(1);
        monitor.handle(MonitorRequest::EvictSession { session }, at(10));
        assert!(monitor.map().epoch > committed.map.epoch);
        let observer = monitor.follow(committed.clone(), at(20));
        assert_eq!(observer.map(), &committed.map);
        assert_eq!(observer.status().osds[1].report.total_bytes, 7, "it still knows this");
    }
}
