//! `cargo xtask bench`: the benches, each in the build it needs.

use crate::compare::free_dir;
use crate::error::{Context, Outcome};
use crate::exec::{self, Interrupt};
use crate::workspace;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which.
#[derive(Subcommand)]
pub enum BenchTask {
    /// All figures of the LCAM paper's evaluation for all mappings: contention and datapath, on one
    /// page
    Figures(FiguresArgs),
    /// Mappings of connections to workers, compared in one run, with a report under benches/runs
    Contention {
        /// --quick, --scenario FILE, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The messenger beside gRPC and a bare blocking echo, with a report under benches/runs; builds
    /// a workspace of its own
    Peers {
        /// --quick, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// 4 KiB random writes with the daemon's path cut, for each mapping (the paper's Figure 15),
    /// with a report
    Datapath {
        /// --quick, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// What telemetry costs: locks, the messenger and a daemon, with it on and off in turns, with a
    /// report
    Overhead {
        /// --quick, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Traffic classes off and on in turns: queues, and a heal under a client's load, with a report
    Classes {
        /// --quick, --no-heal, --rounds N, --name NAME, --out DIR; --help for more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// GlusterFS's cluster lock and per-core file allocation (the thesis's Figures 4.1 to 4.3),
    /// with a report
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

/// Settings of [`BenchTask::Figures`].
#[derive(Args)]
pub struct FiguresArgs {
    /// Seconds, complete outputs, meaningless numbers
    #[arg(long)]
    quick: bool,
    /// Name of the run
    #[arg(long, default_value = "lcam-figures")]
    name: String,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What the paper shows in which figure, the bench that draws it, and the files.
const FIGURES: [(&str, &str, &[&str]); 8] = [
    (
        "Figures 2 and 12: what each worker did",
        "contention",
        &["fig-02-12-bytes.svg", "fig-02-12-busy.svg"],
    ),
    ("The same with 64K random reads", "contention", &["fig-02-12-bytes-headline.svg"]),
    ("Figures 4 and 13: lock time of each connection", "contention", &["fig-04-13-lock-time.svg"]),
    ("Figure 5: events that a worker takes at once", "contention", &["fig-05-events.svg"]),
    ("Figure 10: throughput by block size", "contention", &["fig-10-throughput.svg"]),
    ("Figure 11: latency by block size", "contention", &["fig-11-latency.svg"]),
    ("Figure 15: the data path cut", "datapath", &["fig-15-datapath.svg"]),
    (
        "Beyond the paper: share of the lock, more workers and connections",
        "contention",
        &["fig-lock-share.svg", "fig-model.svg"],
    ),
];

/// Builds and runs a bench.
///
/// # Errors
/// When it cannot be built, fails, or on Ctrl-C.
pub fn run(task: BenchTask, interrupt: &Interrupt) -> Outcome {
    let mut command = match task {
        BenchTask::Figures(args) => return figures(&args, interrupt),
        BenchTask::Contention { args } => with(bench("contention"), args),
        BenchTask::Datapath { args } => with(bench_with_daemon("datapath", interrupt)?, args),
        BenchTask::Overhead { args } => with(bench_with_daemon("overhead", interrupt)?, args),
        BenchTask::Classes { args } => with(bench_with_daemon("classes", interrupt)?, args),
        BenchTask::Consistency { args } => with(bench("consistency"), args),
        BenchTask::Peers { args } => {
            let all = ["run", "--release", "--manifest-path", "benches/peers/Cargo.toml", "--"]
                .map(String::from);
            with(cargo(), all.into_iter().chain(args).collect())
        }
        BenchTask::Criterion { args } => {
            let all = ["bench", "-p", "benches", "--bench", "coding", "--bench", "messenger"]
                .map(String::from);
            with(cargo(), all.into_iter().chain(args).collect())
        }
    };
    exec::run_visible(&mut command, exec::NO_DEADLINE, interrupt)
}

fn cargo() -> Command {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    command
}

fn with(mut command: Command, args: Vec<String>) -> Command {
    command.args(args);
    command
}

/// A bench of the workspace; its own arguments come next.
fn bench(name: &str) -> Command {
    let mut command = cargo();
    command.args(["bench", "-p", "benches", "--bench", name, "--"]);
    command
}

/// A bench that starts daemons, which are built first.
///
/// # Errors
/// When the build fails, or on Ctrl-C.
fn bench_with_daemon(name: &str, interrupt: &Interrupt) -> Outcome<Command> {
    let daemon = workspace::build_release(interrupt)?.join("osd-daemon");
    let mut command = bench(name);
    command.arg("--daemon").arg(daemon);
    Ok(command)
}

/// Runs both benches that draw the paper's figures, and puts the figures on one page.
fn figures(args: &FiguresArgs, interrupt: &Interrupt) -> Outcome {
    let free = || free_dir(&workspace::root().join("benches/runs"), &args.name);
    // The benches run in a directory of their own.
    let dir = std::path::absolute(args.out.clone().unwrap_or_else(free))
        .doing(|| "cannot find the directory")?;
    std::fs::create_dir_all(&dir).doing(|| format!("cannot make {}", dir.display()))?;
    let run = |part: &str, mut command: Command| {
        command.args(args.quick.then_some("--quick")).arg("--out").arg(dir.join(part));
        exec::run_visible(&mut command, exec::NO_DEADLINE, interrupt)
    };
    run("contention", bench("contention"))?;
    let datapath = run("datapath", bench_with_daemon("datapath", interrupt)?);
    let page = dir.join("figures.md");
    std::fs::write(&page, figures_page(&args.name))
        .doing(|| format!("cannot write {}", page.display()))?;
    println!("all figures: {}", page.display());
    datapath
}

fn figures_page(name: &str) -> String {
    let mut page = format!(
        "# The figures of the LCAM paper, for all mappings: {name}\n\nDrawn by `cargo xtask bench figures`. What was measured, where, and how to read it: \
         [contention](contention/report.md), with targets met and not met, and [datapath](datapath/report.md).\n"
    );
    for (what, bench, files) in FIGURES {
        let _ = writeln!(page, "\n## {what}\n");
        for file in files {
            let path = Path::new(bench).join("figures").join(file);
            let _ = writeln!(page, "![{what}]({})\n", path.display());
        }
    }
    page
}
