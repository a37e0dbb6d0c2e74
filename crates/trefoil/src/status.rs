//! The cluster's state as JSON, in a shape that stays: fields are added, never renamed or removed.
//!
//! ```json
//! {
//!   "cluster": "9f3c...", "epoch": 12,
//!   "health": "ok",                 "ok", "degraded" or "down", the worst first
//!   "messages": ["..."],            why, in words
//!   "checks": [{"code": "OSD_DOWN", "severity": "degraded", "summary": "...", "detail": ["..."], "since_s": 12}],
//!   "osds": [{"id": 0, "addr": "127.0.0.1:7410", "host": "a", "up": true, "in": true, "epoch": 12,
//!             "disk": 1,          OSDs of one host with equal numbers share a file system; 0: unknown
//!             "total_bytes": 1, "used_bytes": 1, "free_bytes": 1, "used_percent": 1,
//!             "stored_bytes": 1,  what its fragments take; used_bytes is by whomever
//!             "fullness": "ok", "nearfull", "backfillfull" or "full", "backfills_waiting": 0,    PGs
//!             "journal_bytes": 1, "journal_records": 0,
//!             "objects_to_rebuild": 0, "bytes_to_rebuild": 0, "rebuilt_bytes": 0, "corrupt_found": 0, "corrupt_repaired": 0,
//!             "reads": 0, "writes": 0, "read_bytes": 0, "write_bytes": 0,
//!             "sync_ms": 20,      the longest of its latest syncs; 0: none of late
//!             "scrub": {"running": "1.3" or null, "pgs": 0, "objects": 0, "bytes": 0, "found": 0, "repaired": 0,
//!                       "skipped": 0}}],
//!   "pools": [{"id": 1, "name": "data", "k": 2, "m": 1, "chunk_bytes": 512, "object_bytes": 67108864, "pg_num": 32}],
//!   "pgs": {"clean": 32, "degraded": 0, "recovering": 0, "peering": 0, "down": 0},
//!   "objects_to_rebuild": 0,
//!   "recovery": {"bytes_left": 0,      what the fragments take on disk
//!                "bytes_per_sec": 0,   over the last seconds
//!                "seconds_left": 0,    at this rate; null while nothing moves
//!                "shards_uncounted": 0},  came back just now; what they miss is not in the numbers yet
//!   "scrub": {"open": 0,          objects whose shards do not match, and the first of them
//!             "findings": [{"pg": "1.3", "object": "...", "osds": [0, 1, 2], "offset": 0, "length": 4096, "wrong": [1]}]},
//!   "clients": [{"session": 1, "name": "...", "kind": "client" or "daemon"}],
//!   "mds": "127.0.0.1:7401",        null if none has ever started
//!   "mds_silent_s": null,           for how long it has been silent, if that is too long
//!   "total_bytes": 1, "free_bytes": 1,
//!   "stored_bytes": 1               what the cluster stores, without parity
//! }
//! ```

use protocol::SessionId;
use protocol::health::HealthCheck;
use protocol::monitor::{
    ClusterStatus, DAEMON_SESSION, Health, OsdStatus, PgCondition, PoolStatus,
};
use protocol::scrub::{ScrubFinding, ScrubReport, ScrubTotals};
use serde::Serialize;
use std::collections::BTreeMap;

/// All conditions, in the order in which they are shown.
pub const CONDITIONS: [PgCondition; 5] = [
    PgCondition::Clean,
    PgCondition::Degraded,
    PgCondition::Recovering,
    PgCondition::Peering,
    PgCondition::Down,
];

#[derive(Serialize)]
struct StatusJson<'a> {
    cluster: String,
    epoch: u64,
    health: &'static str,
    messages: Vec<&'a str>,
    checks: Vec<CheckJson<'a>>,
    osds: Vec<OsdJson<'a>>,
    pools: Vec<PoolJson<'a>>,
    pgs: BTreeMap<&'static str, u32>,
    objects_to_rebuild: u64,
    recovery: RecoveryJson,
    scrub: FindingsJson,
    clients: Vec<ClientJson<'a>>,
    mds: Option<String>,
    mds_silent_s: Option<u64>,
    total_bytes: u64,
    free_bytes: u64,
    stored_bytes: u64,
}

#[derive(Serialize)]
struct HealthJson<'a> {
    health: &'static str,
    checks: Vec<CheckJson<'a>>,
}

#[derive(Serialize)]
struct CheckJson<'a> {
    code: &'static str,
    severity: &'static str,
    summary: &'a str,
    detail: &'a [String],
    since_s: u64,
}

#[derive(Serialize)]
struct RecoveryJson {
    bytes_left: u64,
    bytes_per_sec: u64,
    seconds_left: Option<u64>,
    shards_uncounted: u64,
}

#[derive(Serialize)]
struct OsdJson<'a> {
    id: u32,
    addr: Option<String>,
    host: &'a str,
    up: bool,
    #[serde(rename = "in")]
    is_in: bool,
    epoch: u64,
    disk: u64,
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    used_percent: u8,
    stored_bytes: u64,
    fullness: &'static str,
    backfills_waiting: u64,
    journal_bytes: u64,
    journal_records: u64,
    objects_to_rebuild: u64,
    bytes_to_rebuild: u64,
    rebuilt_bytes: u64,
    corrupt_found: u64,
    corrupt_repaired: u64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    write_bytes: u64,
    sync_ms: u64,
    objectstore: &'static str,
    path_cut: &'static str,
    scrub: ScrubJson,
}

#[derive(Serialize)]
struct ScrubJson {
    running: Option<String>,
    pgs: u64,
    objects: u64,
    bytes: u64,
    found: u64,
    repaired: u64,
    skipped: u64,
}

#[derive(Serialize)]
struct FindingsJson {
    open: u64,
    findings: Vec<FindingJson>,
}

#[derive(Serialize)]
struct FindingJson {
    pg: String,
    object: String,
    osds: Vec<u32>,
    offset: u64,
    length: u64,
    wrong: Vec<u32>,
}

#[derive(Serialize)]
struct PoolJson<'a> {
    id: u32,
    name: &'a str,
    k: u8,
    m: u8,
    chunk_bytes: u32,
    object_bytes: u64,
    pg_num: u32,
}

#[derive(Serialize)]
struct ClientJson<'a> {
    session: u64,
    name: &'a str,
    kind: &'static str,
}

/// The status as pretty-printed JSON.
pub fn to_json(status: &ClusterStatus) -> String {
    let json = StatusJson {
        cluster: status.cluster.to_string(),
        epoch: status.epoch.get(),
        health: health(status.health),
        messages: status.messages().collect(),
        checks: status.checks.iter().map(check).collect(),
        osds: status.osds.iter().map(osd).collect(),
        pools: status.pools.iter().map(pool).collect(),
        pgs: CONDITIONS.iter().map(|&c| (condition(c), count(status, c))).collect(),
        objects_to_rebuild: status.recovery.objects,
        recovery: RecoveryJson {
            bytes_left: status.recovery.bytes,
            bytes_per_sec: status.recovery.bytes_per_sec,
            seconds_left: status.recovery.seconds_left,
            shards_uncounted: status.recovery.shards_uncounted,
        },
        scrub: FindingsJson {
            open: status.osds.iter().map(|osd| osd.report.scrub.open).sum(),
            findings: status
                .osds
                .iter()
                .flat_map(|osd| &osd.report.scrub.findings)
                .map(finding)
                .collect(),
        },
        clients: status.clients.iter().map(client).collect(),
        mds: status.mds.map(|addr| addr.to_string()),
        mds_silent_s: status.mds_silent_secs,
        total_bytes: status.total_bytes,
        free_bytes: status.free_bytes,
        stored_bytes: status.stored_bytes,
    };
    serde_json::to_string_pretty(&json).expect("plain structs with string keys are always JSON")
}

/// The health alone as pretty-printed JSON, as in the status.
pub fn health_to_json(status: &ClusterStatus) -> String {
    let json = HealthJson {
        health: health(status.health),
        checks: status.checks.iter().map(check).collect(),
    };
    serde_json::to_string_pretty(&json).expect("plain structs with string keys are always JSON")
}

fn check(check: &HealthCheck) -> CheckJson<'_> {
    let HealthCheck { code, severity, summary, detail, since_secs } = check;
    CheckJson {
        code: code.as_str(),
        severity: health(*severity),
        summary,
        detail,
        since_s: *since_secs,
    }
}

/// Number of PGs in a condition.
pub fn count(status: &ClusterStatus, condition: PgCondition) -> u32 {
    status.pgs.iter().filter(|(c, _)| *c == condition).map(|(_, n)| n).sum()
}

/// The word for a health.
pub fn health(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Degraded => "degraded",
        Health::Down => "down",
    }
}

/// The word for a condition.
pub fn condition(condition: PgCondition) -> &'static str {
    match condition {
        PgCondition::Clean => "clean",
        PgCondition::Degraded => "degraded",
        PgCondition::Recovering => "recovering",
        PgCondition::Peering => "peering",
        PgCondition::Down => "down",
    }
}

fn client((session, name): &(SessionId, String)) -> ClientJson<'_> {
    let kind = if crate::table::is_daemon(name) { "daemon" } else { "client" };
    ClientJson {
        session: session.get(),
        name: name.strip_prefix(DAEMON_SESSION).unwrap_or(name),
        kind,
    }
}

fn osd(osd: &OsdStatus) -> OsdJson<'_> {
    let report = &osd.report;
    OsdJson {
        id: osd.id.get(),
        addr: osd.addr.map(|a| a.to_string()),
        host: &osd.host,
        up: osd.up,
        is_in: osd.is_in,
        epoch: report.epoch.get(),
        disk: report.disk,
        total_bytes: report.total_bytes,
        used_bytes: report.used_bytes,
        free_bytes: report.free_bytes,
        used_percent: report.used_percent,
        stored_bytes: report.stored_bytes,
        fullness: report.fullness.as_str(),
        backfills_waiting: report.backfills_waiting,
        journal_bytes: report.journal_bytes,
        journal_records: report.journal_records,
        objects_to_rebuild: report.to_rebuild.iter().map(|backlog| backlog.objects).sum(),
        bytes_to_rebuild: report.to_rebuild.iter().map(|backlog| backlog.bytes).sum(),
        rebuilt_bytes: report.rebuilt_bytes,
        corrupt_found: report.corrupt_found,
        corrupt_repaired: report.corrupt_repaired,
        reads: report.reads,
        writes: report.writes,
        read_bytes: report.read_bytes,
        write_bytes: report.write_bytes,
        sync_ms: report.sync_ms,
        objectstore: report.object_store.as_str(),
        path_cut: report.path_cut.as_str(),
        scrub: scrub(&report.scrub),
    }
}

fn scrub(report: &ScrubReport) -> ScrubJson {
    let ScrubTotals { pgs, objects, bytes, found, repaired, skipped } = report.totals;
    ScrubJson {
        running: report.running.map(|pg| pg.to_string()),
        pgs,
        objects,
        bytes,
        found,
        repaired,
        skipped,
    }
}

fn finding(finding: &ScrubFinding) -> FindingJson {
    let wrong =
        finding.wrong.iter().filter_map(|shard| finding.acting.get(usize::from(shard.get())));
    FindingJson {
        pg: finding.pg.to_string(),
        object: finding.object.to_string(),
        osds: finding.acting.iter().map(|osd| osd.get()).collect(),
        offset: finding.offset,
        length: finding.length,
        wrong: wrong.map(|osd| osd.get()).collect(),
    }
}

fn pool(pool: &PoolStatus) -> PoolJson<'_> {
    PoolJson {
        id: pool.id.get(),
        name: &pool.name,
        k: pool.profile.k(),
        m: pool.profile.m(),
        chunk_bytes: pool.profile.chunk_bytes(),
        object_bytes: pool.profile.object_bytes(),
        pg_num: pool.pg_num,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use protocol::health::HealthCode;
    use protocol::monitor::{OsdReport, PgBacklog, RecoveryStatus};
    use protocol::{ClusterId, Epoch, OsdId, PgId, PoolId, Profile, SessionId};

    /// A cluster with one storage daemon down.
    pub fn sample() -> ClusterStatus {
        let osd = |id: u32, up: bool| OsdStatus {
            id: OsdId::new(id),
            addr: Some(([127, 0, 0, 1], 7410).into()),
            host: "here".into(),
            up,
            is_in: true,
            report: OsdReport {
                osd: OsdId::new(id),
                total_bytes: 10 << 30,
                used_bytes: 4 << 30,
                to_rebuild: vec![PgBacklog {
                    pg: PgId { pool: PoolId::new(1), number: 3 },
                    objects: 7,
                    bytes: 7 << 20,
                    is_counted: true,
                }],
                ..OsdReport::default()
            },
        };
        ClusterStatus {
            cluster: ClusterId::new(0xabc),
            epoch: Epoch::new(5),
            health: Health::Degraded,
            checks: vec![HealthCheck {
                code: HealthCode::OsdDown,
                severity: Health::Degraded,
                summary: "osd.1 is down".into(),
                detail: Vec::new(),
                since_secs: 12,
            }],
            osds: vec![osd(0, true), osd(1, false)],
            pools: vec![PoolStatus {
                id: PoolId::new(1),
                name: "data".into(),
                profile: Profile::new(2, 1, 512, 64 << 20).unwrap(),
                pg_num: 32,
            }],
            pgs: vec![(PgCondition::Clean, 20), (PgCondition::Degraded, 12)],
            recovery: RecoveryStatus {
                objects: 7,
                bytes: 7 << 20,
                shards_uncounted: 0,
                bytes_per_sec: 1 << 20,
                seconds_left: Some(7),
            },
            clients: vec![
                (SessionId::new(1), format!("{DAEMON_SESSION}mds: deletes objects")),
                (SessionId::new(9), "fuse-client here /mnt".into()),
            ],
            mds: Some(([127, 0, 0, 1], 7401).into()),
            mds_silent_secs: Some(40),
            total_bytes: 20 << 30,
            free_bytes: 12 << 30,
            stored_bytes: 5 << 30,
        }
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json: serde_json::Value = serde_json::from_str(&to_json(&sample())).unwrap();
        assert_eq!(json["health"], "degraded");
        assert_eq!(json["messages"], serde_json::json!(["osd.1 is down"]));
        let check = serde_json::json!({
            "code": "OSD_DOWN", "severity": "degraded", "summary": "osd.1 is down", "detail": [], "since_s": 12
        });
        assert_eq!(json["checks"], serde_json::json!([check]));
        let health: serde_json::Value = serde_json::from_str(&health_to_json(&sample())).unwrap();
        assert_eq!(health, serde_json::json!({"health": "degraded", "checks": [check]}));
        assert_eq!(
            json["pgs"],
            serde_json::json!({"clean": 20, "degraded": 12, "recovering": 0, "peering": 0, "down": 0})
        );
        assert_eq!(json["osds"][1]["up"], false);
        assert_eq!(json["osds"][0]["in"], true);
        assert_eq!(json["osds"][0]["objects_to_rebuild"], 7);
        assert_eq!(json["recovery"]["bytes_left"], 7 << 20);
        assert_eq!(json["recovery"]["seconds_left"], 7);
        assert_eq!(json["pools"][0]["k"], 2);
        let daemon = &json["clients"][0];
        assert_eq!(
            (&daemon["kind"], &daemon["name"]),
            (&"daemon".into(), &"mds: deletes objects".into())
        );
        assert_eq!(
            (&json["clients"][1]["session"], &json["clients"][1]["kind"]),
            (&9.into(), &"client".into())
        );
        assert_eq!((&json["mds"], &json["mds_silent_s"]), (&"127.0.0.1:7401".into(), &40.into()));
    }
}
