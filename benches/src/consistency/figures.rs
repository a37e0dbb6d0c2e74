//! Figures 4.1 to 4.3 of the thesis, and where the gain comes from.

use super::plan::{BLOCKS, CLIENTS, Cell, Consistency, Files, PATTERNS};
use super::results::{Of, Results};
use super::run::Sample;
use super::targets::figure_cell;
use crate::figures::Drawn;
use crate::machine::size_name;
use crate::scenario::Pattern;
use plot::{Figure, Panel, Plot, Style, style};

const CPU_NOTE: &str = "Real CPU: three servers and all clients share the cores of one machine; 2+1, memory, loopback.";
const BLOCKING_NOTE: &str = "Blocking service time: servers sleep for each message and KiB, so that 8 threads act as 8 cores each.";

/// All figures that the results have the cells for.
pub(super) fn draw(results: &Results) -> Vec<Drawn> {
    let mut drawn = Vec::new();
    let by_block = [
        ("fig-4-1-randread.svg", "Figure 4.1: random reads by block size", Pattern::Randread),
        ("fig-4-2-randwrite.svg", "Figure 4.2: random writes by block size", Pattern::Randwrite),
    ];
    for (file, title, pattern) in by_block {
        drawn.extend(block_sizes(results, file, title, pattern));
    }
    let of = |files, is_blocking, block_bytes| {
        move |pattern, clients| Cell {
            is_blocking,
            files,
            ..figure_cell(pattern, block_bytes, clients)
        }
    };
    let many = "Figure 4.3: the total by clients, each with files of its own, 4K";
    drawn.extend(totals(
        results,
        "fig-4-3-clients.svg",
        many,
        CPU_NOTE,
        of(Files::Many, false, BLOCKS[0]),
    ));
    let few = "The same with two files that all clients share, 4K";
    drawn.extend(totals(
        results,
        "fig-few-files.svg",
        few,
        CPU_NOTE,
        of(Files::Few, false, BLOCKS[0]),
    ));
    let blocking = "Blocking service time: the total by clients, files of their own, 64K";
    drawn.extend(totals(
        results,
        "fig-blocking.svg",
        blocking,
        BLOCKING_NOTE,
        of(Files::Many, true, BLOCKS[2]),
    ));
    drawn.extend(where_from(results));
    drawn
}

/// The look of each mode, the same in every figure.
fn looks(modes: &[Consistency]) -> Vec<Style> {
    let look = |mode: &Consistency| {
        let at = Consistency::ALL.iter().position(|other| other == mode).unwrap_or(0);
        style(at, mode.name())
    };
    modes.iter().map(look).collect()
}

fn value(results: &Results, cell: &Cell, mode: Consistency, of: Of) -> f64 {
    results.median(cell, mode, of).unwrap_or(0.0)
}

fn is_measured(results: &Results, cell: &Cell) -> bool {
    results.samples.iter().any(|sample| sample.cell == *cell)
}

/// Throughput by block size, one panel for each number of clients that all block sizes were
/// measured with.
fn block_sizes(
    results: &Results,
    file: &'static str,
    title: &str,
    pattern: Pattern,
) -> Option<Drawn> {
    let modes = results.modes();
    let mut panels = Vec::new();
    for clients in CLIENTS {
        let blocks: Vec<u64> = BLOCKS
            .into_iter()
            .filter(|block| is_measured(results, &figure_cell(pattern, *block, clients)))
            .collect();
        if blocks.is_empty() || (blocks.len() < BLOCKS.len() && !panels.is_empty()) {
            continue;
        }
        let of = |mode: &Consistency| {
            let mb = |block: &u64| {
                value(results, &figure_cell(pattern, *block, clients), *mode, Sample::mb_per_s)
            };
            blocks.iter().map(mb).collect()
        };
        panels.push(Panel {
            title: if clients == 1 { "1 client".into() } else { format!("{clients} clients") },
            x_label: "block size".into(),
            y_label: "MB/s".into(),
            reference: None,
            y_max: None,
            plot: Plot::Bars {
                categories: blocks.iter().map(|block| size_name(*block)).collect(),
                values: modes.iter().map(of).collect(),
            },
        });
    }
    figure(
        file,
        format!("{title}, files of their own; medians"),
        CPU_NOTE,
        looks(&modes),
        2,
        panels,
    )
}

/// Throughput and CPU of the threads that serve sockets, by number of clients.
fn totals(
    results: &Results,
    file: &'static str,
    title: &str,
    note: &str,
    cell: impl Fn(Pattern, usize) -> Cell,
) -> Option<Drawn> {
    let modes = results.modes();
    let mut panels = Vec::new();
    let metrics: [(&str, Of); 2] =
        [("MB/s", Sample::mb_per_s), ("CPU of socket threads (%)", |s| s.socket_cpu_share * 100.0)];
    for pattern in PATTERNS {
        let clients: Vec<usize> = CLIENTS
            .into_iter()
            .filter(|clients| is_measured(results, &cell(pattern, *clients)))
            .collect();
        if clients.is_empty() {
            continue;
        }
        for (y_label, of) in metrics {
            let line = |mode: &Consistency| {
                let point = |n: &usize| (*n as f64, value(results, &cell(pattern, *n), *mode, of));
                clients.iter().map(point).collect()
            };
            panels.push(Panel {
                title: format!("{}: {y_label}", pattern.name()),
                x_label: "clients".into(),
                y_label: y_label.into(),
                reference: None,
                y_max: None,
                plot: Plot::Lines { points: modes.iter().map(line).collect(), logarithmic: true },
            });
        }
    }
    let caption = format!("{title}; CPU of one server; medians");
    figure(file, caption, note, looks(&modes), 2, panels)
}

/// Round trips, messages, waits and CPU time of an operation.
fn where_from(results: &Results) -> Option<Drawn> {
    let modes = results.modes();
    let cells: Vec<(String, Cell)> = PATTERNS
        .into_iter()
        .flat_map(|pattern| [BLOCKS[0], BLOCKS[2]].map(|block| (pattern, block)))
        .map(|(pattern, block)| {
            let name =
                format!("{} {}", pattern.name().trim_start_matches("rand"), size_name(block));
            (name, figure_cell(pattern, block, 1))
        })
        .filter(|(_, cell)| is_measured(results, cell))
        .collect();
    if cells.is_empty() {
        return None;
    }
    let metrics: [(&str, Of); 4] = [
        ("round trips per operation", |s| s.round_trips),
        ("messages per operation", |s| s.messages),
        ("CPU of servers, us per operation", |s| s.server_cpu_us),
        ("CPU of clients, us per operation", |s| s.client_cpu_us),
    ];
    let panel = |(name, of): (&str, Of)| Panel {
        title: name.into(),
        x_label: String::new(),
        y_label: String::new(),
        reference: None,
        y_max: None,
        plot: Plot::Bars {
            categories: cells.iter().map(|(name, _)| name.clone()).collect(),
            values: modes
                .iter()
                .map(|mode| cells.iter().map(|(_, cell)| value(results, cell, *mode, of)).collect())
                .collect(),
        },
    };
    let caption =
        "Where the gain comes from: one operation, one client with files of its own; medians";
    figure(
        "fig-where-from.svg",
        caption.into(),
        CPU_NOTE,
        looks(&modes),
        2,
        metrics.map(panel).to_vec(),
    )
}

fn figure(
    file: &'static str,
    caption: String,
    note: &str,
    styles: Vec<Style>,
    columns: usize,
    panels: Vec<Panel>,
) -> Option<Drawn> {
    if panels.is_empty() {
        return None;
    }
    let figure = Figure {
        title: caption.clone(),
        note: note.into(),
        styles,
        columns,
        panel: (430.0, 240.0),
        panels,
    };
    Some(Drawn { file, caption, svg: figure.draw() })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::made_up;
    use super::*;

    #[test]
    fn figures_are_drawn_for_what_was_measured() {
        assert!(draw(&Results::default()).is_empty());
        let mut samples = Vec::new();
        for mode in Consistency::MEASURED {
            for pattern in PATTERNS {
                for block in BLOCKS {
                    samples.push(made_up(figure_cell(pattern, block, 1), mode, 100));
                }
            }
        }
        let drawn = draw(&Results::new(samples));
        let files: Vec<&str> = drawn.iter().map(|figure| figure.file).collect();
        let expected = [
            "fig-4-1-randread.svg",
            "fig-4-2-randwrite.svg",
            "fig-4-3-clients.svg",
            "fig-where-from.svg",
        ];
        assert_eq!(files, expected);
        for figure in drawn {
            assert!(!figure.svg.contains("NaN") && figure.svg.contains("per-core"));
        }
    }
}
