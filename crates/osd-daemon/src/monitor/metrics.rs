//! The cluster's state in the Prometheus text format: what the monitor's process adds to its
//! `/metrics`.
//!
//! Contract: pure, from a status to text. Names are an interface: they are added, never renamed.
//! Samples grow with OSDs, not with placement groups, files or clients.

use protocol::monitor::{ClusterStatus, DAEMON_SESSION, Health, OsdStatus, PgCondition};
use std::fmt::Write;

/// Conditions with their words; each is a sample, also where none is in it.
const CONDITIONS: [(PgCondition, &str); 5] = [
    (PgCondition::Clean, "clean"),
    (PgCondition::Degraded, "degraded"),
    (PgCondition::Recovering, "recovering"),
    (PgCondition::Peering, "peering"),
    (PgCondition::Down, "down"),
];

/// Everything that is told of the cluster. `version`: of the program.
pub fn render(status: &ClusterStatus, version: &str) -> String {
    let mut text = Text(String::new());
    text.gauge(
        "trefoil_build_info",
        "1, with the version of the monitor.",
        [(&[("version", version)], 1.0)],
    );
    text.gauge(
        "trefoil_map_epoch",
        "Epoch of the cluster map.",
        [(NONE, status.epoch.get() as f64)],
    );
    let help = "Health: 0 ok, 1 degraded, 2 down.";
    text.gauge("trefoil_health", help, [(NONE, severity(status.health).1)]);
    let checks = status.checks.iter();
    let checks = checks.map(|check| {
        ([("code", check.code.as_str()), ("severity", severity(check.severity).0)], 1.0)
    });
    text.gauge(
        "trefoil_health_check",
        "1 for each code that is amiss (docs/use/health.md).",
        checks,
    );
    osds(&mut text, &status.osds);
    let count = |condition| {
        status
            .pgs
            .iter()
            .filter(|(c, _)| *c == condition)
            .map(|(_, n)| f64::from(*n))
            .fold(0.0, |sum, n| sum + n)
    };
    let pgs = CONDITIONS.map(|(condition, word)| ([("state", word)], count(condition)));
    text.gauge("trefoil_pgs", "Placement groups by state.", pgs);
    let space = [
        ([("kind", "total")], status.total_bytes as f64),
        ([("kind", "free")], status.free_bytes as f64),
        ([("kind", "stored")], status.stored_bytes as f64),
    ];
    text.gauge(
        "trefoil_user_bytes",
        "Bytes of users that fit in all and still, at the first pool's code.",
        space,
    );
    let recovery = &status.recovery;
    text.gauge(
        "trefoil_rebuild_objects",
        "Objects left to rebuild.",
        [(NONE, recovery.objects as f64)],
    );
    text.gauge("trefoil_rebuild_bytes", "Bytes left to rebuild.", [(NONE, recovery.bytes as f64)]);
    let help = "Bytes rebuilt in a second, over the last seconds.";
    text.gauge("trefoil_rebuild_bytes_per_second", help, [(NONE, recovery.bytes_per_sec as f64)]);
    let daemons =
        status.clients.iter().filter(|(_, name)| name.starts_with(DAEMON_SESSION)).count() as u64;
    let sessions = [("client", status.clients.len() as u64 - daemons), ("daemon", daemons)];
    text.gauge(
        "trefoil_sessions",
        "Live sessions.",
        sessions.map(|(kind, count)| ([("kind", kind)], count as f64)),
    );
    let silent = status.mds_silent_secs.unwrap_or(0) as f64;
    let help = "For how long the metadata service has been silent, if that is too long; else 0.";
    text.gauge("trefoil_mds_silent_seconds", help, [(NONE, silent)]);
    text.0
}

fn severity(health: Health) -> (&'static str, f64) {
    match health {
        Health::Ok => ("ok", 0.0),
        Health::Degraded => ("degraded", 1.0),
        Health::Down => ("down", 2.0),
    }
}

fn osds(text: &mut Text, osds: &[OsdStatus]) {
    type Figure = (&'static str, &'static str, &'static str, fn(&OsdStatus) -> f64);
    let figures: [Figure; 14] = [
        ("up", "gauge", "1 if it answers.", |osd| osd.up.into()),
        ("in", "gauge", "1 if it holds data.", |osd| osd.is_in.into()),
        ("disk_bytes", "gauge", "Bytes of its disk.", |osd| osd.report.total_bytes as f64),
        ("disk_used_bytes", "gauge", "Bytes used on its disk.", |osd| osd.report.used_bytes as f64),
        ("stored_bytes", "gauge", "Bytes of its fragments.", |osd| osd.report.stored_bytes as f64),
        ("disk_free_bytes", "gauge", "Bytes that it will still take.", |osd| {
            osd.report.free_bytes as f64
        }),
        ("sync_seconds", "gauge", "The longest of its latest syncs.", |osd| {
            osd.report.sync_ms as f64 / 1e3
        }),
        ("journal_bytes", "gauge", "Bytes in its journals.", |osd| osd.report.journal_bytes as f64),
        ("checksum_errors_total", "counter", "Checksum errors found.", |osd| {
            osd.report.corrupt_found as f64
        }),
        ("checksum_repaired_total", "counter", "Those repaired.", |osd| {
            osd.report.corrupt_repaired as f64
        }),
        ("reads_total", "counter", "Reads served.", |osd| osd.report.reads as f64),
        ("writes_total", "counter", "Writes served.", |osd| osd.report.writes as f64),
        ("read_bytes_total", "counter", "Bytes read.", |osd| osd.report.read_bytes as f64),
        ("written_bytes_total", "counter", "Bytes written.", |osd| osd.report.write_bytes as f64),
    ];
    let ids: Vec<String> = osds.iter().map(|osd| osd.id.get().to_string()).collect();
    for (name, kind, help, get) in figures {
        let samples = osds
            .iter()
            .zip(&ids)
            .map(|(osd, id)| ([("osd", id.as_str()), ("host", &osd.host)], get(osd)));
        text.family(&format!("trefoil_osd_{name}"), kind, help, samples);
    }
}

/// No labels.
const NONE: &[(&str, &str)] = &[];

struct Text(String);

impl Text {
    fn gauge<'a, L: AsRef<[(&'a str, &'a str)]>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.family(name, "gauge", help, samples);
    }

    fn family<'a, L: AsRef<[(&'a str, &'a str)]>>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) {
        const TAKES: &str = "a string takes everything";
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect(TAKES);
        for (labels, value) in samples {
            let labels =
                labels.as_ref().iter().map(|(key, text)| format!("{key}=\"{}\"", escaped(text)));
            let labels = labels.collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            writeln!(self.0, "{name}{labels} {value}").expect(TAKES);
        }
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::health::{HealthCheck, HealthCode};
    use protocol::monitor::{OsdReport, RecoveryStatus};
    use protocol::{ClusterId, Epoch, OsdId, SessionId};

    fn status() -> ClusterStatus {
        let osd = |id: u32, host: &str| OsdStatus {
            id: OsdId::new(id),
            addr: None,
            host: host.into(),
            up: id == 0,
            is_in: true,
            report: OsdReport { used_bytes: 7, ..OsdReport::default() },
        };
        let check = HealthCheck {
            code: HealthCode::OsdDown,
            severity: Health::Degraded,
            summary: String::new(),
            detail: Vec::new(),
            since_secs: 1,
        };
        ClusterStatus {
            cluster: ClusterId::new(1),
            epoch: Epoch::new(9),
            health: Health::Degraded,
            checks: vec![check],
            osds: vec![osd(0, "a"), osd(1, "b\"\\\n")],
            pools: Vec::new(),
            pgs: vec![(PgCondition::Degraded, 32)],
            recovery: RecoveryStatus::default(),
            clients: vec![
                (SessionId::new(1), format!("{DAEMON_SESSION}mds")),
                (SessionId::new(2), "fuse-client".into()),
            ],
            mds: None,
            mds_silent_secs: None,
            total_bytes: 100,
            free_bytes: 60,
            stored_bytes: 20,
        }
    }

    #[test]
    fn what_an_operator_alerts_on_is_there() {
        let text = render(&status(), "0.1.0 (abc)");
        for line in [
            "trefoil_build_info{version=\"0.1.0 (abc)\"} 1",
            "trefoil_map_epoch 9",
            "trefoil_health 1",
            "trefoil_health_check{code=\"OSD_DOWN\",severity=\"degraded\"} 1",
            "trefoil_osd_up{osd=\"0\",host=\"a\"} 1",
            "trefoil_osd_up{osd=\"1\",host=\"b\\\"\\\\\\n\"} 0",
            "trefoil_osd_disk_used_bytes{osd=\"0\",host=\"a\"} 7",
            "trefoil_pgs{state=\"clean\"} 0",
            "trefoil_pgs{state=\"degraded\"} 32",
            "trefoil_user_bytes{kind=\"free\"} 60",
            "trefoil_sessions{kind=\"client\"} 1",
            "trefoil_mds_silent_seconds 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
    }

    /// Names in a text that begin as ours do.
    fn names(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("trefoil_")).collect()
    }

    #[test]
    fn boards_and_alerts_name_what_is_told() {
        let rules = include_str!("../../../../contrib/prometheus/trefoil.rules.yml");
        let board = include_str!("../../../../contrib/grafana/trefoil.json");
        let text = render(&status(), "v");
        let told = names(&text);
        // What every runtime tells beside it.
        let others = ["trefoil_operation_seconds_bucket"];
        for text in [rules, board] {
            let unknown: Vec<_> = names(text)
                .into_iter()
                .filter(|n| !told.contains(n) && !others.contains(n))
                .collect();
            assert!(unknown.is_empty(), "no such figure: {unknown:?}");
            assert!(names(text).len() > 5);
        }
    }

    #[test]
    fn each_name_has_one_help_and_one_type() {
        let text = render(&status(), "v");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            for kind in ["HELP", "TYPE"] {
                let heads = text
                    .lines()
                    .filter(|found| found.starts_with(&format!("# {kind} {name} ")))
                    .count();
                assert_eq!(heads, 1, "{kind} of {name}");
            }
        }
    }
}
