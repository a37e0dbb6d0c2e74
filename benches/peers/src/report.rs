//! The report of a comparison: medians, targets, figure.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use benches::machine::{self, Machine};
use benches::stats::median;
use plot::{Figure, Panel, Plot, style};
use serde::Serialize;

use crate::System;
use crate::measure::Measured;

/// The directory of the benches.
pub fn home() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// One line of `summary.json`, of the same shape as that of the contention bench; ratios are to the
/// messenger.
#[derive(Serialize)]
struct Row {
    scenario: String,
    mapping: &'static str,
    block_size: String,
    metric: &'static str,
    median: f64,
    ratio: f64,
    runs: usize,
}

type Of = fn(&Measured) -> f64;
const METRICS: [(&str, Of); 6] = [
    ("messages_per_s", |m| m.messages_per_s),
    ("mean_us", |m| m.mean_us),
    ("p99_us", |m| m.p99_us),
    ("client_cpu_us", |m| m.client_cpu_us),
    ("server_cpu_us", |m| m.server_cpu_us),
    ("cpu_us", Measured::cpu_us),
];

/// Connections, requests in flight on each, bytes.
type Cell = (usize, usize, u32);

fn cells(measured: &[Measured]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for one in measured {
        let cell = (one.shape.connections, one.shape.in_flight, one.shape.size);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells.sort_unstable();
    cells
}

fn value(
    measured: &[Measured],
    (connections, in_flight, size): Cell,
    system: System,
    of: Of,
) -> f64 {
    let same = |m: &&Measured| {
        (m.shape.connections, m.shape.in_flight, m.shape.size) == (connections, in_flight, size)
            && m.system == system.name()
    };
    median(measured.iter().filter(same).map(of))
}

/// Writes everything into `dir`, which is made.
pub fn write(dir: &Path, name: &str, machine: &Machine, measured: &[Measured]) -> io::Result<()> {
    fs::create_dir_all(dir.join("figures"))?;
    let runs = measured.iter().map(|m| m.run + 1).max().unwrap_or(0);
    let mut rows = Vec::new();
    for cell in cells(measured) {
        for system in System::ALL {
            for (metric, of) in METRICS {
                let (value, base) = (
                    value(measured, cell, system, of),
                    value(measured, cell, System::Messenger, of),
                );
                rows.push(Row {
                    scenario: format!("peers/connections-{}/in-flight-{}", cell.0, cell.1),
                    mapping: system.name(),
                    block_size: machine::size_name(cell.2.into()),
                    metric,
                    median: value,
                    ratio: if base > 0.0 { value / base } else { 0.0 },
                    runs,
                });
            }
        }
    }
    fs::write(dir.join("summary.json"), lines(&rows)?)?;
    fs::write(dir.join("raw.json"), lines(measured)?)?;
    fs::write(dir.join("figures/fig-peers-cpu.svg"), figure(measured))?;
    fs::write(dir.join("report.md"), text(name, machine, measured, runs))
}

fn lines<T: Serialize>(items: &[T]) -> io::Result<String> {
    let lines: Vec<String> = items.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

fn figure(measured: &[Measured]) -> String {
    let cells = cells(measured);
    let mut panels = Vec::new();
    for connections in [1, 8] {
        for in_flight in [1, 16] {
            let own: Vec<Cell> =
                cells.iter().filter(|c| (c.0, c.1) == (connections, in_flight)).copied().collect();
            let bars = |system| {
                let each =
                    |cell: &Cell| value(measured, *cell, system, |m| 1e6 / m.cpu_us().max(1e-3));
                own.iter().map(each).collect()
            };
            panels.push(Panel {
                title: format!("{connections} connections, {in_flight} in flight on each"),
                x_label: "bytes of the reply".into(),
                y_label: "messages per CPU second".into(),
                reference: None,
                y_max: None,
                plot: Plot::Bars {
                    categories: own.iter().map(|cell| machine::size_name(cell.2.into())).collect(),
                    values: System::ALL.into_iter().map(bars).collect(),
                },
            });
        }
    }
    let figure = Figure {
        title: "Messages per second of CPU, client and server together".into(),
        note: "Real CPU, two processes over loopback; medians.".into(),
        styles: System::ALL
            .iter()
            .zip([3, 1, 0])
            .map(|(system, look)| style(look, system.name()))
            .collect(),
        columns: 2,
        panel: (420.0, 240.0),
        panels,
    };
    figure.draw()
}

fn text(name: &str, machine: &Machine, measured: &[Measured], runs: usize) -> String {
    let mut out = format!("# The messenger and its peers: {name}\n\n");
    let changed = if machine.modified { " with uncommitted changes" } else { "" };
    let _ = writeln!(
        out,
        "* Command: `cargo xtask bench peers`\n* Commit: {}{changed}",
        machine.commit
    );
    let _ = writeln!(out, "* Machine: {}", machine.words());
    let (before, after) = (machine.load_before, machine::load_average());
    let _ = writeln!(out, "* Load average before and after: {before:.1}, {after:.1}");
    let _ = writeln!(
        out,
        "* {runs} runs of each cell, systems in turn; tables show medians\n\n{ABOUT}"
    );
    targets(&mut out, measured);
    let _ =
        writeln!(out, "\n## All cells\n\nCPU is that of all threads of a process, per message.\n");
    let _ = writeln!(
        out,
        "| connections | in flight on each | bytes | system | messages/s | mean us | p99 us | CPU us: client | server | both | messages per CPU second, to the messenger |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|");
    for cell in cells(measured) {
        for system in System::ALL {
            let m = |of: Of| value(measured, cell, system, of);
            let base = value(measured, cell, System::Messenger, Measured::cpu_us);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {:.2}x |",
                cell.0,
                cell.1,
                machine::size_name(cell.2.into()),
                system.name(),
                m(|m| m.messages_per_s),
                m(|m| m.mean_us),
                m(|m| m.p99_us),
                m(|m| m.client_cpu_us),
                m(|m| m.server_cpu_us),
                m(Measured::cpu_us),
                base / m(Measured::cpu_us).max(1e-9)
            );
        }
    }
    out.push_str("\n![messages per CPU second](figures/fig-peers-cpu.svg)\n");
    out.push_str(NOT_SHOWN);
    out
}

const ABOUT: &str = "A client sends an 8-byte request that names a size, the server answers with so many bytes. `messenger`: one worker at each end, \
mapping `round-robin`; it checks a CRC32C of every frame. `grpc`: `tonic`, one thread at each end, one channel per \
connection, raw bytes as messages, no TLS, no checksum. `echo`: blocking sockets, one thread per connection at each end, \
one write per message, no checksum.\n";

const NOT_SHOWN: &str = "
## What this does not show

* TLS, authentication, real networks, or more threads than one at each end.
* An idle machine: other work shared the two cores, so that times and messages per second move; CPU per message moves less.
* gRPC with protobuf messages, which cost more than raw bytes; other gRPC implementations.
* Ceph, which was not run here.
";

fn targets(out: &mut String, measured: &[Measured]) {
    let cell = (1, 16, 4096);
    let cpu = |system| value(measured, cell, system, Measured::cpu_us);
    let (ours, grpc, echo) = (cpu(System::Messenger), cpu(System::Grpc), cpu(System::Echo));
    let yes = |met: bool| if met { "yes" } else { "**no**" };
    let _ = writeln!(
        out,
        "## Targets, 4K, one connection, 16 in flight\n\n| target | met | numbers |\n|---|---|---|"
    );
    let _ = writeln!(
        out,
        "| at least 3x the messages of gRPC per CPU second | {} | {grpc:.1} us to {ours:.1} us: {:.2}x |",
        yes(grpc >= 3.0 * ours),
        grpc / ours.max(1e-9)
    );
    let _ = writeln!(
        out,
        "| within 1.5x of the CPU of the bare echo | {} | {echo:.1} us to {ours:.1} us: {:.2}x |",
        yes(ours <= 1.5 * echo),
        ours / echo.max(1e-9)
    );
    let _ = writeln!(
        out,
        "| at most half of the CPU of Ceph's path per 4K read, 42 + 19 us, measured earlier on this kind of machine | {} | {ours:.1} us |",
        yes(ours <= 30.5)
    );
}
