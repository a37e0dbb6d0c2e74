//! Writes a run's directory: report, summary, raw data, figures.

use std::fmt::Write;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::assignment::{Assignment, Ids};
use super::figures;
use super::plan::{BLOCKS, Cell, Consistency, Files, PATTERNS, ServiceTime};
use super::results::{Of, Results};
use super::run::{AT_ONCE, BLOCKING_CORES, IN_FLIGHT, Order, Sample, Setup};
use super::targets::{self, figure_cell};
use crate::error::BenchError;
use crate::figures::Drawn;
use crate::machine::size_name;
use crate::report::{self, Origin};
use crate::stats::ratio;

/// What a report is made of.
pub(super) struct Material {
    pub(super) origin: Origin,
    pub(super) setup: Setup,
    pub(super) results: Results,
    pub(super) order: Vec<Order>,
    pub(super) assignment: Assignment,
}

/// Reads back what [`write`] kept of a run.
///
/// # Errors
/// When a file is missing or not what was written.
pub(super) fn read(dir: &Path) -> Result<Material, BenchError> {
    Ok(Material {
        origin: parsed(&dir.join("run.json"))?,
        setup: parsed(&dir.join("raw/setup.json"))?,
        results: Results::new(parsed(&dir.join("raw/samples.json"))?),
        order: parsed(&dir.join("raw/order.json"))?,
        assignment: parsed(&dir.join("raw/assignment.json"))?,
    })
}

fn parsed<T: DeserializeOwned>(path: &Path) -> Result<T, BenchError> {
    let text = std::fs::read_to_string(path).map_err(BenchError::file(path))?;
    Ok(serde_json::from_str(&text)?)
}

/// Writes everything into `dir`, which is made.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(dir: &Path, material: &Material) -> Result<(), BenchError> {
    let Material { origin, setup, results, order, assignment } = material;
    let drawn = figures::draw(results);
    report::make_dirs(dir, &["figures", "raw"])?;
    for figure in &drawn {
        report::put(&dir.join("figures").join(figure.file), &figure.svg)?;
    }
    report::put(&dir.join("summary.json"), &report::lines(&results.rows())?)?;
    report::put(&dir.join("run.json"), &serde_json::to_string_pretty(origin)?)?;
    report::put(&dir.join("raw/setup.json"), &serde_json::to_string_pretty(setup)?)?;
    let samples = results.samples.iter().map(|s| Ok(report::shortened(serde_json::to_value(s)?)));
    let samples: Vec<serde_json::Value> = samples.collect::<Result<_, serde_json::Error>>()?;
    report::put(&dir.join("raw/samples.json"), &report::lines(&samples)?)?;
    report::put(&dir.join("raw/order.json"), &report::lines(order)?)?;
    report::put(&dir.join("raw/assignment.json"), &serde_json::to_string_pretty(assignment)?)?;
    report::put(&dir.join("report.md"), &text(material, &drawn))
}

fn text(material: &Material, drawn: &[Drawn]) -> String {
    let Material { origin, setup, results, order, assignment } = material;
    let mut out = format!("# Keeping shards alike: {}\n\n", origin.name);
    report::head(&mut out, &origin.command, &origin.machine, origin.load_after);
    let _ = writeln!(out, "* {:.0} s in all", origin.seconds);
    conditions(&mut out, setup);
    out.push_str(MODES);
    report::verdicts(&mut out, &targets::judge(results, order));
    gains(&mut out, results);
    where_from(&mut out, results);
    let _ = writeln!(out, "## Figures\n");
    for figure in drawn {
        let _ =
            writeln!(out, "{}\n\n![{}](figures/{})\n", figure.caption, figure.caption, figure.file);
    }
    order_table(&mut out, order);
    assignment_tables(&mut out, assignment);
    cells(&mut out, results);
    let _ = writeln!(
        out,
        "## Raw data\n\n`summary.json`: one row per cell, mode and metric; `ratio` is to the first mode. One line per run in \
         [samples.json](raw/samples.json), [order.json](raw/order.json); also [setup.json](raw/setup.json) and [assignment.json](raw/assignment.json).\n"
    );
    out.push_str(NOT_SHOWN);
    out
}

fn conditions(out: &mut String, setup: &Setup) {
    let Setup { warm_up_ms, measure_ms, rounds, workers, io_threads } = setup;
    let ServiceTime { us_per_message, us_per_kib } = ServiceTime::BLOCKING;
    let _ = writeln!(
        out,
        "* Each cell: {warm_up_ms} ms of warm-up, {measure_ms} ms measured, {rounds} rounds, all modes in turn; tables show medians\n\
         * Three servers (2+1, chunks of 512 B) with {workers} workers each, {io_threads} io-threads where there is a shared queue; 1 to 8 clients, each with a \
         worker, connections and codec of its own and {IN_FLIGHT} operations in flight, all in one process over loopback\n\
         * `cpu` cells: nothing but the work itself. `blocking` cells: a server's thread also sleeps {us_per_message:.0} us for each message and \
         {us_per_kib:.0} us for each KiB, so that {BLOCKING_CORES} workers, or as many io-threads, act as {BLOCKING_CORES} cores; these times are assumptions\n\
         * `memory`: fragments in memory. `disk`: on the temporary directory's disk, without a sync. `many`: 64 files, each client its own share. \
         `few`: 2 files, shared by all clients. All are written once before\n\
         * CPU of socket threads (Figure 4.3): of one server, in shares of a core. In the per-core modes these threads also carry operations out; in \
         the others io-threads do, which are not counted there, but in every other number of CPU time\n",
    );
}

const MODES: &str = "\
* `cluster-lock`: GlusterFS as the thesis describes it. Event threads put every request into one queue under a lock, io-threads take from it \
and keep no order, so a client locks the file on all servers for every operation: first without waiting; if any refuses, it gives back what \
it got and waits for one server after the other; then the operation, then unlocks. Operations of one client on one file wait for each other. \
GlusterFS's version and size updates with the lock are not part of it.
* `cluster-lock-eager`: the lock is kept until another client wants it (servers tell its holder, as with `features.locks-notify-contention`), or for a second without use. Under it reads \
of a client run side by side, writes one after the other, as in GlusterFS 3.9.
* `per-core-table`: the thesis's own design. The lock is taken when a file is opened and kept until another client wants it; one thread serves a \
connection, looks the file's core up in the gfid-queue table (under a lock that all socket threads share) and puts the request into that \
core's lock-free queue.
* `per-core`: Trefoil's way. The gfid modulo the cores is the core; the client sends to that core's own connection, and the worker \
that reads a request carries it out: no queue, no table, no lock. Files are locked as in `per-core-table`, where Trefoil has leases.
* `unordered`: only checked, not measured: the shared queue without any lock but that at open.

";

/// What each mode gains over both baselines, by block size.
fn gains(out: &mut String, results: &Results) {
    let _ = writeln!(
        out,
        "## Gains by block size\n\nOver `cluster-lock` / over `cluster-lock-eager`, in memory, real CPU. `many`: files of their own, as in the figures; \
         `few`: 2 files, shared. The thesis: throughput +63% on average and +83% at most for reads, +60% and +69% for writes.\n"
    );
    let metrics: [(&str, Of); 2] = [
        ("Throughput", Sample::ops_per_s),
        (
            "Operations per CPU second of servers and clients (other work on the machine changes this the least)",
            Sample::ops_per_cpu_s,
        ),
    ];
    for (name, of) in metrics {
        let _ = writeln!(
            out,
            "{name}:\n\n| | files | clients | 4K | 16K | 64K | 256K | mean |\n|---|---|---|---|---|---|---|---|"
        );
        for (files, pattern) in
            Files::ALL.into_iter().flat_map(|files| PATTERNS.map(|pattern| (files, pattern)))
        {
            for clients in [1, 4] {
                for mode in [Consistency::PerCore, Consistency::PerCoreTable] {
                    gains_row(out, results, mode, of, |block| Cell {
                        files,
                        ..figure_cell(pattern, block, clients)
                    });
                }
            }
        }
        out.push('\n');
    }
}

fn gains_row(
    out: &mut String,
    results: &Results,
    mode: Consistency,
    of: Of,
    cell: impl Fn(u64) -> Cell,
) {
    let over = |base| BLOCKS.map(|block| results.gain(&cell(block), mode, base, of));
    let (lock, eager) = (over(Consistency::ClusterLock), over(Consistency::ClusterLockEager));
    let percent =
        |gain: Option<f64>| gain.map_or("-".into(), |gain| format!("{:+.0}%", gain * 100.0));
    let mean = |gains: &[Option<f64>; 4]| {
        let sum: Option<f64> = gains.iter().copied().sum();
        percent(sum.map(|sum| sum / gains.len() as f64))
    };
    let cell = cell(BLOCKS[0]);
    let _ = write!(
        out,
        "| {} `{}` | {} | {} |",
        cell.pattern.name(),
        mode.name(),
        cell.files.name(),
        cell.clients
    );
    for (lock, eager) in lock.iter().zip(&eager) {
        let _ = write!(out, " {} / {} |", percent(*lock), percent(*eager));
    }
    let _ = writeln!(out, " {} / {} |", mean(&lock), mean(&eager));
}

/// Round trips, messages, waits and CPU time of an operation of one client.
fn where_from(out: &mut String, results: &Results) {
    let _ = writeln!(
        out,
        "## Where the gain comes from\n\nOne operation of one client with files of its own, in memory, real CPU. Where everything is bound by CPU, \
         throughput goes as the last column.\n\n\
         | | mode | round trips | messages | waits for its lock, us | of, us | CPU servers, us | CPU clients, us | CPU, to `cluster-lock` |\n\
         |---|---|---|---|---|---|---|---|---|"
    );
    for (pattern, block) in PATTERNS
        .into_iter()
        .flat_map(|pattern| [BLOCKS[0], BLOCKS[2]].map(|block| (pattern, block)))
    {
        let cell = figure_cell(pattern, block, 1);
        let base = results.median(&cell, Consistency::ClusterLock, Sample::cpu_us).unwrap_or(0.0);
        for mode in results.modes() {
            let Some(all) = results.median(&cell, mode, Sample::cpu_us) else { continue };
            let m = |of: Of| results.median(&cell, mode, of).unwrap_or(0.0);
            let _ = writeln!(
                out,
                "| {} {} | {} | {:.2} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2}x |",
                pattern.name(),
                size_name(block),
                mode.name(),
                m(|s| s.round_trips),
                m(|s| s.messages),
                m(|s| s.lock_wait_us),
                m(|s| s.mean_us),
                m(|s| s.server_cpu_us),
                m(|s| s.client_cpu_us),
                ratio(all, base)
            );
        }
    }
    out.push('\n');
}

fn order_table(out: &mut String, order: &[Order]) {
    let _ = writeln!(
        out,
        "## Is order kept?\n\nFigure 2.3, tried: each client writes {AT_ONCE} blocks to one place at once; when all have been answered, all three \
         shards are read and coded again. Torn: the parity is not that of the data.\n\n| mode | clients | looks | torn |\n|---|---|---|---|"
    );
    for Order { consistency, clients, looks, torn } in order {
        let _ = writeln!(out, "| {} | {clients} | {looks} | {torn} |", consistency.name());
    }
    out.push('\n');
}

fn assignment_tables(out: &mut String, assignment: &Assignment) {
    let _ = writeln!(
        out,
        "## gfid to core: table and arithmetic\n\nFiles of the core with the most, to the mean over 2 / 4 / 8 cores (computed; 1 is even). With fewer \
         files than cores some cores idle in any case.\n\n| ids | files | table | arithmetic |\n|---|---|---|---|"
    );
    for ids in Ids::ALL {
        let of = assignment.evenness.iter().filter(|even| even.ids == ids);
        let mut files: Vec<usize> = of.map(|even| even.files).collect();
        files.dedup();
        for files in files {
            let of =
                || assignment.evenness.iter().filter(|even| even.ids == ids && even.files == files);
            let table: Vec<String> = of().map(|even| format!("{:.2}", even.table)).collect();
            let arithmetic: Vec<String> =
                of().map(|even| format!("{:.2}", even.arithmetic)).collect();
            let (table, arithmetic) = (table.join(" / "), arithmetic.join(" / "));
            let _ = writeln!(out, "| {} | {files} | {table} | {arithmetic} |", ids.words());
        }
    }
    let _ = writeln!(
        out,
        "\nOne look-up, measured:\n\n| files | table, ns | table shared by two threads, ns | arithmetic, ns |\n|---|---|---|---|"
    );
    for look_up in &assignment.look_ups {
        let (table, shared, arithmetic) =
            (look_up.table_ns, look_up.shared_table_ns, look_up.arithmetic_ns);
        let _ = writeln!(out, "| {} | {table:.1} | {shared:.1} | {arithmetic:.1} |", look_up.files);
    }
    out.push('\n');
}

/// One table for each group of cells.
fn cells(out: &mut String, results: &Results) {
    let _ = writeln!(out, "## All cells\n");
    let cells = results.cells();
    let mut groups: Vec<String> = cells.iter().map(Cell::group).collect();
    groups.sort();
    groups.dedup();
    for group in groups {
        let _ = writeln!(
            out,
            "### {group}\n\n| block | clients | mode | ops/s | x | MB/s | mean us | p99 us | round trips | messages | locks | refused at first % | \
             lock wait us | queue lock taken % | queue lock wait us | CPU servers us | CPU clients us |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
        );
        let mut of: Vec<&Cell> = cells.iter().filter(|cell| cell.group() == group).collect();
        of.sort_by_key(|cell| (cell.clients, cell.block_bytes));
        for cell in of {
            results.modes().into_iter().for_each(|mode| cell_row(out, results, cell, mode));
        }
        out.push('\n');
    }
}

fn cell_row(out: &mut String, results: &Results, cell: &Cell, mode: Consistency) {
    let m = |of: Of| results.median(cell, mode, of).unwrap_or(0.0);
    let base = results.median(cell, results.modes()[0], Sample::ops_per_s).unwrap_or(0.0);
    let _ = writeln!(
        out,
        "| {} | {} | {} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} | {:.2} | {:.1} | {:.2} | {:.1} | {:.0} | {:.1} | {:.2} | {:.0} | {:.0} |",
        size_name(cell.block_bytes),
        cell.clients,
        mode.name(),
        m(Sample::ops_per_s),
        ratio(m(Sample::ops_per_s), base),
        m(Sample::mb_per_s),
        m(|s| s.mean_us),
        m(|s| s.p99_us),
        m(|s| s.round_trips),
        m(|s| s.messages),
        m(|s| s.locks),
        m(|s| s.fallback_share * 100.0),
        m(|s| s.lock_wait_us),
        m(|s| s.queue_contended_share * 100.0),
        m(|s| s.queue_wait_us),
        m(|s| s.server_cpu_us),
        m(|s| s.client_cpu_us),
    );
}

const NOT_SHOWN: &str = "
## What this does not show

* GlusterFS itself: its baseline here is our messenger, codec and fragment store with its locks and queue. `cargo xtask compare` measures GlusterFS.
  Its client puts operations into a shared queue as well (Figure 2.5); here all modes have the same client, without one.
* Whether the thesis's GlusterFS locked eagerly: it is the default of its version, and the thesis says that it helps, but not whether it was on.
  So both baselines stand beside each other.
* Latency of a network: on loopback a round trip costs CPU time and little else. Where it costs time, fewer round trips gain more.
* More cores than the machine has: with all servers and clients on two cores everything is bound by CPU, the throughput of a mode is what its
  messages and wake-ups leave, and contention of threads for the queue's lock shows less than on servers of eight cores. `blocking` cells show who waits
  for whom on servers of eight cores, but no cost of caches, cores or wake-ups, and they depend on the service times that are assumed.
* A journal, checksums of sectors on the disk, syncs: a write here goes to the fragment. The same in all modes.
* A dead server: all cells are healthy.
* Other work shares the cores; see the load. The kernel shares them by threads, so that a mode with many threads then gets more of them: where the
  load was not the run's own, operations per CPU second say more than throughput.
* The better balance of a shared queue where few operations are in flight and each takes long (`blocking` cells): a core that owns a file works alone
  on it, whatever the others do. That is a price of per-core allocation, and it is measured.
";
