//! Text, tables and figures of the study, from its results. Nothing is measured here.

use super::results::{Results, Spread};
use super::table::{AGAIN, BASE, CELLS, Cell, Config, FINDINGS, Finding, Unit};
use super::{Plan, Scale};
use crate::compare::origin::Origin;
use plot::{Figure, Panel, Plot, style};
use std::fmt::Write;

/// Width and height of a panel: 26 bars with their letters.
const PANEL: (f64, f64) = (560.0, 250.0);

/// Files of figures, and what is in them: one of each block size, as four figures of the paper.
pub(super) fn figures(plan: &Plan, results: &Results) -> Vec<(String, String)> {
    let blocks = ["4k", "128k", "1m", "32m"];
    let figure = |&block: &&str| {
        let cells: Vec<&Cell> = plan.cells.iter().filter(|cell| cell.block == block).collect();
        let panels: Vec<Panel> = cells.iter().filter_map(|c| panel(plan, c, results)).collect();
        let figure = Figure {
            title: format!("Volumes, blocks of {block}: one parameter changed at a time"),
            note: format!("{}; the line: A, Ceph's defaults", scale_words(&plan.scale)),
            styles: vec![style(3, "mean of all volumes and runs")],
            columns: 2,
            panel: PANEL,
            panels,
        };
        (!figure.panels.is_empty()).then(|| (format!("blocks-{block}.svg"), figure.draw()))
    };
    blocks.iter().filter_map(figure).collect()
}

fn panel(plan: &Plan, cell: &Cell, results: &Results) -> Option<Panel> {
    let measured = plan.configs.iter().filter_map(|config| {
        let spread = results.spread(config.name, cell.name)?;
        Some((config.name.to_owned(), spread.mean))
    });
    let (categories, values): (Vec<String>, Vec<f64>) = measured.unzip();
    (!categories.is_empty()).then(|| Panel {
        title: format!("{} (Figure {} of the paper)", cell.name, cell.figure),
        x_label: "configuration".to_owned(),
        y_label: cell.unit.words().to_owned(),
        reference: results.spread(BASE, cell.name).map(|spread| spread.mean),
        y_max: None,
        plot: Plot::Bars { categories, values: vec![values] },
    })
}

fn scale_words(scale: &Scale) -> String {
    format!(
        "{} volumes, {} MiB each, one request in flight, {} s behind {} s of ramp",
        scale.volumes, scale.size_mib, scale.seconds, scale.ramp
    )
}

/// `report.md`.
pub(super) fn text(plan: &Plan, origin: &Origin, results: &Results) -> String {
    let mut out = String::from("# One parameter at a time, on volumes of virtual machines\n\n");
    let _ = writeln!(
        out,
        "The study of \"Ceph single parameter\" (Table 5.2, Figures 5.1 to 5.16) on Trefoil.\n\n\
         * Command: `{}`\n* Commit: {}; begun {} UTC; load average then {:.1}\n* Machine: {}; data on {}; {}\n\
         * Three network namespaces as hosts, a storage daemon and a third of the volumes' NBD servers in each; \
         a pool of two copies (1+1), as in the paper; {}; {} runs.\n* Clusters of one configuration after another: \
         A was measured again at the end (A2); what differs between the two is noise.\n\
         * The paper: 12 guests of 4 cores, 100 GB volumes of which 10 GB are used, 300 s behind 15 s of ramp, \
         9 runs, 12 hard disks on three hosts.\n",
        origin.command,
        origin.commit,
        origin.begun,
        origin.load_before,
        origin.machine,
        origin.disk,
        origin.fio,
        scale_words(&plan.scale),
        plan.runs
    );
    findings(&mut out, results);
    for cell in &plan.cells {
        cell_table(&mut out, plan, cell, results);
    }
    out.push_str(LEGEND);
    out
}

const LEGEND: &str = "\n`of A` is the quotient of the means. `runs` are the least and the greatest mean over the \
volumes of one run. `apart`: no run of it lies between those of A and A2. `slowest` is how far the slowest volume \
stayed behind the mean of its run, at most.\n";

fn findings(out: &mut String, results: &Results) {
    out.push_str("\n## What the paper found, and what was found here\n\n");
    out.push_str("| figure | cell | quotient | paper | here | A2 of A | apart from A |\n");
    out.push_str("|---|---|---|---:|---:|---:|---|\n");
    for finding in &FINDINGS {
        let Finding { cell, config, beside, ratio } = finding;
        let spread = |name| results.spread(name, cell);
        let (Some(found), Some(with)) = (spread(config), spread(beside)) else { continue };
        let noise = noise(results, cell);
        let figure = CELLS.iter().find(|c| c.name == *cell).map_or("", |c| c.figure);
        let _ = writeln!(
            out,
            "| {figure} | {cell} | {config} / {beside} | {ratio:.2} | {:.2} | {} | {} |",
            found.mean / with.mean,
            noise.map_or_else(|| "-".to_owned(), |noise| format!("{noise:.2}")),
            apart(results, cell, &found)
        );
    }
}

/// A once more, of A.
fn noise(results: &Results, cell: &str) -> Option<f64> {
    Some(results.spread(AGAIN, cell)?.mean / results.spread(BASE, cell)?.mean)
}

/// Whether a configuration's runs lie apart from those of A, in a word.
fn apart(results: &Results, cell: &str, found: &Spread) -> &'static str {
    let Some(base) = results.spread(BASE, cell) else { return "-" };
    let base = results.spread(AGAIN, cell).map_or(base, |again| base.with(&again));
    if found.is_apart(&base) { "yes" } else { "no" }
}

fn cell_table(out: &mut String, plan: &Plan, cell: &Cell, results: &Results) {
    let Some(base) = results.spread(BASE, cell.name) else { return };
    let _ = writeln!(out, "\n## {} (Figure {})\n", cell.name, cell.figure);
    let unit = cell.unit.words();
    let _ = writeln!(out, "| | what differs | {unit} | of A | runs | apart | slowest |");
    out.push_str("|---|---|---:|---:|---:|---|---:|\n");
    for config in &plan.configs {
        if let Some(spread) = results.spread(config.name, cell.name) {
            row(out, config, cell, &spread, &base, apart(results, cell.name, &spread));
        }
    }
}

fn row(out: &mut String, config: &Config, cell: &Cell, found: &Spread, base: &Spread, apart: &str) {
    let digits = match cell.unit {
        Unit::Iops => 0,
        Unit::MegabytesPerSecond => 1,
    };
    let _ = writeln!(
        out,
        "| {} | {} | {:.digits$} | {:.2} | {:.digits$} - {:.digits$} | {apart} | {:.0} % |",
        config.name,
        config.words(),
        found.mean,
        found.mean / base.mean,
        found.least,
        found.greatest,
        found.behind * 100.0
    );
}
