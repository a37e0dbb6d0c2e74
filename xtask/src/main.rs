//! The developer's commands: `cargo xtask demo`, `cluster`, `check`, `test`, `sim`, `compare`,
//! `bench`.
//!
//! * [`demo`]: the system shown in plain words, from start to a dead and returned OSD.
//! * [`cluster`]: separate processes in one directory, for hands and for every test here.
//! * [`bench`]: comparisons that keep a report under `benches/runs`.
//! * [`check`]: what is soon known of a change.
//! * [`compare`]: other systems measured beside ours, with a report under `benches/runs`.
//! * [`docs`]: the documents as a book.
//! * [`soak`]: a user without rights and without measure, whom nobody may notice.
//! * [`testrun`]: everything that must pass, ending in `N passed, N failed`.
//!
//! * [`crash`]: faults at random under writers that remember what they were promised.
//!
//! Knows the product only by its binaries and their command lines, but for [`crash`], which reads
//! fragment files with the product's own code. Start reading at [`cluster::Cluster`].

mod bench;
mod check;
mod cluster;
mod compare;
mod crash;
mod demo;
mod docs;
mod error;
mod exec;
mod fuzz;
mod gluster;
mod mounts;
mod netns;
mod numbers;
mod process;
mod sim;
mod soak;
mod stamp;
mod testrun;
mod tree;
mod workspace;

use clap::{Parser, Subcommand};
use error::Outcome;
use exec::Interrupt;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The developer's commands of Trefoil")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Shows in about two minutes, in plain words, what the system does when a storage daemon dies
    Demo,
    /// Runs a cluster of separate processes on this machine
    #[command(subcommand)]
    Cluster(cluster::cli::ClusterTask),
    /// Formatting, lints, and the tests of the packages that changed: what is soon known of a
    /// change
    Check(check::CheckArgs),
    /// Formatting, lints, all tests, and programs of others on a real mount; ends in `N passed, N
    /// failed`
    Test(testrun::TestArgs),
    /// Feeds the decoders of bytes from outside with inputs that coverage leads to
    Fuzz(fuzz::FuzzArgs),
    /// Kills, stops, cuts off and damages a mounted cluster at random, and checks everything that
    /// it had promised
    Crash(crash::CrashArgs),
    /// Calls with extreme arguments by an unprivileged user on one mount, beside a program that
    /// must not notice
    Soak(soak::SoakArgs),
    /// Measures a mount with fio: throughput, latency and CPU of each operation
    Numbers(numbers::NumbersArgs),
    /// Measures Trefoil beside other systems: same machine, same minute, ratios, with a report
    /// under benches/runs
    Compare(compare::CompareArgs),
    /// Measures what a setting is worth: each of its values beside the defaults, with a report
    /// under benches/runs
    Sweep(compare::SweepArgs),
    /// Compares in one run, and keeps a report
    #[command(subcommand)]
    Bench(bench::BenchTask),
    /// Builds the documents as a book, in target/book; installs mdBook from crates.io, saying so
    Docs(docs::DocsArgs),
    /// Drives the write protocol through random faults in a simulator; `sim --help` says with what
    #[command(disable_help_flag = true)]
    Sim {
        /// Passed on to the simulator
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// One check of the mounted tests, in a process of its own so that it can be killed
    #[command(hide = true)]
    PosixCheck {
        /// Which
        name: String,
        /// An empty directory on the mount
        dir: PathBuf,
        /// Smaller sizes
        #[arg(long)]
        quick: bool,
    },
    /// Is a tree the same as its copy?
    #[command(hide = true)]
    SameTree {
        /// The original
        from: PathBuf,
        /// The copy
        copy: PathBuf,
        /// Bound of the tree
        #[arg(long)]
        files: u64,
        /// Bound of the tree
        #[arg(long)]
        bytes: u64,
    },
    /// Calls on many names in one directory, timed: the load of a cell of `compare`
    #[command(hide = true)]
    Load(compare::LoadArgs),
    /// Writer and verifier of stamped blocks, used under random kills
    #[command(subcommand, hide = true)]
    Stamp(stamp::StampTask),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Outcome {
    match task {
        Task::PosixCheck { name, dir, quick } => {
            return testrun::posix::run_one(&name, &dir, quick);
        }
        Task::Stamp(task) => return stamp::run(task),
        Task::Load(args) => return compare::load(&args),
        Task::SameTree { from, copy, files, bytes } => {
            return tree::Tree::list(&from, files, bytes)?.compare(&copy, || Ok(()));
        }
        _ => {}
    }
    let interrupt = Interrupt::install()?;
    match task {
        Task::Demo => demo::run(&interrupt),
        Task::Check(args) => check::run(&args, &interrupt),
        Task::Cluster(task) => cluster::cli::run(task, &interrupt),
        Task::Crash(args) => crash::run(&args, &interrupt),
        Task::Soak(args) => soak::run(&args, &interrupt),
        Task::Test(args) => testrun::run(&args, &interrupt),
        Task::Fuzz(args) => fuzz::run(&args, &interrupt),
        Task::Numbers(args) => numbers::run(&args, &interrupt),
        Task::Compare(args) => compare::run(&args, &interrupt),
        Task::Sweep(args) => compare::run_sweep(&args, &interrupt),
        Task::Bench(task) => bench::run(task, &interrupt),
        Task::Docs(args) => docs::run(&args, &interrupt),
        Task::Sim { args } => sim::run(&args, &interrupt),
        Task::PosixCheck { .. } | Task::Stamp(_) | Task::SameTree { .. } | Task::Load(_) => {
            unreachable!("handled above")
        }
    }
}
