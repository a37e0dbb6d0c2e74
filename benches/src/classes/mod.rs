//! What traffic classes are worth: all of them at once in one queue of I/O threads, class III
//! alone, and a heal at full rate under a client's load; each with `ms_class_weights` off and at
//! its default in turns.
//!
//! Contract: real threads and real time. Both sides are measured in each round one behind the
//! other, off first in every other round; a ratio is the median over rounds of those of one round.
//! Nothing here asserts a time.

mod heal;
mod queues;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use messenger::ClassOrder;

use crate::daemon::Program;
use crate::error::{BenchError, exit_code};
use crate::machine::{self, Machine};
use heal::HealRound;
use queues::QueueRound;

#[derive(Parser)]
#[command(name = "classes", about = "Traffic classes off and on in turns: queues, and a real heal")]
struct Args {
    #[command(flatten)]
    program: Program,
    /// One short round of each
    #[arg(long)]
    quick: bool,
    /// Without the heal
    #[arg(long)]
    no_heal: bool,
    /// Rounds; 5 unless given, 1 with --quick
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Name of the run
    #[arg(long, default_value = "classes")]
    name: String,
    /// Directory to write to; benches/runs/<date>-<name> unless given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// How long and how often.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    queue: Duration,
    /// The load without a heal.
    idle: Duration,
    /// Bytes of files that the shard misses.
    heal_bytes: u64,
}

const WHOLE: Effort = Effort {
    rounds: 5,
    queue: Duration::from_secs(3),
    idle: Duration::from_secs(5),
    heal_bytes: 512 << 20,
};
const QUICK: Effort = Effort {
    rounds: 1,
    queue: Duration::from_millis(200),
    idle: Duration::from_millis(500),
    heal_bytes: 16 << 20,
};

/// The two sides, with their names in reports.
const SIDES: [&str; 2] = ["off", "on"];

fn order_of(side: usize) -> ClassOrder {
    if side == 0 { ClassOrder::Arrival } else { ClassOrder::default() }
}

/// Both sides in the order of this round.
fn sides(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// Everything that was measured.
#[derive(Default)]
struct Measured {
    queues: Vec<QueueRound>,
    heals: Vec<HealRound>,
}

/// Runs the bench with the arguments of the process.
pub fn main() -> ExitCode {
    exit_code(run(&Args::parse()))
}

fn run(args: &Args) -> Result<PathBuf, BenchError> {
    let machine = Machine::look();
    let effort = if args.quick { QUICK } else { WHOLE };
    let rounds = args.rounds.map_or(effort.rounds, usize::from);
    let program = if args.no_heal { None } else { Some(args.program.path()?) };
    let mut measured = Measured::default();
    for round in 0..rounds {
        for load in queues::LOADS {
            for side in sides(round) {
                measured.queues.extend(queues::measure(round, load, side, effort.queue)?);
            }
        }
        if let Some(program) = &program {
            for side in sides(round) {
                measured.heals.push(heal::measure(program, round, side, &effort)?);
            }
        }
        println!("round {} of {rounds}", round + 1);
    }
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = args.out.clone().unwrap_or_else(|| machine::free_dir(&home.join("runs"), &args.name));
    report::write(&dir, args, &machine, &measured)?;
    Ok(dir)
}
