//! How the cluster is: what is amiss, by code, and since when.
//!
//! Contract: [`Monitor::checks`] looks at the state as it is; [`Monitor::watch_health`], called now
//! and then, remembers when a code was first seen. That is not durable: after a restart everything
//! is new.

use super::Monitor;
use crate::map::Osd;
use protocol::health::{DETAIL_LINES_MAX, HealthCheck, HealthCode};
use protocol::monitor::{
    Fullness, Health, MdsReport, ObjectStore, OsdReport, PathCut, PgCondition,
};
use protocol::{OsdId, ShardSet};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Reports of the metadata service count for so long: it repeats them every 5 s while something is
/// stuck.
const MDS_REPORT_AGE_MAX: Duration = Duration::from_secs(20);
/// A metadata service silent for so long is not there, or the time of OSDs, if that is longer: it
/// may wait for its disk for some seconds.
const MDS_GRACE_MIN: Duration = Duration::from_secs(5);
/// Characters of a reason that another process gives.
const REASON_CHARS_MAX: usize = 200;
/// An OSD whose longest sync of late took so many milliseconds is told of.
const SLOW_SYNC_MS: u64 = 1000;
/// How often is looked at what is amiss while the map stays: with tens of thousands of PGs it takes
/// milliseconds.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// When each code was first seen, of those that are amiss.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When that was last looked at; `None` if the map has changed since.
    looked: Option<Duration>,
    since: BTreeMap<HealthCode, Duration>,
}

impl Watch {
    /// The map has changed.
    pub fn look_again(&mut self) {
        self.looked = None;
    }
}

impl Monitor {
    /// What is amiss, the worst first; and the worst of it.
    pub(super) fn health(&self, pgs: &BTreeMap<PgCondition, u32>) -> (Health, Vec<HealthCheck>) {
        let mut checks = self.checks(pgs);
        let now = self.live.last_tick;
        for check in &mut checks {
            let since = self.live.watch.since.get(&check.code);
            check.since_secs = since.map_or(0, |since| now.saturating_sub(*since).as_secs());
        }
        let worst = checks.iter().map(|check| check.severity).max().unwrap_or(Health::Ok);
        (worst, checks)
    }

    /// Remembers since when something has been amiss.
    pub(super) fn watch_health(&mut self, now: Duration) {
        if self.live.watch.looked.is_some_and(|at| now < at + WATCH_EVERY) {
            return;
        }
        self.live.watch.looked = Some(now);
        let found = self.checks(&self.pg_conditions());
        let live = &mut self.live;
        let ended: Vec<HealthCode> = (live.watch.since.keys())
            .filter(|code| found.iter().all(|check| check.code != **code))
            .copied()
            .collect();
        for code in ended {
            live.watch.since.remove(&code);
            live.events.add(now, Health::Ok, &format!("{code} is over"));
        }
        for check in found {
            if let Entry::Vacant(new) = live.watch.since.entry(check.code) {
                new.insert(now);
                live.events.add(now, check.severity, &format!("{}: {}", check.code, check.summary));
            }
        }
    }

    fn checks(&self, pgs: &BTreeMap<PgCondition, u32>) -> Vec<HealthCheck> {
        let mut found = Found::default();
        self.check_pgs(pgs, &mut found);
        self.check_osds(&mut found);
        self.check_reports(&mut found);
        self.check_mds(&mut found);
        let dead = self.state.dead_sessions().count();
        if dead > 0 {
            let line = format!("the last writes of {dead} dead clients are being decided");
            found.add(HealthCode::ClientsResolving, Health::Ok, line);
        }
        found.into_checks()
    }

    fn check_pgs(&self, pgs: &BTreeMap<PgCondition, u32>, found: &mut Found) {
        use HealthCode::{PgAvailability, PgDegraded};
        let words = [
            (
                PgCondition::Down,
                (PgAvailability, Health::Down),
                "wait for more of their OSDs, and serve nothing until these are back",
            ),
            (
                PgCondition::Peering,
                (PgAvailability, Health::Degraded),
                "wait for their OSDs to answer in the new epoch",
            ),
            (
                PgCondition::Recovering,
                (PgDegraded, Health::Degraded),
                "are served while a shard is being rebuilt",
            ),
            (
                PgCondition::Degraded,
                (PgDegraded, Health::Degraded),
                "are served by fewer than all shards",
            ),
        ];
        let all = self.state.map.pgs.len();
        for (condition, (code, severity), what) in words {
            if let Some(count) = pgs.get(&condition) {
                found.add(code, severity, format!("{count} of {all} placement groups {what}"));
            }
        }
        let crowded = self.crowded_pgs();
        if crowded > 0 {
            let line =
                format!("{crowded} of {all} placement groups have several shards on one machine");
            found.add(HealthCode::PgNotSpread, Health::Ok, line);
        }
    }

    /// PGs with more than one shard on a machine, in a cluster of several machines.
    fn crowded_pgs(&self) -> usize {
        let map = &self.state.map;
        // Of one that has never started the machine is not known.
        let started = |osd: &Osd| osd.addr.is_some();
        let hosts: BTreeSet<&str> =
            map.osds.values().filter(|osd| started(osd)).map(|osd| osd.host.as_str()).collect();
        if hosts.len() < 2 {
            return 0;
        }
        let host =
            |osd: &OsdId| map.osds.get(osd).filter(|osd| started(osd)).map(|osd| osd.host.as_str());
        let is_crowded = |acting: &[OsdId]| {
            let known: Vec<&str> = acting.iter().filter_map(host).collect();
            known.iter().collect::<BTreeSet<_>>().len() < known.len()
        };
        map.pgs.values().filter(|pg| is_crowded(&pg.acting)).count()
    }

    fn check_osds(&self, found: &mut Found) {
        let map = &self.state.map;
        for (id, osd) in map.osds.iter().filter(|(_, osd)| !osd.up) {
            let never = if osd.addr.is_none() { ": it has never started" } else { "" };
            let line = format!("{id} on {} is down{never}", osd.host);
            found.add(HealthCode::OsdDown, Health::Degraded, line);
        }
        for (id, _) in map.osds.iter().filter(|(_, osd)| osd.replace) {
            let line =
                format!("{id} may start on an empty disk, once: `trefoil osd replace` was run");
            found.add(HealthCode::OsdReplacePending, Health::Ok, line);
        }
    }

    fn check_reports(&self, found: &mut Found) {
        for (id, report) in &self.live.reports {
            if let Some((code, what)) = of_fullness(report) {
                found.add(code, Health::Degraded, format!("{id} {what}"));
            }
            if report.path_cut != PathCut::None {
                let cut = report.path_cut.as_str();
                let line = format!(
                    "{id} drops what it acknowledges and reads zeros: osd_path_cut = \"{cut}\" is for measuring"
                );
                found.add(HealthCode::OsdPathCut, Health::Down, line);
            }
            if report.object_store == ObjectStore::Memory {
                let line = format!("{id} is a memstore: what it holds is gone when it stops");
                found.add(HealthCode::OsdMemstore, Health::Ok, line);
            }
            if report.corrupt_found > report.corrupt_repaired {
                let count = report.corrupt_found - report.corrupt_repaired;
                let line = format!("{id} has {count} checksum errors not yet repaired");
                found.add(HealthCode::OsdChecksumErrors, Health::Degraded, line);
            }
            if report.sync_ms >= SLOW_SYNC_MS {
                let line =
                    format!("{id} took {} ms for a sync of its disk of late", report.sync_ms);
                found.add(HealthCode::OsdSlowDisk, Health::Ok, line);
            }
        }
        let open = self
            .live
            .reports
            .values()
            .fold(0_u64, |sum, report| sum.saturating_add(report.scrub.open));
        if open > 0 {
            let line = format!(
                "{open} objects have shards that do not match: `trefoil scrub list` names them"
            );
            found.add(HealthCode::OsdScrubErrors, Health::Degraded, line);
        }
    }

    fn check_mds(&self, found: &mut Found) {
        let is_fresh = |at: Duration| self.live.last_tick <= at + MDS_REPORT_AGE_MAX;
        let report = self.live.mds.as_ref().filter(|(at, _)| is_fresh(*at));
        if let Some(line) = report.and_then(|(_, report)| of_stuck(report)) {
            found.add(HealthCode::MdsWorkStuck, Health::Degraded, line);
        }
        let Some(addr) = self.state.map.mds else {
            let line = "no metadata service has ever started: there are objects, but nothing can be mounted";
            found.add(HealthCode::MdsNeverStarted, Health::Ok, line.to_owned());
            return;
        };
        if let Some(silence) = self.mds_silence() {
            let seconds = silence.as_secs();
            let line = format!(
                "the metadata service at {addr} is silent for {seconds} s: no file can be found, opened or made until \
                 it is back. See whether its process runs (osd-daemon with the role mds), and what it logs"
            );
            found.add(HealthCode::MdsAllDown, Health::Down, line);
        }
    }

    /// For how long the metadata service has been silent, if that is too long.
    pub(super) fn mds_silence(&self) -> Option<Duration> {
        let silence = self.live.last_tick.saturating_sub(self.live.mds_heard?);
        (silence > MDS_GRACE_MIN.max(self.settings.heartbeat_grace)).then_some(silence)
    }

    /// How many PGs are in which condition.
    pub(super) fn pg_conditions(&self) -> BTreeMap<PgCondition, u32> {
        let mut pgs: BTreeMap<PgCondition, u32> = BTreeMap::new();
        self.state.map.pgs.keys().for_each(|id| *pgs.entry(self.condition(*id)).or_default() += 1);
        pgs
    }

    /// The state of a PG.
    fn condition(&self, id: protocol::PgId) -> PgCondition {
        let pg = &self.state.map.pgs[&id];
        let all = ShardSet::first(pg.acting.len() as u8);
        match (
            pg.active,
            pg.in_sync == all,
            self.state.map.up_shards(id).minus(pg.in_sync).is_empty(),
        ) {
            (true, true, _) => PgCondition::Clean,
            (true, false, true) => PgCondition::Degraded,
            (true, false, false) => PgCondition::Recovering,
            (false, ..) if pg.in_sync.is_empty() => PgCondition::Down,
            (false, ..) => PgCondition::Peering,
        }
    }
}

/// Lines by code, each code with the worst severity of its lines.
#[derive(Default)]
struct Found(BTreeMap<HealthCode, (Health, Vec<String>)>);

impl Found {
    fn add(&mut self, code: HealthCode, severity: Health, line: String) {
        let (worst, lines) = self.0.entry(code).or_insert((severity, Vec::new()));
        *worst = severity.max(*worst);
        lines.push(line);
    }

    /// The worst first.
    fn into_checks(self) -> Vec<HealthCheck> {
        let mut checks: Vec<_> = self
            .0
            .into_iter()
            .map(|(code, (severity, lines))| check(code, severity, lines))
            .collect();
        checks.sort_by_key(|check| std::cmp::Reverse(check.severity));
        checks
    }
}

fn check(code: HealthCode, severity: Health, mut lines: Vec<String>) -> HealthCheck {
    let count = lines.len();
    if count == 1 {
        let summary = lines.pop().unwrap_or_default();
        return HealthCheck { code, severity, summary, detail: lines, since_secs: 0 };
    }
    let of_osds = |what: &str| format!("{count} OSDs {what}");
    let summary = match code {
        HealthCode::OsdDown => of_osds("are down"),
        HealthCode::OsdFull => of_osds("are full, writers get ENOSPC"),
        HealthCode::OsdBackfillFull => of_osds("are too full for backfill"),
        HealthCode::OsdNearFull => of_osds("are nearly full"),
        HealthCode::PgBackfillFull => format!("backfill waits for space on {count} OSDs"),
        HealthCode::OsdChecksumErrors => of_osds("have checksum errors not yet repaired"),
        HealthCode::OsdReplacePending => of_osds("may start on empty disks"),
        HealthCode::OsdSlowDisk => of_osds("have slow disks"),
        HealthCode::OsdMemstore => of_osds("are memstores: what they hold is gone when they stop"),
        HealthCode::OsdPathCut => {
            of_osds("drop what they acknowledge: osd_path_cut is for measuring")
        }
        _ => lines.join(", and "),
    };
    if count > DETAIL_LINES_MAX {
        lines.truncate(DETAIL_LINES_MAX - 1);
        lines.push(format!("and {} more", count - lines.len()));
    }
    HealthCheck { code, severity, summary, detail: lines, since_secs: 0 }
}

/// What is to be said of an OSD's space.
fn of_fullness(report: &OsdReport) -> Option<(HealthCode, String)> {
    let (code, what) = match report.fullness {
        Fullness::Ok if report.backfills_waiting == 0 => return None,
        Fullness::Ok => (HealthCode::PgBackfillFull, "has space again"),
        Fullness::NearFull => (HealthCode::OsdNearFull, "is nearly full"),
        Fullness::BackfillFull => (HealthCode::OsdBackfillFull, "is too full for backfill"),
        Fullness::Full => (HealthCode::OsdFull, "is full, writers get ENOSPC"),
    };
    let waiting = match report.backfills_waiting {
        0 => String::new(),
        count => format!(", backfill of {count} placement groups waits"),
    };
    let (percent, mib) = (report.used_percent, report.free_bytes >> 20);
    Some((
        code,
        format!("{what}{waiting}: {percent}% of its disk is used, it takes {mib} MiB more"),
    ))
}

/// What is to be said of work that the metadata service cannot go on with.
fn of_stuck(report: &MdsReport) -> Option<String> {
    let MdsReport { removals_stuck, sizes_stuck, stuck_secs, why } = report;
    let removals = (*removals_stuck > 0)
        .then(|| format!("the data of {removals_stuck} removed files is not deleted"));
    let sizes = (*sizes_stuck > 0)
        .then(|| format!("the size of {sizes_stuck} files of dead clients is not known"));
    let what: Vec<String> = removals.into_iter().chain(sizes).collect();
    let why: String = why.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
    let what = what.join(", ");
    (!what.is_empty())
        .then(|| format!("metadata service: {what}, for {stuck_secs} s, and tried again: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lines_are_one_summary_and_bounded_detail() {
        let lines = |count: usize| {
            (0..count).map(|id| format!("osd.{id} on h is down")).collect::<Vec<_>>()
        };
        let one = check(HealthCode::OsdDown, Health::Degraded, lines(1));
        assert_eq!((one.summary.as_str(), one.detail.len()), ("osd.0 on h is down", 0));
        assert_eq!(one.lines(), ["osd.0 on h is down"]);
        let two = check(HealthCode::OsdDown, Health::Degraded, lines(2));
        assert_eq!((two.summary.as_str(), two.lines().len()), ("2 OSDs are down", 2));
        let many = check(HealthCode::OsdDown, Health::Degraded, lines(1000));
        assert_eq!(many.detail.len(), DETAIL_LINES_MAX);
        assert_eq!(many.detail.last().map(String::as_str), Some("and 951 more"));
    }

    #[test]
    fn the_worst_line_of_a_code_counts_and_the_worst_code_is_first() {
        let mut found = Found::default();
        found.add(HealthCode::OsdDown, Health::Degraded, "a".into());
        found.add(HealthCode::PgAvailability, Health::Degraded, "b".into());
        found.add(HealthCode::PgAvailability, Health::Down, "c".into());
        let checks = found.into_checks();
        let told: Vec<_> = checks.iter().map(|check| (check.code, check.severity)).collect();
        assert_eq!(
            told,
            [(HealthCode::PgAvailability, Health::Down), (HealthCode::OsdDown, Health::Degraded)]
        );
        assert_eq!(checks[0].summary, "b, and c");
    }
}
