//! `cargo bench -p benches --bench contention`: every mapping over real sockets, in one run, with a
//! report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::error::{BenchError, exit_code};
use crate::machine::{self, Machine};
use crate::model;
use crate::report::{self, Material, Origin};
use crate::runner;
use crate::scenario::{Cell, Scenario};
use crate::table::Samples;

#[derive(Parser)]
#[command(name = "contention", about = "Mappings of connections to workers, compared in one run")]
struct Args {
    /// Scenario file; lcam-paper.toml unless another is named
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// The smoke scenario: a few seconds, complete outputs, meaningless numbers
    #[arg(long, conflicts_with = "scenario")]
    quick: bool,
    /// Name of the run; the scenario's unless given
    #[arg(long)]
    name: Option<String>,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Writes the report of an earlier run again, from its raw data and the scenario
    #[arg(long, conflicts_with_all = ["out", "name"])]
    again: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Runs the bench with the arguments of the process.
pub fn main() -> ExitCode {
    let args = Args::parse();
    exit_code(run(&args, &command(std::env::args().skip(1))))
}

/// The command for a report, without where it was written.
fn command(args: impl Iterator<Item = String>) -> String {
    let mut words = vec!["cargo xtask bench contention".to_owned()];
    let mut args = args.filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        if arg == "--out" {
            args.next();
        } else {
            words.push(arg);
        }
    }
    words.join(" ")
}

fn run(args: &Args, command: &str) -> Result<PathBuf, BenchError> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = match &args.scenario {
        Some(file) => file.clone(),
        None => {
            home.join("scenarios").join(if args.quick { "smoke.toml" } else { "lcam-paper.toml" })
        }
    };
    let scenario = Scenario::load(&file)?;
    if let Some(dir) = &args.again {
        let (origin, mut samples) = report::read(dir)?;
        samples.sort_as(&scenario.cells()?);
        write(dir, &origin, &scenario, &samples)?;
        return Ok(dir.clone());
    }
    let name = args.name.clone().unwrap_or_else(|| scenario.name.clone());
    let dir = args.out.clone().unwrap_or_else(|| machine::free_dir(&home.join("runs"), &name));
    let (machine, begin) = (Machine::look(), Instant::now());
    let samples = measure(&scenario)?;
    let origin = Origin {
        name,
        command: command.to_owned(),
        machine,
        load_after: machine::load_average(),
        seconds: begin.elapsed().as_secs_f64(),
    };
    write(&dir, &origin, &scenario, &samples)?;
    Ok(dir)
}

fn write(
    dir: &Path,
    origin: &Origin,
    scenario: &Scenario,
    samples: &Samples,
) -> Result<(), BenchError> {
    println!("model: computing");
    let model = Some(model::chapter(scenario, samples)?);
    report::write(dir, &Material { origin, scenario, samples, model })
}

/// All cells; within each run of a cell the mappings take turns, so that what else the machine does
/// falls on all of them.
fn measure(scenario: &Scenario) -> Result<Samples, BenchError> {
    let cells = scenario.cells()?;
    let data = runner::data();
    let total: usize = cells.iter().map(|cell| cell.variants.len() * scenario.runs).sum();
    let mut samples = Samples::default();
    for cell in &cells {
        for run in 0..scenario.runs {
            for variant in &cell.variants {
                let sample = runner::run(scenario, cell, *variant, run, &data)?;
                samples.all.push(sample);
                progress(cell, &samples, total);
            }
        }
    }
    Ok(samples)
}

fn progress(cell: &Cell, samples: &Samples, total: usize) {
    let Some(sample) = samples.all.last() else { return };
    println!(
        "{:4}/{total} {} {} {:13} {:8.0} ops/s {:9.2} ms",
        samples.all.len(),
        cell.scenario(),
        machine::size_name(cell.block_bytes),
        sample.mapping,
        sample.ops_per_s,
        sample.mean_us / 1e3
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_does_not_say_where_it_lies() {
        let args =
            ["--quick", "--out", "/somewhere/run", "--bench", "--name", "a"].map(String::from);
        assert_eq!(command(args.into_iter()), "cargo xtask bench contention --quick --name a");
    }
}
