//! The monitor as a pure state machine: liveness, in-sync sets, epochs, sessions, and the end of
//! dead sessions.
//!
//! Contract: no I/O and no clock. Time is passed in as the time since any fixed moment, never going
//! back. Whoever drives it does, after each batch of inputs: if [`Monitor::map`] has a greater
//! epoch than the last one saved, save [`Monitor::state`] durably, then publish the map, then
//! answer the inputs; ask the OSDs what [`Monitor::actions`] says; call [`Monitor::tick`] every 100
//! ms or so. An OSD that finds itself down in the map boots again.
//!
//! Its rules are those of docs/design/write-path.md, for many PGs. A PG's epoch is the map epoch in
//! which it last changed; what happens to an OSD happens to every PG it holds a shard of; the death
//! of a session changes the epoch of every PG (Rule: ExpireEpoch), so that every shard learns of it
//! before it takes another message. The rules of one PG are in `monitor/pg.rs`, the end of dead
//! sessions in `monitor/resolve.rs`.
//!
//! Left for later: an OSD that stays away stays a member ("down" and never "out"), so its PGs stay
//! degraded until it, or a new disk under its number, comes back; and adding OSDs to a cluster, or
//! moving PGs to them, has no command yet. Placement already answers where they would go.

mod create;
mod events;
mod health;
mod pg;
mod progress;
mod resolve;
#[cfg(test)]
mod simulation;
mod status;
#[cfg(test)]
mod tests;

pub use create::{CreateError, ExpectedOsd, PoolSpec, create_cluster};
pub use events::EVENTS_MAX;
pub use resolve::Action;

use crate::map::{ClusterMap, SessionState};
use crate::state::MonitorState;
use pg::PgRules;
use progress::Progress;
use protocol::monitor::{
    Health, MapUpdate, MdsReport, MonitorReply, MonitorRequest, OsdReport, ResolveReply,
};
use protocol::{Epoch, OsdId, PgId, Rule, Rules, SessionId, ShardIndex, ShardSet};
use resolve::Resolver;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes of a client's name that are kept, at most: it is for the operator's eye, and stands in
/// every saved state.
pub const SESSION_NAME_BYTES_MAX: usize = 256;

/// Bytes of a machine's name, at most: every map carries it. Linux has 64, a domain name 253.
pub const HOST_NAME_BYTES_MAX: usize = 256;

/// Cores of an OSD, at most, as its settings have it: clients hold a connection to each.
pub const OSD_CORES_MAX: u16 = 256;

/// Sessions at a time, at most; every map carries them all.
pub const SESSIONS_MAX: usize = 4096;

/// Two ticks further apart than this mean that the monitor itself stood still, and nobody else is
/// to blame for silence.
const STALL_MIN: Duration = Duration::from_millis(1000);

/// Times that the monitor keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// An OSD silent for so long is marked down. Default 2 s: with it an operation meets a dead OSD
    /// well within 5 s.
    pub heartbeat_grace: Duration,
    /// A session not renewed for so long is dead. Default 10 s.
    pub session_ttl: Duration,
    /// How long a monitor that starts waits for OSDs that were down, before a PG goes on without
    /// them. Default 3 s.
    pub start_wait: Duration,
    /// The write protocol's rules that hold: all.
    pub rules: Rules,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat_grace: Duration::from_secs(2),
            session_ttl: Duration::from_secs(10),
            start_wait: Duration::from_secs(3),
            rules: Rules::default(),
        }
    }
}

/// What is said to a metadata service that is not this cluster's.
const OTHER_NAMESPACE: &str = "this cluster has another namespace: if the data directory of the metadata service is empty, \
     its disk is not mounted; if that disk is lost, so are all names, and what is left to do is a new cluster";

/// The state machine.
#[derive(Debug)]
pub struct Monitor {
    settings: Settings,
    state: MonitorState,
    live: Liveness,
    resolver: Resolver,
    /// PGs to get the next epoch; and that there will be one. Empty between inputs.
    change: Change,
}

/// What is heard of whom, and when. Not durable: a monitor that restarts gives everyone the full
/// time again.
#[derive(Debug, Default)]
struct Liveness {
    last_tick: Duration,
    osds: BTreeMap<OsdId, Duration>,
    /// OSDs heard of since the start: their address and disk in the map are those of a live
    /// process.
    heard: BTreeSet<OsdId>,
    sessions: BTreeMap<SessionId, Duration>,
    reports: BTreeMap<OsdId, OsdReport>,
    progress: Progress,
    watch: health::Watch,
    events: events::Events,
    /// OSDs that were down at the start, until they boot or `wait_until` passes.
    awaited: BTreeSet<OsdId>,
    wait_until: Duration,
    /// What the metadata service last could not go on with, and when it said so.
    mds: Option<(Duration, MdsReport)>,
    /// When the metadata service was last heard, or when the monitor started, if the map has one.
    mds_heard: Option<Duration>,
}

#[derive(Debug, Default)]
struct Change {
    any: bool,
    pgs: BTreeSet<PgId>,
}

impl Monitor {
    /// A monitor that goes on from a saved (or newly created) state. Makes a new epoch if a PG was
    /// not active, as the answers that it had are forgotten.
    pub fn start(state: MonitorState, settings: Settings, now: Duration) -> Self {
        let (up, down): (Vec<_>, Vec<_>) = state.map.osds.iter().partition(|(_, osd)| osd.up);
        let live = Liveness {
            last_tick: now,
            osds: up.iter().map(|(id, _)| (**id, now)).collect(),
            sessions: state
                .map
                .sessions
                .keys()
                .map(|id| (*id, now + settings.session_ttl))
                .collect(),
            awaited: down.iter().map(|(id, _)| **id).collect(),
            wait_until: now + settings.start_wait,
            mds_heard: state.map.mds.map(|_| now),
            ..Liveness::default()
        };
        let (resolver, change) = (Resolver::new(settings.rules), Change::default());
        let mut monitor = Self { settings, state, live, resolver, change };
        monitor
            .state
            .dead_sessions()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|id| monitor.resolver.begin(id));
        monitor.for_inactive_pgs(|rules, _| rules.propose());
        monitor.commit();
        monitor
    }

    /// The map.
    pub fn map(&self) -> &ClusterMap {
        &self.state.map
    }

    /// What must be saved before the map is published.
    pub fn state(&self) -> &MonitorState {
        &self.state
    }

    /// The map as a message.
    pub fn update(&self) -> MapUpdate {
        MapUpdate {
            cluster: self.state.map.cluster,
            epoch: self.state.map.epoch,
            map: self.state.map.encode(),
            monitors: Vec::new(),
        }
    }

    /// Takes a request. The answer must not be sent before the state is saved, if the map's epoch
    /// has changed.
    pub fn handle(&mut self, request: MonitorRequest, now: Duration) -> MonitorReply {
        let outcome = match request {
            MonitorRequest::Subscribe => return MonitorReply::Map(self.update()),
            MonitorRequest::Events { after } => {
                return MonitorReply::Events(self.live.events.after(after, self.live.last_tick));
            }
            MonitorRequest::Status => return MonitorReply::Status(Box::new(self.status())),
            MonitorRequest::OpenSession { name } => return self.open_session(name, now),
            MonitorRequest::RenewSession { session } => return self.renew_session(session, now),
            MonitorRequest::Boot { osd, fsid, addr, cores, lost, blank, host } => {
                self.boot(osd, Process { fsid, addr, cores, host }, lost, blank, now)
            }
            MonitorRequest::Leave { osd } => self.leave(osd),
            MonitorRequest::Heartbeat { report } => self.heartbeat(report, now),
            MonitorRequest::Peered { osd, pgs } => self.peered(osd, &pgs),
            MonitorRequest::AskJoin { osd, pgs } => self.ask_join(osd, &pgs),
            MonitorRequest::Join { osd, pg, epoch } => self.join(osd, pg, epoch),
            MonitorRequest::CloseSession { session } => self.close_session(session),
            MonitorRequest::CreatePool { name, profile, pg_num } => self
                .create_pool(&PoolSpec { name, profile, pg_num })
                .map_err(|error| error.to_string()),
            MonitorRequest::RenamePool { name, new_name } => self.rename_pool(&name, new_name),
            MonitorRequest::MdsUp { addr, namespace, old } => {
                self.mds_up(addr, (namespace, old), now)
            }
            MonitorRequest::MdsHeartbeat { addr, namespace } => {
                self.mds_heartbeat(addr, namespace, now)
            }
            MonitorRequest::MdsReport(report) => {
                self.live.mds = Some((now, report));
                Ok(())
            }
            MonitorRequest::ReplaceOsd { osd } => self.replace(osd),
            MonitorRequest::EvictSession { session } => {
                self.expire(session, "evicted");
                Ok(())
            }
        };
        self.commit();
        match outcome {
            Ok(()) => MonitorReply::Done(self.state.map.epoch),
            Err(why) => MonitorReply::Refused(why),
        }
    }

    /// Time passes: silent OSDs go down, silent sessions die, those resolved leave the map.
    pub fn tick(&mut self, now: Duration) {
        let live = &mut self.live;
        let stall = now.saturating_sub(live.last_tick);
        if stall > STALL_MIN {
            tracing::warn!(?stall, "the monitor stood still; all deadlines move by as much");
            live.osds.values_mut().chain(live.sessions.values_mut()).for_each(|at| *at += stall);
            live.wait_until += stall;
            live.mds_heard = live.mds_heard.map(|at| at + stall);
        }
        live.last_tick = live.last_tick.max(now);
        if now >= live.wait_until && !live.awaited.is_empty() {
            tracing::info!(osds = ?live.awaited, "not waiting for these any longer");
            live.awaited.clear();
            self.for_inactive_pgs(|rules, _| rules.propose());
        }
        let grace = self.settings.heartbeat_grace;
        let silent = |(id, at): (&OsdId, &Duration)| (now > *at + grace).then_some(*id);
        for osd in self.live.osds.iter().filter_map(silent).collect::<Vec<_>>() {
            tracing::warn!(%osd, "no heartbeat: marked down");
            self.note(Health::Degraded, &format!("{osd} sends no heartbeats"));
            self.mark_down(osd);
        }
        let over = |(id, at): (&SessionId, &Duration)| (now > *at).then_some(*id);
        for session in self.live.sessions.iter().filter_map(over).collect::<Vec<_>>() {
            self.expire(session, "not renewed");
        }
        self.commit();
        self.drop_resolved();
        self.watch_health(now);
    }

    /// The questions to ask OSDs now. Every one must be answered, or given up, with
    /// [`Monitor::resolve_answer`].
    pub fn actions(&mut self, now: Duration) -> Vec<Action> {
        self.resolver.questions(&self.state.map, now)
    }

    /// The answer to an action, or `None` if there is none in time.
    pub fn resolve_answer(&mut self, ticket: u64, reply: Option<ResolveReply>, now: Duration) {
        self.resolver.answer(&self.state.map, ticket, reply, now);
        self.drop_resolved();
    }

    // ---- OSDs

    fn boot(
        &mut self,
        id: OsdId,
        process: Process,
        lost: bool,
        blank: bool,
        now: Duration,
    ) -> Result<(), String> {
        let grace = self.settings.heartbeat_grace;
        let heard = self.live.heard.contains(&id)
            && self.live.osds.get(&id).is_some_and(|at| now <= *at + grace);
        let Some(osd) = self.state.map.osds.get_mut(&id) else {
            let members =
                self.state.map.osds.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(format!("{id} is not a member of this cluster, which has {members}"));
        };
        if process.host.len() > HOST_NAME_BYTES_MAX || process.cores > OSD_CORES_MAX {
            return Err(format!(
                "{id} names {} cores, at most {OSD_CORES_MAX} are possible, and a machine in {} bytes of at most \
                 {HOST_NAME_BYTES_MAX}",
                process.cores,
                process.host.len()
            ));
        }
        let was_up = osd.up;
        let replaced = osd.fsid != 0 && osd.fsid != process.fsid;
        if replaced && osd.up && heard && osd.addr != Some(process.addr) {
            let addr = osd.addr.map_or_else(String::new, |a| format!(" at {a}"));
            return Err(format!(
                "{id} is up{addr} with another disk: stop that process first, or correct the id"
            ));
        }
        if replaced && !osd.replace {
            return Err(format!(
                "{id} has data in this cluster on another disk than the one it comes with: mount that disk, or, if it \
                 is lost, run `trefoil osd replace {id}` and start {id} again"
            ));
        }
        let started = match (replaced, lost) {
            (true, _) => "on another disk: everything on it will be rebuilt",
            (false, true) => "after its machine was restarted",
            (false, false) => "",
        };
        if replaced {
            tracing::warn!(osd = %id, "the disk was replaced: everything on it will be rebuilt");
        }
        osd.replace = false;
        tracing::info!(osd = %id, addr = %process.addr, lost, blank, "boot");
        (osd.up, osd.addr, osd.cores) = (true, Some(process.addr), process.cores.max(1));
        let what = format!("{id} started on {} {started}", process.host);
        (osd.fsid, osd.host) = (process.fsid, process.host);
        self.live.osds.insert(id, now);
        self.live.heard.insert(id);
        self.live.awaited.remove(&id);
        self.live.reports.remove(&id);
        self.note(Health::Ok, what.trim_end());
        self.resolver.forget_osd(id);
        self.change.any = true;
        // Rule: BootEpoch
        if !was_up || self.settings.rules.on(Rule::BootEpoch) {
            // Rule: BlankCheck: another disk is as good as a blank one
            let blank = (blank || replaced) && self.settings.rules.on(Rule::BlankCheck);
            self.for_pgs_of(id, |rules, shard| rules.boot(shard, lost, blank));
        }
        Ok(())
    }

    /// The operator gives up a disk. Not that of an OSD which is up, and not one without which data
    /// would be lost.
    fn replace(&mut self, id: OsdId) -> Result<(), String> {
        self.known(id)?;
        if self.state.map.osds[&id].up {
            return Err(format!(
                "{id} is up: stop it first (one that was killed counts as up for some seconds)"
            ));
        }
        let needed = self.state.pgs.iter().filter(|(pg, state)| {
            let Some(shard) = self.state.map.shard_of(**pg, id) else { return false };
            let k =
                self.state.map.pools.get(&pg.pool).map_or(0, |pool| u32::from(pool.profile.k()));
            state.begun
                && state.confirmed.contains(shard)
                && state.confirmed.minus(state.gone).without(shard).len() < k
        });
        let needed = needed.count();
        if needed > 0 {
            return Err(format!(
                "without the disk of {id} the data of {needed} placement groups would be lost: too few of their other \
                 shards are whole. Start the other OSDs and wait until `trefoil status` shows these as clean or degraded"
            ));
        }
        tracing::warn!(osd = %id, "may be replaced: its next start may be on an empty disk");
        self.state.map.osds.get_mut(&id).expect("it is known").replace = true;
        self.note(Health::Ok, &format!("{id} may start on an empty disk, an operator said"));
        self.change.any = true;
        Ok(())
    }

    fn leave(&mut self, id: OsdId) -> Result<(), String> {
        self.known(id)?;
        if self.state.map.osds[&id].up {
            tracing::info!(osd = %id, "leaves");
            self.note(Health::Degraded, &format!("{id} was stopped"));
            self.mark_down(id);
        }
        Ok(())
    }

    fn mark_down(&mut self, id: OsdId) {
        if let Some(osd) = self.state.map.osds.get_mut(&id) {
            osd.up = false;
        }
        self.live.osds.remove(&id);
        self.live.heard.remove(&id);
        self.resolver.forget_osd(id);
        self.change.any = true;
        self.for_pgs_of(id, |rules, shard| rules.mark_down(shard));
    }

    /// Of an OSD that is down it changes nothing: that one has to boot.
    fn heartbeat(&mut self, report: OsdReport, now: Duration) -> Result<(), String> {
        self.known(report.osd)?;
        if self.state.map.osds[&report.osd].up {
            self.live.osds.insert(report.osd, now);
            self.live.heard.insert(report.osd);
        }
        self.live.progress.note(report.osd, report.recovered_bytes, now);
        self.live.reports.insert(report.osd, report);
        Ok(())
    }

    fn peered(&mut self, id: OsdId, pgs: &[(PgId, Epoch)]) -> Result<(), String> {
        self.known(id)?;
        for &(pg, epoch) in pgs {
            self.for_pg(pg, id, |rules, shard| rules.peer(shard, epoch));
        }
        Ok(())
    }

    fn ask_join(&mut self, id: OsdId, pgs: &[(PgId, Epoch)]) -> Result<(), String> {
        self.known(id)?;
        for &(pg, epoch) in pgs {
            self.for_pg(pg, id, |rules, shard| rules.ask_join(shard, epoch));
        }
        Ok(())
    }

    fn join(&mut self, id: OsdId, pg: PgId, epoch: Epoch) -> Result<(), String> {
        self.known(id)?;
        if self.for_pg(pg, id, |rules, shard| rules.join(shard, epoch)) {
            return Ok(());
        }
        Err(format!("{id} is not joining pg {pg} in epoch {epoch}"))
    }

    fn known(&self, id: OsdId) -> Result<(), String> {
        let known = self.state.map.osds.contains_key(&id);
        if known { Ok(()) } else { Err(format!("{id} is not a member of this cluster")) }
    }

    // ---- sessions

    fn open_session(&mut self, mut name: String, now: Duration) -> MonitorReply {
        if self.state.map.sessions.len() >= SESSIONS_MAX {
            return MonitorReply::Refused(format!(
                "there are {SESSIONS_MAX} sessions: close some first"
            ));
        }
        while name.len() > SESSION_NAME_BYTES_MAX {
            name.pop();
        }
        let session = SessionId::new(self.state.map.last_session.get() + 1);
        tracing::info!(%session, name, "opens");
        self.note(Health::Ok, &format!("{session} opened: {name}"));
        self.state.map.last_session = session;
        self.state.map.sessions.insert(session, SessionState::Live);
        self.state.session_names.insert(session, name);
        self.live.sessions.insert(session, now + self.settings.session_ttl);
        self.change.any = true;
        self.commit();
        let ttl_ms = u64::try_from(self.settings.session_ttl.as_millis()).unwrap_or(u64::MAX);
        MonitorReply::Session { session, ttl_ms, epoch: self.state.map.epoch }
    }

    fn renew_session(&mut self, session: SessionId, now: Duration) -> MonitorReply {
        if self.state.map.sessions.get(&session) != Some(&SessionState::Live) {
            return MonitorReply::Fenced;
        }
        self.live.sessions.insert(session, now + self.settings.session_ttl);
        MonitorReply::Done(self.state.map.epoch)
    }

    /// Everything of it is stable, so there is nothing to decide, and no PG changes. A dead one is
    /// resolved all the same.
    fn close_session(&mut self, session: SessionId) -> Result<(), String> {
        if self.state.map.sessions.get(&session) == Some(&SessionState::Live) {
            tracing::info!(%session, "closes");
            self.note(Health::Ok, &format!("{session} closed: {}", self.session_name(session)));
            self.forget_session(session);
        }
        Ok(())
    }

    fn expire(&mut self, session: SessionId, why: &str) {
        self.live.sessions.remove(&session);
        if self.state.map.sessions.get(&session) != Some(&SessionState::Live) {
            return;
        }
        tracing::warn!(%session, name = self.state.session_names.get(&session), "{why}: dead");
        self.note(
            Health::Degraded,
            &format!("{session} was {why} and is dead: {}", self.session_name(session)),
        );
        self.state.map.sessions.insert(session, SessionState::Dead);
        self.resolver.begin(session);
        self.change.any = true;
        for (pg, active) in
            self.state.map.pgs.iter().map(|(id, pg)| (*id, pg.active)).collect::<Vec<_>>()
        {
            // Rule: ExpireEpoch
            if !active || self.settings.rules.on(Rule::ExpireEpoch) {
                self.with_pg(pg, |rules| rules.outsiders_changed());
                self.change.pgs.insert(pg);
            }
        }
    }

    fn session_name(&self, session: SessionId) -> &str {
        self.state.session_names.get(&session).map_or("", String::as_str)
    }

    /// An event, for people.
    fn note(&mut self, severity: Health, what: &str) {
        self.live.events.add(self.live.last_tick, severity, what);
    }

    fn forget_session(&mut self, session: SessionId) {
        self.state.map.sessions.remove(&session);
        self.state.session_names.remove(&session);
        self.live.sessions.remove(&session);
        self.change.any = true;
    }

    /// Rule: DecideAll: only now is a dead session gone, and its leases may be granted again.
    fn drop_resolved(&mut self) {
        for session in self.resolver.take_resolved(&self.state.map) {
            tracing::info!(%session, "resolved");
            self.forget_session(session);
        }
        self.commit();
    }

    // ---- pools and services

    fn create_pool(&mut self, spec: &PoolSpec) -> Result<(), CreateError> {
        let pgs = create::add_pool(&mut self.state, spec)?;
        self.note(Health::Ok, &format!("pool {:?} was made", spec.name));
        self.change.any = true;
        for pg in pgs {
            self.with_pg(pg, |rules| rules.propose());
            self.change.pgs.insert(pg);
        }
        Ok(())
    }

    fn rename_pool(&mut self, name: &str, new_name: String) -> Result<(), String> {
        create::rename_pool(&mut self.state.map, name, &new_name)
            .map_err(|error| error.to_string())?;
        self.note(Health::Ok, &format!("pool {name:?} was renamed to {new_name:?}"));
        self.change.any = true;
        Ok(())
    }

    fn mds_up(
        &mut self,
        addr: SocketAddr,
        (namespace, old): (u128, bool),
        now: Duration,
    ) -> Result<(), String> {
        match self.state.namespace {
            Some(known) if known != namespace => return Err(OTHER_NAMESPACE.to_owned()),
            Some(_) => {}
            // A state of format 2: there is a namespace, whose id nobody has told yet.
            None if self.state.map.mds.is_some() && !old => return Err(OTHER_NAMESPACE.to_owned()),
            None => {
                self.state.namespace = Some(namespace);
                self.change.any = true;
            }
        }
        if self.state.map.mds != Some(addr) {
            self.state.map.mds = Some(addr);
            self.change.any = true;
        }
        self.note(Health::Ok, &format!("the metadata service started at {addr}"));
        self.live.mds_heard = Some(now);
        Ok(())
    }

    fn mds_heartbeat(
        &mut self,
        addr: SocketAddr,
        namespace: u128,
        now: Duration,
    ) -> Result<(), String> {
        if self.state.namespace != Some(namespace) {
            return Err(OTHER_NAMESPACE.to_owned());
        }
        if self.state.map.mds != Some(addr) {
            let other =
                self.state.map.mds.map_or_else(|| "none".to_owned(), |addr| addr.to_string());
            return Err(format!(
                "the metadata service of this cluster is {other}, not {addr}: stop one of them"
            ));
        }
        self.live.mds_heard = Some(now);
        Ok(())
    }

    // ---- one PG, and all of an OSD

    /// Runs the rules on a PG, with what is up now.
    fn with_pg<T>(&mut self, id: PgId, run: impl FnOnce(&mut PgRules<'_>) -> T) -> Option<T> {
        let up = self.state.map.up_shards(id);
        let k = u32::from(self.state.map.pools.get(&id.pool)?.profile.k());
        let pg = self.state.map.pgs.get_mut(&id)?;
        let is_awaited = |osd: &OsdId| self.live.awaited.contains(osd);
        let awaited = (0u8..).zip(&pg.acting).filter(|(_, osd)| is_awaited(osd));
        let awaited =
            awaited.fold(ShardSet::EMPTY, |set, (shard, _)| set.with(ShardIndex::new(shard)));
        let state = self.state.pgs.get_mut(&id)?;
        Some(run(&mut PgRules { pg, state, k, up, awaited, rules: self.settings.rules }))
    }

    /// Runs a rule that may change the PG or not, for the shard that an OSD holds of it, if the OSD
    /// is up.
    fn for_pg(
        &mut self,
        pg: PgId,
        osd: OsdId,
        rule: impl FnOnce(&mut PgRules<'_>, ShardIndex) -> bool,
    ) -> bool {
        let up = self.state.map.up_shards(pg);
        let Some(shard) = self.state.map.shard_of(pg, osd).filter(|shard| up.contains(*shard))
        else {
            return false;
        };
        let changed = self.with_pg(pg, |rules| rule(rules, shard)).unwrap_or(false);
        if changed {
            self.change.any = true;
            self.change.pgs.insert(pg);
        }
        changed
    }

    /// Runs a rule that changes the PG, for every PG that an OSD holds a shard of.
    fn for_pgs_of(&mut self, osd: OsdId, rule: impl Fn(&mut PgRules<'_>, ShardIndex)) {
        let shard_in =
            |(id, _): (&PgId, _)| self.state.map.shard_of(*id, osd).map(|shard| (*id, shard));
        for (pg, shard) in self.state.map.pgs.iter().filter_map(shard_in).collect::<Vec<_>>() {
            self.with_pg(pg, |rules| rule(rules, shard));
            self.change.pgs.insert(pg);
        }
    }

    /// Runs a rule that changes the PG, for every PG that is not active.
    fn for_inactive_pgs(&mut self, rule: impl Fn(&mut PgRules<'_>, PgId)) {
        let inactive = self.state.map.pgs.iter().filter(|(_, pg)| !pg.active).map(|(id, _)| *id);
        for pg in inactive.collect::<Vec<_>>() {
            self.with_pg(pg, |rules| rule(rules, pg));
            self.change.any = true;
            self.change.pgs.insert(pg);
        }
    }

    /// Gives what has changed its new epoch (model: `new_epoch`).
    fn commit(&mut self) {
        let change = std::mem::take(&mut self.change);
        if !change.any {
            debug_assert!(change.pgs.is_empty());
            return;
        }
        self.live.watch.look_again();
        let map = &mut self.state.map;
        map.epoch = Epoch::new(map.epoch.get() + 1);
        for id in change.pgs {
            if let Some(pg) = map.pgs.get_mut(&id) {
                pg.epoch = map.epoch;
            }
            self.resolver.epoch_changed(id);
        }
        debug_assert!(
            self.settings.rules != Rules::default() || self.state.check_invariants() == Ok(())
        );
    }
}

/// What an OSD tells of itself when it boots.
struct Process {
    fsid: u128,
    addr: SocketAddr,
    cores: u16,
    host: String,
}
