//! The paper's figures, drawn from samples, side by side for all mappings.

use crate::machine::size_name;
use crate::runner::Sample;
use crate::stats::ratio;
use crate::table::Samples;
use crate::targets::{HEADLINE, LOCKS};
use plot::{Figure, Panel, Plot, Style, style};

/// Order of the legend in every figure, so that a mapping has one colour.
const ORDER: [&str; 7] = [
    "round-robin",
    "traffic-aware",
    "shared",
    "lcam",
    "handoff",
    "core-affine",
    crate::scenario::Variant::DAMPED,
];
const NOTE: &str = "Blocking service time: handlers sleep, 8 workers act as 8 cores; real sockets, epoll, locks and placement.";

/// A figure with its file name and a caption for the report.
pub(crate) struct Drawn {
    pub(crate) file: &'static str,
    pub(crate) caption: String,
    pub(crate) svg: String,
}

/// All figures that the samples have the cells for.
pub(crate) fn draw(samples: &Samples) -> Vec<Drawn> {
    let mut drawn = Vec::new();
    drawn.extend(per_worker(samples, LOCKS, "fig-02-12-bytes.svg", "MB handled", |w| w.mb));
    drawn.extend(per_worker(samples, LOCKS, "fig-02-12-busy.svg", "busy share (%)", |w| {
        w.busy * 100.0
    }));
    drawn.extend(per_worker(
        samples,
        HEADLINE,
        "fig-02-12-bytes-headline.svg",
        "MB handled",
        |w| w.mb,
    ));
    drawn.extend(lock_times(samples));
    drawn.extend(batches(samples));
    drawn.extend(by_block_size(samples, "fig-10-throughput.svg", "Figure 10: throughput", |s| {
        s.ops_per_s
    }));
    drawn.extend(by_block_size(samples, "fig-11-latency.svg", "Figure 11: mean latency", |s| {
        s.mean_us
    }));
    drawn.extend(lock_share(samples));
    drawn
}

/// The look of a mapping, the same in every figure.
pub(crate) fn look(mapping: &str) -> Style {
    style(ORDER.iter().position(|name| *name == mapping).unwrap_or(0), mapping)
}

fn ordered(mut mappings: Vec<String>) -> Vec<String> {
    mappings.sort_by_key(|mapping| ORDER.iter().position(|name| name == mapping));
    mappings
}

/// Figures 2 and 12: what each worker did in a cell, one panel for each mapping. The paper's are of
/// 4K random writes.
fn per_worker(
    samples: &Samples,
    (scenario, block): (&str, u64),
    file: &'static str,
    what: &str,
    of: fn(&crate::runner::WorkerSample) -> f64,
) -> Option<Drawn> {
    let mappings = ordered(samples.mappings(Some(scenario)));
    let typical: Vec<&Sample> =
        mappings.iter().filter_map(|name| samples.typical(scenario, block, name)).collect();
    let top = typical.iter().flat_map(|s| s.workers.iter().map(of)).fold(0.0, f64::max);
    let panels: Vec<Panel> = typical
        .iter()
        .map(|sample| Panel {
            title: sample.mapping.clone(),
            x_label: "worker".into(),
            y_label: what.into(),
            reference: None,
            y_max: Some(top),
            plot: Plot::Bars {
                categories: (0..sample.workers.len()).map(|index| index.to_string()).collect(),
                values: vec![sample.workers.iter().map(of).collect()],
            },
        })
        .collect();
    let caption = format!("Figures 2 and 12: {what} by worker, {scenario}, {}", size_name(block));
    figure(file, caption, vec![style(3, "")], 4, (250.0, 210.0), panels)
}

/// Figures 4 and 13: the lock time of each connection.
fn lock_times(samples: &Samples) -> Option<Drawn> {
    let (scenario, block) = LOCKS;
    let mappings = ordered(samples.mappings(Some(scenario)));
    let typical: Vec<&Sample> =
        mappings.iter().filter_map(|name| samples.typical(scenario, block, name)).collect();
    let of = |sample: &Sample| {
        sample.connections.iter().map(|c| c.lock_ms / sample.seconds).collect::<Vec<f64>>()
    };
    let top = typical.iter().flat_map(|sample| of(sample)).fold(0.0, f64::max);
    let panels: Vec<Panel> = typical
        .iter()
        .map(|sample| Panel {
            title: format!(
                "{} (largest: {:.0} ms/s)",
                sample.mapping,
                sample.lock_ms_max() / sample.seconds
            ),
            x_label: "connection".into(),
            y_label: "lock time (ms each second)".into(),
            reference: None,
            y_max: Some(top),
            plot: Plot::Bars {
                categories: (0..sample.connections.len()).map(|index| index.to_string()).collect(),
                values: vec![of(sample)],
            },
        })
        .collect();
    let caption =
        format!("Figures 4 and 13: lock time by connection, {scenario}, {}", size_name(block));
    figure("fig-04-13-lock-time.svg", caption, vec![style(3, "")], 3, (330.0, 220.0), panels)
}

/// Figure 5: how many events a worker takes at once, with `maxevents` at 5000 and at connections /
/// workers.
fn batches(samples: &Samples) -> Option<Drawn> {
    let (scenario, block) = LOCKS;
    let wide = format!("{scenario}/max-events-5000");
    let mut panels = Vec::new();
    for mapping in ordered(samples.mappings(Some(&wide))) {
        for (name, events) in [(wide.as_str(), "5000"), (scenario, "auto")] {
            let Some(sample) = samples.typical(name, block, &mapping) else { continue };
            panels.push(Panel {
                title: format!("{mapping}, max events {events}"),
                x_label: "look, every 20 ms".into(),
                y_label: "events per poll".into(),
                reference: None,
                y_max: None,
                plot: Plot::Lines { points: extremes(&sample.batches), logarithmic: false },
            });
        }
    }
    let caption =
        format!("Figure 5: events that workers fetch at once, {scenario}, {}", size_name(block));
    let styles = vec![
        style(2, "worker with the most"),
        style(3, "mean of workers"),
        style(0, "worker with the fewest"),
    ];
    figure("fig-05-events.svg", caption, styles, 2, (420.0, 200.0), panels)
}

/// Most, mean and fewest of all workers at each look.
fn extremes(batches: &[Vec<f64>]) -> Vec<Vec<(f64, f64)>> {
    let looks = batches.iter().map(Vec::len).max().unwrap_or(0);
    let mut lines = vec![Vec::new(); 3];
    for look in 0..looks {
        let now: Vec<f64> = batches.iter().filter_map(|series| series.get(look).copied()).collect();
        let most = now.iter().copied().fold(0.0, f64::max);
        let fewest = now.iter().copied().fold(f64::MAX, f64::min);
        let mean = now.iter().sum::<f64>() / now.len().max(1) as f64;
        for (line, value) in lines.iter_mut().zip([most, mean, fewest]) {
            line.push((look as f64, value));
        }
    }
    lines
}

/// Figures 10 and 11: a metric by block size and pattern, normalised to round-robin.
fn by_block_size(
    samples: &Samples,
    file: &'static str,
    title: &str,
    of: fn(&Sample) -> f64,
) -> Option<Drawn> {
    let mut panels = Vec::new();
    let mut names = Vec::new();
    for pattern in ["randwrite", "randread", "mix"] {
        let scenario = format!("blocking/paper/skewed/{pattern}");
        let mut blocks: Vec<u64> = samples
            .cells()
            .iter()
            .filter(|cell| cell.scenario == scenario)
            .map(|cell| cell.block_bytes)
            .collect();
        blocks.sort_unstable();
        if blocks.is_empty() {
            continue;
        }
        names = ordered(samples.mappings(Some(&scenario)));
        let value = |mapping: &str, block: u64| {
            let base = samples.median(&scenario, block, "round-robin", of).unwrap_or(0.0);
            ratio(samples.median(&scenario, block, mapping, of).unwrap_or(0.0), base)
        };
        panels.push(Panel {
            title: pattern.into(),
            x_label: "block size".into(),
            y_label: "relative to round-robin".into(),
            reference: Some(1.0),
            y_max: None,
            plot: Plot::Bars {
                categories: blocks.iter().map(|block| size_name(*block)).collect(),
                values: names
                    .iter()
                    .map(|name| blocks.iter().map(|block| value(name, *block)).collect())
                    .collect(),
            },
        });
    }
    let styles = names.iter().map(|name| look(name)).collect();
    let caption =
        format!("{title} by block size, skewed traffic, closed loop; medians, round-robin is 1");
    figure(file, caption, styles, 1, (760.0, 230.0), panels)
}

/// How the headline depends on the share of the service time that is under the lock.
fn lock_share(samples: &Samples) -> Option<Drawn> {
    let block = HEADLINE.1;
    let services = ["paper", "locked-half", "locked-all"];
    let name = |service: &str| format!("blocking/{service}/skewed/randread");
    if samples.mappings(Some(&name("locked-all"))).is_empty() {
        return None;
    }
    let names = ordered(samples.mappings(Some(&name("locked-all"))));
    let value = |mapping: &str, service: &str| {
        let of = |mapping: &str| {
            samples.median(&name(service), block, mapping, |s| s.ops_per_s).unwrap_or(0.0)
        };
        ratio(of(mapping), of("round-robin"))
    };
    let panel = Panel {
        title: "throughput".into(),
        x_label: "reply bytes: after the lock, half under it, all under it".into(),
        y_label: "relative to round-robin".into(),
        reference: Some(1.0),
        y_max: None,
        plot: Plot::Bars {
            categories: services.map(String::from).to_vec(),
            values: names
                .iter()
                .map(|name| services.map(|service| value(name, service)).to_vec())
                .collect(),
        },
    };
    let caption =
        format!("What the lock's share of the work changes, randread {}, skewed", size_name(block));
    figure(
        "fig-lock-share.svg",
        caption,
        names.iter().map(|name| look(name)).collect(),
        1,
        (760.0, 250.0),
        vec![panel],
    )
}

fn figure(
    file: &'static str,
    caption: String,
    styles: Vec<Style>,
    columns: usize,
    panel: (f64, f64),
    panels: Vec<Panel>,
) -> Option<Drawn> {
    if panels.is_empty() {
        return None;
    }
    let figure =
        Figure { title: caption.clone(), note: NOTE.into(), styles, columns, panel, panels };
    Some(Drawn { file, caption, svg: figure.draw() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::made_up;

    #[test]
    fn figures_are_drawn_for_what_was_measured() {
        assert!(draw(&Samples::default()).is_empty());
        let mut all = Vec::new();
        for mapping in ["round-robin", "lcam"] {
            for pattern in ["randread", "randwrite"] {
                for block in [4096, 65536] {
                    all.push(made_up(
                        &format!("blocking/paper/skewed/{pattern}"),
                        mapping,
                        block,
                        0,
                        100.0,
                    ));
                }
            }
            all.push(made_up(
                "blocking/paper/skewed/randwrite/max-events-5000",
                mapping,
                4096,
                0,
                100.0,
            ));
            all.push(made_up("blocking/locked-all/skewed/randread", mapping, 65536, 0, 100.0));
        }
        let drawn = draw(&Samples { all });
        let files: Vec<&str> = drawn.iter().map(|figure| figure.file).collect();
        let expected = [
            "fig-02-12-bytes.svg",
            "fig-02-12-busy.svg",
            "fig-02-12-bytes-headline.svg",
            "fig-04-13-lock-time.svg",
            "fig-05-events.svg",
            "fig-10-throughput.svg",
            "fig-11-latency.svg",
            "fig-lock-share.svg",
        ];
        assert_eq!(files, expected);
        for figure in drawn {
            assert!(!figure.svg.contains("NaN") && figure.svg.contains("Blocking service time"));
        }
    }
}
