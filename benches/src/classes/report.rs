//! The report of a run: tables, the targets, and what it does not show.

use std::fmt::Write;
use std::path::Path;

use super::heal::{HealRound, Quantiles};
use super::queues::QueueRound;
use super::{Args, Measured, SIDES};
use crate::error::BenchError;
use crate::machine::{self, Machine};
use crate::report;
use crate::stats::{median, ratio};

/// What class III alone may lose.
const ALONE_LOSS_MAX: f64 = 0.03;
/// How much longer a client's 99th percentile may be beside a heal.
const HEAL_P99_MAX: f64 = 1.5;
/// How fast a heal has to be beside a load, of what it is alone.
const HEAL_RATE_MIN: f64 = 0.7;

pub(super) fn write(
    dir: &Path,
    args: &Args,
    machine: &Machine,
    measured: &Measured,
) -> Result<(), BenchError> {
    std::fs::create_dir_all(dir).map_err(BenchError::file(dir))?;
    report::put(&dir.join("queues.json"), &report::lines(&measured.queues)?)?;
    report::put(&dir.join("heals.json"), &report::lines(&measured.heals)?)?;
    report::put(&dir.join("report.md"), &text(args, machine, measured))
}

fn text(args: &Args, machine: &Machine, measured: &Measured) -> String {
    let quick = if args.quick { " --quick" } else { "" };
    let no_heal = if args.no_heal { " --no-heal" } else { "" };
    let rounds = args.rounds.map_or(String::new(), |rounds| format!(" --rounds {rounds}"));
    let mut out = format!("# Traffic classes off and on: {}\n\n", args.name);
    let command = format!("cargo xtask bench classes{quick}{no_heal}{rounds}");
    report::head(&mut out, &command, machine, machine::load_average());
    if cfg!(debug_assertions) {
        out.push_str("* **A debug build**: times mean nothing.\n");
    }
    out.push_str(QUEUES);
    queue_rows(&mut out, &measured.queues);
    if !measured.heals.is_empty() {
        out.push_str(HEAL);
        heal_rows(&mut out, &measured.heals);
    }
    out.push_str("\n## Targets\n\n| what | target | measured | |\n|---|---|---|---|\n");
    targets(&mut out, measured);
    out.push_str(NOT_SHOWN);
    out
}

fn queue_rows(out: &mut String, rounds: &[QueueRound]) {
    for (load, class) in [("all", "I"), ("all", "II"), ("all", "III"), ("alone", "III")] {
        for side in SIDES {
            let of = |get: fn(&QueueRound) -> f64| {
                let found =
                    rounds.iter().filter(|r| (r.load, r.class, r.side) == (load, class, side));
                median(found.map(get))
            };
            let _ = writeln!(
                out,
                "| {load} | {class} | {side} | {:.0} | {:.0} | {:.0} | {:.0} |",
                of(|r| r.per_s),
                of(|r| r.p50_us),
                of(|r| r.p99_us),
                of(|r| r.p999_us)
            );
        }
    }
}

fn heal_rows(out: &mut String, rounds: &[HealRound]) {
    type Part = (&'static str, fn(&HealRound) -> Quantiles);
    let parts: [Part; 4] = [
        ("reads, no heal", |r| r.reads_idle),
        ("reads, healing", |r| r.reads_healing),
        ("heartbeats, no heal", |r| r.beats_idle),
        ("heartbeats, healing", |r| r.beats_healing),
    ];
    for (what, get) in parts {
        for side in SIDES {
            let all: Vec<Quantiles> = rounds.iter().filter(|r| r.side == side).map(get).collect();
            let of = |get: fn(&Quantiles) -> f64| median(all.iter().map(get));
            let _ = writeln!(
                out,
                "| {what} | {side} | {:.0} | {:.0} | {:.0} | {:.0} |",
                of(|q| q.count as f64),
                of(|q| q.p50_us),
                of(|q| q.p99_us),
                of(|q| q.p999_us)
            );
        }
    }
    out.push_str("\n| heal | with the load, s | alone, s |\n|---|---|---|\n");
    for side in SIDES {
        let of =
            |get: fn(&HealRound) -> f64| median(rounds.iter().filter(|r| r.side == side).map(get));
        let _ = writeln!(out, "| {side} | {:.1} | {:.1} |", of(|r| r.heal_s), of(|r| r.alone_s));
    }
    out.push_str(
        "\n| on against off, of the same round | median | least | most |\n|---|---|---|---|\n",
    );
    type Figure = (&'static str, fn(&HealRound) -> f64);
    let figures: [Figure; 6] = [
        ("reads while healing, p50", |r| r.reads_healing.p50_us),
        ("reads while healing, p99", |r| r.reads_healing.p99_us),
        ("reads while healing, p99.9", |r| r.reads_healing.p999_us),
        ("heartbeats while healing, p99", |r| r.beats_healing.p99_us),
        ("length of the heal with the load", |r| r.heal_s),
        ("length of the heal alone", |r| r.alone_s),
    ];
    for (what, get) in figures {
        let ratios = on_against_off(rounds, |r| (r.round, r.side), get);
        let _ = writeln!(
            out,
            "| {what} | {:.2} | {:.2} | {:.2} |",
            median(ratios.iter().copied()),
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratios.iter().copied().fold(0.0, f64::max)
        );
    }
}

/// Ratios of the rounds in which both sides were measured.
fn on_against_off<T>(
    rounds: &[T],
    key: impl Fn(&T) -> (usize, &'static str),
    get: impl Fn(&T) -> f64,
) -> Vec<f64> {
    let on = rounds.iter().filter(|r| key(r).1 == SIDES[1]);
    on.filter_map(|on| {
        let off = rounds.iter().find(|off| key(off) == (key(on).0, SIDES[0]))?;
        Some(ratio(get(on), get(off)))
    })
    .collect()
}

fn targets(out: &mut String, measured: &Measured) {
    let mut line = |what: &str, target: String, value: f64, met: bool| {
        let verdict = if met { "met" } else { "**not met**" };
        let _ = writeln!(out, "| {what} | {target} | {value:.2} | {verdict} |");
    };
    let alone: Vec<QueueRound> =
        measured.queues.iter().filter(|r| r.load == "alone").cloned().collect();
    let kept = median(on_against_off(&alone, |r| (r.round, r.side), |r| r.per_s));
    let least = 1.0 - ALONE_LOSS_MAX;
    line(
        "class III alone, rate on against off",
        format!("{least:.2} or more"),
        kept,
        kept >= least,
    );
    let on = || measured.heals.iter().filter(|r| r.side == SIDES[1]);
    if on().next().is_none() {
        return;
    }
    let longer = median(on().map(|r| ratio(r.reads_healing.p99_us, r.reads_idle.p99_us)));
    line(
        "client p99 during a heal, of that without, classes on",
        format!("{HEAL_P99_MAX:.2} or less"),
        longer,
        longer <= HEAL_P99_MAX,
    );
    let rate = median(on().map(|r| ratio(r.alone_s, r.heal_s)));
    line(
        "rate of the heal beside the load, of that alone, classes on",
        format!("{HEAL_RATE_MIN:.2} or more"),
        rate,
        rate >= HEAL_RATE_MIN,
    );
}

const QUEUES: &str = "
## All classes at once, and class III alone

Jobs of 0.5 ms, asleep, for four I/O threads; 32 of II and 32 of III always under way, one of I
every 5 ms. Medians over rounds; times from asked to done, in microseconds.

| load | class | classes | per s | p50 | p99 | p99.9 |
|---|---|---|---|---|---|---|
";

const HEAL: &str = "
## A heal at full rate under a client's load

A 2+1 cluster of processes; one client reads 4 KiB at random places of 16 MiB, eight at a time,
while an OSD that was away rebuilds what it missed. Medians over rounds, in microseconds. Heartbeats
are those of the OSDs that were there all the time, from sent to answered.

| what | classes | how many | p50 | p99 | p99.9 |
|---|---|---|---|---|---|
";

const NOT_SHOWN: &str = "
## What this does not show

* Clusters of several machines: all processes and the client share this machine's CPUs and its disk,
  and the kernel's scheduler knows no classes.
* Reads that miss the page cache, deep scrubs, writes with fsync: a sync is one for a heal and
  clients.
* Where few heartbeats were sent (two a second and OSD), their p99 is their longest.
* Other work shared the machine; where least and most lie far apart, the median says little.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let rows =
            [(0, "off", 2.0), (0, "on", 1.0), (1, "on", 9.0), (1, "off", 3.0), (2, "on", 5.0)];
        let ratios = on_against_off(&rows, |r| (r.0, r.1), |r| r.2);
        assert_eq!(ratios, [0.5, 3.0], "a round with one side only does not count");
    }
}
