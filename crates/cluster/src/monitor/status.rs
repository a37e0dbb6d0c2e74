//! The cluster's state in words: what `trefoil status` shows.

use super::Monitor;
use super::progress::seconds_left;
use crate::map::{Osd, SessionState};
use protocol::OsdId;
use protocol::monitor::{ClusterStatus, OsdReport, OsdStatus, PoolStatus, RecoveryStatus};
use std::collections::BTreeMap;

impl Monitor {
    /// How the cluster is.
    pub fn status(&self) -> ClusterStatus {
        let map = &self.state.map;
        let pgs = self.pg_conditions();
        let (health, checks) = self.health(&pgs);
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
            checks,
            osds: map.osds.iter().map(osd_status).collect(),
            pools: (map.pools.iter())
                .map(|(id, p)| PoolStatus {
                    id: *id,
                    name: p.name.clone(),
                    profile: p.profile,
                    pg_num: p.pg_num,
                })
                .collect(),
            pgs: pgs.into_iter().collect(),
            recovery: self.recovery(),
            clients: live.map(|(id, _)| (*id, name(id))).collect(),
            mds: map.mds,
            mds_silent_secs: self.mds_silence().map(|silence| silence.as_secs()),
            total_bytes,
            free_bytes,
            stored_bytes: self.stored(),
        }
    }

    fn report(&self, id: OsdId) -> OsdReport {
        self.live
            .reports
            .get(&id)
            .cloned()
            .unwrap_or_else(|| OsdReport { osd: id, ..OsdReport::default() })
    }

    /// What is left to rebuild on the OSDs that are up, of PGs that are served.
    fn recovery(&self) -> RecoveryStatus {
        let mut recovery = RecoveryStatus::default();
        for (id, pg) in self.state.map.pgs.iter().filter(|(_, pg)| pg.active) {
            for shard in self.state.map.up_shards(*id).minus(pg.in_sync).iter() {
                let report =
                    self.state.map.osd_of(*id, shard).and_then(|osd| self.live.reports.get(&osd));
                let found = report
                    .and_then(|report| report.to_rebuild.iter().find(|backlog| backlog.pg == *id));
                recovery.shards_uncounted +=
                    u64::from(!found.is_some_and(|backlog| backlog.is_counted));
                recovery.objects =
                    recovery.objects.saturating_add(found.map_or(0, |backlog| backlog.objects));
                recovery.bytes =
                    recovery.bytes.saturating_add(found.map_or(0, |backlog| backlog.bytes));
            }
        }
        if recovery.objects > 0 || recovery.shards_uncounted > 0 {
            recovery.bytes_per_sec = self.live.progress.bytes_per_sec(self.live.last_tick);
        }
        recovery.seconds_left = seconds_left(recovery.bytes, recovery.bytes_per_sec);
        recovery
    }

    /// User bytes that are stored, at the first pool's code. OSDs that do not tell count as the
    /// others do.
    fn stored(&self) -> u64 {
        let Some(pool) = self.state.map.pools.values().next() else { return 0 };
        let in_use = self.state.map.osds.iter().filter(|(_, osd)| osd.is_in);
        let told: Vec<Option<u64>> =
            in_use.map(|(id, _)| Some(self.live.reports.get(id)?.stored_bytes)).collect();
        let known: Vec<u128> = told.iter().flatten().map(|bytes| u128::from(*bytes)).collect();
        let all = known.iter().sum::<u128>() * told.len() as u128 / known.len().max(1) as u128;
        let user = all * u128::from(pool.profile.k()) / u128::from(pool.profile.shards());
        u64::try_from(user).unwrap_or(u64::MAX)
    }

    /// User bytes in all and free, at the first pool's code. Every OSD is taken to be as small, and
    /// as full, as the worst: with as many OSDs as shards that is exact, with more it errs on the
    /// careful side. OSDs on one file system have equal parts of it.
    fn space(&self) -> (u64, u64) {
        let Some(pool) = self.state.map.pools.values().next() else { return (0, 0) };
        let in_use: Vec<_> = self.state.map.osds.iter().filter(|(_, osd)| osd.is_in).collect();
        let reported =
            in_use.iter().filter_map(|(id, osd)| Some((osd, self.live.reports.get(id)?)));
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
        let user = |worst: u64| {
            u64::try_from(u128::from(worst) * in_use.len() as u128 * k / shards).unwrap_or(u64::MAX)
        };
        (user(worst(|report| report.total_bytes)), user(worst(|report| report.free_bytes)))
    }
}
