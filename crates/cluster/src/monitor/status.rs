//! The cluster's state in words: what `trefoil status` shows.

use super::Monitor;
use super::progress::seconds_left;
use crate::map::{Osd, SessionState};
use protocol::monitor::{
    ClusterStatus, Fullness, Health, MdsReport, ObjectStore, OsdReport, OsdStatus, PathCut, PgCondition, PoolStatus,
    RecoveryStatus,
};
use protocol::{OsdId, PgId, ShardSet};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is to be said of an OSD's space.
fn of_fullness(report: &OsdReport) -> Option<String> {
    let what = match report.fullness {
        Fullness::Ok if report.backfills_waiting == 0 => return None,
        Fullness::Ok => "has space again",
        Fullness::NearFull => "is nearly full",
        Fullness::BackfillFull => "is too full for backfill",
        Fullness::Full => "is full, writers get ENOSPC",
    };
    let waiting = match report.backfills_waiting {
        0 => String::new(),
        count => format!(", backfill of {count} placement groups waits"),
    };
    let (percent, mib) = (report.used_percent, report.free_bytes >> 20);
    Some(format!("{what}{waiting}: {percent}% of its disk is used, it takes {mib} MiB more"))
}

/// Reports of the metadata service count for so long: it repeats them every 5 s while something is
/// stuck.
const MDS_REPORT_AGE_MAX: Duration = Duration::from_secs(20);
/// A metadata service silent for so long is not there, or the time of OSDs, if that is longer: it
/// may wait for its disk for some seconds.
const MDS_GRACE_MIN: Duration = Duration::from_secs(5);
/// Characters of a reason that another process gives.
const REASON_CHARS_MAX: usize = 200;

/// What is to be said of work that the metadata service cannot go on with.
fn of_stuck(report: &MdsReport) -> Option<String> {
    let MdsReport { removals_stuck, sizes_stuck, stuck_secs, why } = report;
    let removals = (*removals_stuck > 0).then(|| format!("the data of {removals_stuck} removed files is not deleted"));
    let sizes = (*sizes_stuck > 0).then(|| format!("the size of {sizes_stuck} files of dead clients is not known"));
    let what: Vec<String> = removals.into_iter().chain(sizes).collect();
    let why: String = why.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
    let what = what.join(", ");
    (!what.is_empty()).then(|| format!("metadata service: {what}, for {stuck_secs} s, and tried again: {why}"))
}

impl Monitor {
    /// How the cluster is.
    pub fn status(&self) -> ClusterStatus {
        let map = &self.state.map;
        let mut pgs: BTreeMap<PgCondition, u32> = BTreeMap::new();
        map.pgs.keys().for_each(|id| *pgs.entry(self.condition(*id)).or_default() += 1);
        let (health, messages) = self.health(&pgs);
        let (total_bytes, free_bytes) = self.space();
        let osd_status = |(id, osd): (&OsdId, &crate::map::Osd)| OsdStatus {
            id: *id,
            addr: osd.addr,
            host: osd.host.clone(),
            up: osd.up,
            is_in: osd.is_in,
            report: self.report(*id),
        };
        let live = map.sessions.iter().filter(|(_, state)| **state == SessionState::Live);
        let name = |id| self.state.session_names.get(id).cloned().unwrap_or_default();
        ClusterStatus {
            cluster: map.cluster,
            epoch: map.epoch,
            health,
            messages,
            osds: map.osds.iter().map(osd_status).collect(),
            pools: (map.pools.iter())
                .map(|(id, p)| PoolStatus { id: *id, name: p.name.clone(), profile: p.profile, pg_num: p.pg_num })
                .collect(),
            pgs: pgs.into_iter().collect(),
            recovery: self.recovery(),
            clients: live.map(|(id, _)| (*id, name(id))).collect(),
            mds: map.mds,
            mds_silent_secs: self.mds_silence().map(|silence| silence.as_secs()),
            total_bytes,
            free_bytes,
        }
    }

    /// The state of a PG.
    fn condition(&self, id: PgId) -> PgCondition {
        let pg = &self.state.map.pgs[&id];
        let all = ShardSet::first(pg.acting.len() as u8);
        match (pg.active, pg.in_sync == all, self.state.map.up_shards(id).minus(pg.in_sync).is_empty()) {
            (true, true, _) => PgCondition::Clean,
            (true, false, true) => PgCondition::Degraded,
            (true, false, false) => PgCondition::Recovering,
            (false, ..) if pg.in_sync.is_empty() => PgCondition::Down,
            (false, ..) => PgCondition::Peering,
        }
    }

    /// For how long the metadata service has been silent, if that is too long.
    fn mds_silence(&self) -> Option<Duration> {
        let silence = self.live.last_tick.saturating_sub(self.live.mds_heard?);
        (silence > MDS_GRACE_MIN.max(self.settings.heartbeat_grace)).then_some(silence)
    }

    fn of_mds(&self) -> Option<(Health, String)> {
        let Some(addr) = self.state.map.mds else {
            let what = "no metadata service has ever started: there are objects, but nothing can be mounted";
            return Some((Health::Ok, what.to_owned()));
        };
        let seconds = self.mds_silence()?.as_secs();
        let what = format!(
            "the metadata service at {addr} is silent for {seconds} s: no file can be found, opened or made until it is \
             back. See whether its process runs (osd-daemon with the role mds), and what it logs"
        );
        Some((Health::Down, what))
    }

    fn report(&self, id: OsdId) -> OsdReport {
        self.live.reports.get(&id).cloned().unwrap_or_else(|| OsdReport { osd: id, ..OsdReport::default() })
    }

    fn health(&self, pgs: &BTreeMap<PgCondition, u32>) -> (Health, Vec<String>) {
        let map = &self.state.map;
        let mut found: Vec<(Health, String)> = Vec::new();
        let words = [
            (PgCondition::Down, Health::Down, "wait for more of their OSDs, and serve nothing until these are back"),
            (PgCondition::Peering, Health::Degraded, "wait for their OSDs to answer in the new epoch"),
            (PgCondition::Recovering, Health::Degraded, "are served while a shard is being rebuilt"),
            (PgCondition::Degraded, Health::Degraded, "are served by fewer than all shards"),
        ];
        for (condition, health, what) in words {
            if let Some(count) = pgs.get(&condition) {
                found.push((health, format!("{count} of {} placement groups {what}", map.pgs.len())));
            }
        }
        for (id, osd) in map.osds.iter().filter(|(_, osd)| !osd.up) {
            let never = if osd.addr.is_none() { ": it has never started" } else { "" };
            found.push((Health::Degraded, format!("{id} on {} is down{never}", osd.host)));
        }
        for (id, _) in map.osds.iter().filter(|(_, osd)| osd.replace) {
            found.push((Health::Ok, format!("{id} may start on an empty disk, once: `trefoil osd replace` was run")));
        }
        for (id, report) in &self.live.reports {
            found.extend(of_fullness(report).map(|message| (Health::Degraded, format!("{id} {message}"))));
            if report.path_cut != PathCut::None {
                let cut = report.path_cut.as_str();
                let what = format!(
                    "{id} drops what it acknowledges and reads zeros: osd_path_cut = \"{cut}\" is for measuring"
                );
                found.push((Health::Down, what));
            }
            if report.object_store == ObjectStore::Memory {
                found.push((Health::Ok, format!("{id} is a memstore: what it holds is gone when it stops")));
            }
            if report.corrupt_found > report.corrupt_repaired {
                let count = report.corrupt_found - report.corrupt_repaired;
                found.push((Health::Degraded, format!("{id} has {count} checksum errors not yet repaired")));
            }
        }
        let open = self.live.reports.values().fold(0_u64, |sum, report| sum.saturating_add(report.scrub.open));
        if open > 0 {
            let what = "objects have shards that do not match: `trefoil scrub list` names them";
            found.push((Health::Degraded, format!("{open} {what}")));
        }
        let is_fresh = |at: Duration| self.live.last_tick <= at + MDS_REPORT_AGE_MAX;
        let of_mds = self.live.mds.as_ref().filter(|(at, _)| is_fresh(*at)).and_then(|(_, report)| of_stuck(report));
        found.extend(of_mds.map(|message| (Health::Degraded, message)));
        found.extend(self.of_mds());
        let dead = self.state.dead_sessions().count();
        if dead > 0 {
            found.push((Health::Ok, format!("the last writes of {dead} dead clients are being decided")));
        }
        found.sort_by_key(|(health, _)| std::cmp::Reverse(*health));
        let worst = found.iter().map(|(health, _)| *health).max().unwrap_or(Health::Ok);
        (worst, found.into_iter().map(|(_, message)| message).collect())
    }

    /// What is left to rebuild on the OSDs that are up, of PGs that are served.
    fn recovery(&self) -> RecoveryStatus {
        let mut recovery = RecoveryStatus::default();
        for (id, pg) in self.state.map.pgs.iter().filter(|(_, pg)| pg.active) {
            for shard in self.state.map.up_shards(*id).minus(pg.in_sync).iter() {
                let report = self.state.map.osd_of(*id, shard).and_then(|osd| self.live.reports.get(&osd));
                let found = report.and_then(|report| report.to_rebuild.iter().find(|backlog| backlog.pg == *id));
                recovery.shards_uncounted += u64::from(!found.is_some_and(|backlog| backlog.is_counted));
                recovery.objects = recovery.objects.saturating_add(found.map_or(0, |backlog| backlog.objects));
                recovery.bytes = recovery.bytes.saturating_add(found.map_or(0, |backlog| backlog.bytes));
            }
        }
        if recovery.objects > 0 || recovery.shards_uncounted > 0 {
            recovery.bytes_per_sec = self.live.progress.bytes_per_sec(self.live.last_tick);
        }
        recovery.seconds_left = seconds_left(recovery.bytes, recovery.bytes_per_sec);
        recovery
    }

    /// User bytes in all and free, at the first pool's code. Every OSD is taken to be as small, and as full, as the
    /// worst: with as many OSDs as shards that is exact, with more it errs on the careful side. OSDs on one file system
    /// have equal parts of it.
    fn space(&self) -> (u64, u64) {
        let Some(pool) = self.state.map.pools.values().next() else { return (0, 0) };
        let in_use: Vec<_> = self.state.map.osds.iter().filter(|(_, osd)| osd.is_in).collect();
        let reported = in_use.iter().filter_map(|(id, osd)| Some((osd, self.live.reports.get(id)?)));
        let known: Vec<_> = reported.filter(|(_, report)| report.total_bytes > 0).collect();
        let mut sharing = BTreeMap::new();
        for (osd, report) in known.iter().filter(|(_, report)| report.disk != 0) {
            *sharing.entry((&osd.host, report.disk)).or_insert(0) += 1;
        }
        let worst = |of: fn(&OsdReport) -> u64| {
            let part = |(osd, report): &(&&Osd, &OsdReport)| {
                of(report) / sharing.get(&(&osd.host, report.disk)).copied().unwrap_or(1)
            };
            known.iter().map(part).min().unwrap_or(0)
        };
        let (k, shards) = (u128::from(pool.profile.k()), u128::from(pool.profile.shards()));
        let user =
            |worst: u64| u64::try_from(u128::from(worst) * in_use.len() as u128 * k / shards).unwrap_or(u64::MAX);
        (user(worst(|report| report.total_bytes)), user(worst(|report| report.free_bytes)))
    }
}
