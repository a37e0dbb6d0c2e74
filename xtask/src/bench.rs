//! `cargo xtask bench`: the benches, each in the build it needs.

use crate::error::Outcome;
use crate::exec::{self, Interrupt};
use crate::workspace;
use clap::Subcommand;
use std::process::Command;

/// Which.
#[derive(Subcommand)]
pub enum BenchTask {
    /// Mappings of connections to workers, compared in one run, with a report under benches/runs
    Contention {
        /// --quick, --scenario FILE, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The messenger beside gRPC and a bare blocking echo, with a report under benches/runs; builds a workspace of its own
    Peers {
        /// --quick, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// 4 KiB random writes with the daemon's path cut, for each mapping (the paper's Figure 15), with a report
    Datapath {
        /// --quick, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// What telemetry costs: locks, the messenger and a daemon, with it on and off in turns, with a report
    Overhead {
        /// --quick, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// GlusterFS's cluster lock and per-core file allocation (the thesis's Figures 4.1 to 4.3), with a report
    Consistency {
        /// --quick, --consistency MODE,.., --only PART, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The criterion benches of single parts: coding, messenger
    Criterion {
        /// Passed on to cargo bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

/// Builds and runs a bench.
///
/// # Errors
/// When it cannot be built, fails, or on Ctrl-C.
pub fn run(task: BenchTask, interrupt: &Interrupt) -> Outcome {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    match task {
        BenchTask::Contention { args } => {
            command.args(["bench", "-p", "benches", "--bench", "contention", "--"]).args(args);
        }
        BenchTask::Peers { args } => {
            command.args(["run", "--release", "--manifest-path", "benches/peers/Cargo.toml", "--"]).args(args);
        }
        BenchTask::Datapath { args } => {
            let daemon = workspace::build_release(interrupt)?.join("osd-daemon");
            command.args(["bench", "-p", "benches", "--bench", "datapath", "--", "--daemon"]).arg(daemon).args(args);
        }
        BenchTask::Overhead { args } => {
            let daemon = workspace::build_release(interrupt)?.join("osd-daemon");
            command.args(["bench", "-p", "benches", "--bench", "overhead", "--", "--daemon"]).arg(daemon).args(args);
        }
        BenchTask::Consistency { args } => {
            command.args(["bench", "-p", "benches", "--bench", "consistency", "--"]).args(args);
        }
        BenchTask::Criterion { args } => {
            command.args(["bench", "-p", "benches", "--bench", "coding", "--bench", "messenger"]).args(args);
        }
    }
    exec::run_visible(&mut command, exec::NO_DEADLINE, interrupt)
}
