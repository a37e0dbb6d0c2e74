//! `cargo bench -p benches --bench consistency`: what it costs to keep shards alike, GlusterFS's
//! way and per core.
//!
//! After "Per-core file allocation method for eliminating the overhead of maintaining consistency
//! between nodes in a distributed file system" (Woohyung Han, Seoul National University, 2017),
//! "the thesis" here; it draws its Figures 4.1 to 4.3. Contract: three servers and up to eight
//! clients in this process, over real sockets, with the real codec (2+1), layout, fragment store
//! and lock protocol (`ec_store::cluster_lock`). Modes take turns within each round of a cell.
//! Nothing here asserts a time.
//!
//! Start reading at `plan` for what is measured, `run` for how, `node` for what a server is in each
//! mode.

mod assignment;
mod client;
mod figures;
mod node;
mod place;
mod plan;
mod queue;
mod report;
mod results;
mod run;
mod targets;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::error::{BenchError, exit_code};
use crate::machine::{self, Machine};
use crate::report::Origin;
use crate::runner;
use plan::{Cell, Consistency, Plan};
use report::Material;
use results::Results;
use run::{Order, Setting};

#[derive(Parser)]
#[command(
    name = "consistency",
    about = "GlusterFS's cluster lock and per-core file allocation, compared in one run"
)]
struct Args {
    /// One short run of each of a few cells
    #[arg(long)]
    quick: bool,
    /// Ways to keep operations in order; the first is what the others are compared with
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Consistency::MEASURED)]
    consistency: Vec<Consistency>,
    /// Threads of a server that take from its I/O queue; GlusterFS's performance.io-thread-count,
    /// and its default
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    io_threads: u16,
    /// Only cells whose name has this in it
    #[arg(long)]
    only: Option<String>,
    /// Name of the run
    #[arg(long, default_value = "consistency")]
    name: String,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Writes the report of an earlier run again, from its raw data
    #[arg(long, conflicts_with_all = ["out", "name", "quick", "only"])]
    again: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Runs the bench with the arguments of the process.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let command: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    exit_code(run(&args, format!("cargo xtask bench consistency {}", command.join(" ")).trim()))
}

fn run(args: &Args, command: &str) -> Result<PathBuf, BenchError> {
    if let Some(dir) = &args.again {
        report::write(dir, &report::read(dir)?)?;
        return Ok(dir.clone());
    }
    let (machine, begin) = (Machine::look(), Instant::now());
    let mut plan = if args.quick { Plan::quick() } else { Plan::whole() };
    plan.cells.retain(|cell| args.only.as_ref().is_none_or(|part| cell.words().contains(part)));
    if plan.cells.is_empty() || args.consistency.is_empty() {
        return Err(BenchError::Scenario(
            "no cell has that in its name, or no mode is left".into(),
        ));
    }
    let setting = Setting { plan, io_threads: args.io_threads.into(), data: runner::data() };
    let order = check_order(&setting)?;
    let results = measure(&setting, &args.consistency)?;
    let assignment = assignment::compare();
    let origin = Origin {
        name: args.name.clone(),
        command: command.to_owned(),
        machine,
        load_after: machine::load_average(),
        seconds: begin.elapsed().as_secs_f64(),
    };
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = args.out.clone().unwrap_or_else(|| machine::free_dir(&home.join("runs"), &args.name));
    report::write(&dir, &Material { origin, setup: setting.setup(), results, order, assignment })?;
    Ok(dir)
}

fn check_order(setting: &Setting) -> Result<Vec<Order>, BenchError> {
    let mut all = Vec::new();
    for consistency in Consistency::ALL {
        for clients in [1, 2] {
            let order = run::check_order(consistency, clients, setting)?;
            println!(
                "order: {:18} {clients} clients: {} of {} torn",
                consistency.name(),
                order.torn,
                order.looks
            );
            all.push(order);
        }
    }
    Ok(all)
}

/// All cells; within each round of a cell the modes take turns, so that what else the machine does
/// falls on all of them.
fn measure(setting: &Setting, modes: &[Consistency]) -> Result<Results, BenchError> {
    let total = setting.plan.cells.len() * setting.plan.rounds * modes.len();
    let mut samples = Vec::new();
    for cell in &setting.plan.cells {
        for round in 0..setting.plan.rounds {
            for &consistency in modes {
                let sample = run::run(cell, consistency, round, setting)?;
                progress(cell, &sample, samples.len() + 1, total);
                samples.push(sample);
            }
        }
    }
    Ok(Results::new(samples))
}

fn progress(cell: &Cell, sample: &run::Sample, number: usize, total: usize) {
    println!(
        "{number:4}/{total} {:42} {:18} {:8.0} ops/s {:8.0} us",
        cell.words(),
        sample.consistency.name(),
        sample.ops_per_s(),
        sample.mean_us
    );
}
