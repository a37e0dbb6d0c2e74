//! The cluster's state for people.

use crate::status::{CONDITIONS, condition, count, health};
use protocol::health::HealthCheck;
use protocol::monitor::{
    ClusterStatus, DAEMON_SESSION, Health, OsdStatus, PgCondition, PoolStatus, RecoveryStatus,
};
use std::fmt::Write;

/// Everything.
pub fn status(status: &ClusterStatus) -> String {
    let mut out = String::new();
    let up = status.osds.iter().filter(|o| o.up).count();
    let inside = status.osds.iter().filter(|o| o.is_in).count();
    let mut row = |name: &str, value: String| {
        writeln!(out, "{name:10} {value}").expect("a string takes everything")
    };
    row("cluster", format!("{}, epoch {}", status.cluster, status.epoch.get()));
    row("health", health(status.health).into());
    for check in &status.checks {
        row("", format!("{}: {}", check.code, check.summary));
    }
    row("osds", format!("{}: {up} up, {inside} in", status.osds.len()));
    row("mds", mds(status));
    row("pgs", pgs(status));
    if let Some(recovery) = recovery(&status.recovery) {
        row("recovery", recovery);
    }
    let (stored, free) = (status.stored_bytes, status.free_bytes);
    row("space", format!("{} stored, {} free", bytes(stored), bytes(free)));
    let (daemons, clients): (Vec<_>, Vec<_>) =
        status.clients.iter().partition(|(_, name)| is_daemon(name));
    row("clients", clients.len().to_string());
    for (session, name) in clients {
        row("", format!("session {} {name}", session.get()));
    }
    for (at, (session, name)) in daemons.into_iter().enumerate() {
        let name = name.trim_start_matches(DAEMON_SESSION);
        row(if at == 0 { "daemons" } else { "" }, format!("session {} {name}", session.get()));
    }
    out.push('\n');
    out += &osds(&status.osds);
    out.push('\n');
    out += &pools(&status.pools);
    out
}

/// Does a session of this name belong to a daemon of the cluster?
pub fn is_daemon(session_name: &str) -> bool {
    session_name.starts_with(DAEMON_SESSION)
}

/// Its health and the reasons, and no more; with `detail` line by line, since when, and what can be
/// done.
pub fn health_report(status: &ClusterStatus, detail: bool) -> String {
    let mut out = format!("{}\n", health(status.health));
    for check in &status.checks {
        let HealthCheck { code, severity, summary, .. } = check;
        if !detail {
            out += &format!("{code}: {summary}\n");
            continue;
        }
        let (severity, since) = (severity_word(*severity), period(check.since_secs));
        out += &format!("\n{code} ({severity}, for {since}): {summary}\n");
        out.extend(check.detail.iter().map(|line| format!("    {line}\n")));
        out += &format!("    To do: {}.\n", code.what_to_do());
    }
    out
}

/// What a check does to the health: nothing, for one that is only to be known.
fn severity_word(severity: Health) -> &'static str {
    if severity == Health::Ok { "to know" } else { health(severity) }
}

/// "127.0.0.1:7401, silent for 40 s".
fn mds(status: &ClusterStatus) -> String {
    let Some(addr) = status.mds else { return "none".into() };
    let silent = status.mds_silent_secs.map(|seconds| format!(", silent for {}", period(seconds)));
    addr.to_string() + &silent.unwrap_or_default()
}

/// "12 objects with 1.5 GiB to rebuild, 40.0 MiB/s, about 39 s to go"; `None` when nothing is to be
/// rebuilt.
fn recovery(status: &RecoveryStatus) -> Option<String> {
    let RecoveryStatus { objects, bytes: left, shards_uncounted, bytes_per_sec, seconds_left } =
        *status;
    if objects == 0 && shards_uncounted == 0 {
        return None;
    }
    let mut text = format!("{objects} objects with {} to rebuild", bytes(left));
    match seconds_left {
        Some(seconds) if bytes_per_sec > 0 => {
            write!(text, ", {}/s, about {} to go", bytes(bytes_per_sec), period(seconds))
        }
        _ => write!(text, ", nothing moves now"),
    }
    .expect("a string takes everything");
    if shards_uncounted > 0 {
        write!(text, "; {shards_uncounted} shards are not counted yet")
            .expect("a string takes everything");
    }
    Some(text)
}

/// "45 s", "12 min", "3 h 20 min".
pub fn period(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// "30 clean, 2 recovering".
fn pgs(status: &ClusterStatus) -> String {
    let all: u32 = status.pgs.iter().map(|(_, n)| n).sum();
    let parts = CONDITIONS.map(|c| (count(status, c), condition(c)));
    let parts: Vec<String> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if all == 0 { "none".into() } else { format!("{all}: {}", parts.join(", ")) }
}

/// The storage daemons.
pub fn osds(osds: &[OsdStatus]) -> String {
    let head = [
        "osd",
        "state",
        "address",
        "host",
        "stored",
        "disk used",
        "size",
        "journal",
        "to rebuild",
        "corrupt",
    ];
    let rows = osds.iter().map(|osd| {
        let report = &osd.report;
        let state = format!(
            "{} {}",
            if osd.up { "up" } else { "down" },
            if osd.is_in { "in" } else { "out" }
        );
        let rebuild: u64 = report.to_rebuild.iter().map(|backlog| backlog.objects).sum();
        [
            format!("osd.{}", osd.id.get()),
            state,
            osd.addr.map_or_else(|| "-".into(), |a| a.to_string()),
            osd.host.clone(),
            bytes(report.stored_bytes),
            bytes(report.used_bytes),
            bytes(report.total_bytes),
            bytes(report.journal_bytes),
            rebuild.to_string(),
            format!("{} found, {} repaired", report.corrupt_found, report.corrupt_repaired),
        ]
    });
    columns(head, rows)
}

/// What giving up the disk of a storage daemon means.
pub fn stake(osd: &OsdStatus, status: &ClusterStatus) -> String {
    let whole = count(status, PgCondition::Clean);
    let all: u32 = status.pgs.iter().map(|(_, n)| n).sum();
    // The daemon's own shards are missing by now.
    let left = |pool: &PoolStatus| pool.profile.m().saturating_sub(1);
    let next = match status.pools.iter().map(left).min() {
        Some(0) | None => "one more lost disk loses data".to_owned(),
        Some(m) => format!("more than {m} further lost disks lose data"),
    };
    format!(
        "{osd} on {host} will take an empty disk, and what it held is rebuilt there from the others (its disk had {used} \
         in use).\n{part} of {all} placement groups are not whole now; until they are, {next}.\nIf its disk can be \
         mounted again, start {osd} with it instead: then only what it missed is rebuilt.",
        osd = osd.id,
        host = osd.host,
        used = bytes(osd.report.used_bytes),
        part = all.saturating_sub(whole),
    )
}

/// The pools.
pub fn pools(pools: &[PoolStatus]) -> String {
    let head = ["pool", "id", "code", "chunk", "pgs"];
    let rows = pools.iter().map(|pool| {
        let profile = pool.profile;
        let code = match profile.k() {
            1 => format!("{} copies", profile.shards()),
            k => format!("{k}+{}", profile.m()),
        };
        [
            pool.name.clone(),
            pool.id.get().to_string(),
            code,
            bytes(profile.chunk_bytes().into()),
            pool.pg_num.to_string(),
        ]
    });
    columns(head, rows)
}

/// Rows under a head, each column as wide as its widest cell.
pub fn columns<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let all: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width =
        |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:w$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(line).collect()
}

/// Bytes in binary units: "1.5 GiB".
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let power = (n.ilog2() / 10) as usize;
    format!("{:.1} {}", n as f64 / (1u64 << (10 * power)) as f64, UNITS[power - 1])
}

/// A duration in the unit that fits: "1.5 ms".
pub fn nanoseconds(ns: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    match UNITS.iter().find(|(size, _)| ns >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", ns / size),
        None => format!("{ns:.0} ns"),
    }
}

/// A time in UTC: "2025-11-20 20:09:00.000000001 UTC".
pub fn time(seconds: i64, nanoseconds: u32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a date in the proleptic Gregorian calendar, counted from 1 March of year 0.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanoseconds:09} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_an_operator_looks_for_is_there() {
        let text = status(&crate::status::tests::sample());
        let wanted = [
            "health     degraded",
            "OSD_DOWN: osd.1 is down",
            "2: 1 up, 2 in",
            "127.0.0.1:7401, silent for 40 s",
            "32: 20 clean, 12 degraded",
            "7 objects with 7.0 MiB to rebuild, 1.0 MiB/s, about 7 s to go",
            "5.0 GiB stored, 12.0 GiB free",
            "clients    1\n           session 9 fuse-client here /mnt",
            "daemons    session 1 mds: deletes objects",
            "osd.0  up in",
            "2+1",
        ];
        assert_eq!(
            [7, 119, 121, 7_200, 90_000].map(period),
            ["7 s", "119 s", "3 min", "2 h 0 min", "25 h 0 min"]
        );
        for words in wanted {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
    }

    #[test]
    fn health_has_codes_and_on_demand_what_can_be_done() {
        let mut status = crate::status::tests::sample();
        assert_eq!(health_report(&status, false), "degraded\nOSD_DOWN: osd.1 is down\n");
        status.checks[0].detail = vec!["osd.1 on a is down".into(), "osd.2 on b is down".into()];
        let text = health_report(&status, true);
        for words in [
            "OSD_DOWN (degraded, for 12 s): osd.1 is down\n",
            "    osd.2 on b is down\n",
            "    To do: see",
        ] {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
    }

    #[test]
    fn what_is_at_stake_is_told() {
        let sample = crate::status::tests::sample();
        let told = stake(&sample.osds[1], &sample);
        for words in [
            "osd.1 on here",
            "12 of 32 placement groups",
            "one more lost disk loses data",
            "4.0 GiB in use",
        ] {
            assert!(told.contains(words), "`{words}` is not in: {told}");
        }
    }

    #[test]
    fn times() {
        for (seconds, words) in [
            (0, "1970-01-01 00:00:00.000000007 UTC"),
            (951_782_400, "2000-02-29 00:00:00.000000007 UTC"),
            (1_763_669_340, "2025-11-20 20:09:00.000000007 UTC"),
            (-1, "1969-12-31 23:59:59.000000007 UTC"),
        ] {
            assert_eq!(time(seconds, 7), words);
        }
    }

    #[test]
    fn durations() {
        for (ns, words) in [
            (0.0, "0 ns"),
            (999.0, "999 ns"),
            (1500.0, "1.5 us"),
            (2.5e6, "2.5 ms"),
            (6e10, "60.0 s"),
        ] {
            assert_eq!(nanoseconds(ns), words);
        }
    }

    #[test]
    fn units() {
        for (n, words) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(n), words);
        }
    }
}
