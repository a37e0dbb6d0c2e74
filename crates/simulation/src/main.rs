//! `cargo xtask sim`: walks of the simulator from the command line.

use clap::Parser;
use protocol::{Rule, Rules};
use simulation::canaries::{Canary, canary, search};
use simulation::walk::{Found, shrink};
use simulation::{Focus, Run, walk};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Drives the write protocol's real state machines through random faults, and checks its invariants.
#[derive(Parser)]
#[command(name = "cargo xtask sim")]
struct Cli {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds
    #[arg(long)]
    seeds: Option<u64>,
    /// How long, at most
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// What to dwell on: any, mixed, small, return, takeover, network, stale, handover,
    /// joining, absent
    #[arg(long, default_value = "any")]
    focus: String,
    /// A rule of the protocol to turn off
    #[arg(long)]
    off: Option<String>,
    /// Every rule off in turn: an invariant must break
    #[arg(long)]
    canaries: bool,
    /// With --canaries: look for each rule's first seeds, for so many seconds, and print the table
    #[arg(long, requires = "canaries")]
    find: Option<u64>,
}

fn main() -> ExitCode {
    // a machine's assertion that fails is a finding, told with its seed
    std::panic::set_hook(Box::new(|_| {}));
    let cli = Cli::parse();
    let passed = match (cli.canaries, cli.find) {
        (true, Some(seconds)) => find(&cli, seconds),
        (true, None) => canaries(),
        (false, _) => one(&cli),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "switches")]
fn without(rule: Rule) -> Result<Rules, String> {
    Ok(Rules::default().without(rule))
}

#[cfg(not(feature = "switches"))]
fn without(rule: Rule) -> Result<Rules, String> {
    Err(format!("{} cannot be turned off: this was built without the feature `switches`", rule.name()))
}

fn one(cli: &Cli) -> Result<bool, String> {
    let focus = Focus::named(&cli.focus).ok_or_else(|| format!("there is no focus {:?}", cli.focus))?;
    let rules = match &cli.off {
        Some(name) => without(Rule::named(name).ok_or_else(|| format!("there is no rule {name:?}"))?)?,
        None => Rules::default(),
    };
    let until = Instant::now() + Duration::from_secs(cli.seconds);
    let seeds = cli.seed..cli.seed.saturating_add(cli.seeds.unwrap_or(u64::MAX));
    let begin = Instant::now();
    let run = walk(rules, focus, seeds, cli.off.is_some(), |_| cli.seeds.is_some() || Instant::now() < until);
    for (what, n) in &run.covered {
        println!("{n:10} {what}");
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{} walks from seed {}, {} steps, in {seconds:.0} s", run.walks, cli.seed, run.steps);
    match &run.found {
        Some(found) => {
            tell(rules, focus, found, cli);
            Ok(false)
        }
        None => Ok(reached(&run)),
    }
}

fn tell(rules: Rules, focus: Focus, found: &Found, cli: &Cli) {
    let (short, story) = shrink(rules, focus, found);
    println!("broken: {} (seed {}, {} steps)", found.what, found.seed, found.trace.len());
    println!("in short: {}", short.what);
    story.iter().for_each(|line| println!("    {line}"));
    let off = cli.off.as_ref().map_or_else(String::new, |rule| format!(" --off {rule}"));
    let focus = if focus == Focus::Any { String::new() } else { format!(" --focus {focus:?}") };
    println!("again: cargo xtask sim --seed {} --seeds 1{focus}{off}", found.seed);
}

/// A run of many walks that never reached something proves little.
fn reached(run: &Run) -> bool {
    let missed: Vec<_> = simulation::walk::STATES.iter().filter(|what| !run.covered.contains_key(**what)).collect();
    if run.walks >= simulation::walk::WALKS_TO_REACH_ALL && !missed.is_empty() {
        println!("never reached: {missed:?}");
        return false;
    }
    true
}

fn canaries() -> Result<bool, String> {
    let mut passed = true;
    for &rule in Rule::ALL {
        let (focus, seed) = match canary(rule) {
            Canary::Breaks(focus, seed) => (focus, seed),
            Canary::Exempt(why) => {
                println!("exempt  {}: {why}", rule.name());
                continue;
            }
        };
        let (focus, run) = search(without(rule)?, focus, seed);
        match run.found {
            Some(found) => {
                let what = found.what.get(..100).unwrap_or(&found.what);
                println!("breaks  {}: {what} (focus {focus:?}, seed {})", rule.name(), found.seed);
            }
            None => {
                passed = false;
                println!("SILENT  {}: {} walks from seed {seed}", rule.name(), run.walks);
            }
        }
    }
    Ok(passed)
}

/// Looks for the first seeds anew, in every focus in turn.
fn find(cli: &Cli, seconds: u64) -> Result<bool, String> {
    let only = cli.off.as_deref().map(|names| names.split(',').map(str::to_owned).collect::<Vec<_>>());
    for &rule in Rule::ALL.iter().filter(|rule| only.as_ref().is_none_or(|o| o.iter().any(|n| n == rule.name()))) {
        let rules = without(rule)?;
        let begin = Instant::now();
        let mut walks = 0;
        let mut from = 1;
        let mut second = None;
        let found = 'search: loop {
            for focus in Focus::ALL {
                let run = walk(rules, focus, from..from + 200, true, |_| true);
                walks += run.walks;
                let stuck = |found: &Found| found.what.starts_with("progress");
                match run.found {
                    Some(found) if stuck(&found) => second = second.or(Some((focus, found))),
                    Some(found) => break 'search Some((focus, found)),
                    None => {}
                }
                if begin.elapsed() > Duration::from_secs(seconds) {
                    break 'search second;
                }
            }
            from += 200;
        };
        match found {
            Some((focus, found)) => println!(
                "        Rule::{} => Canary::Breaks(Focus::{focus:?}, {}), // {}",
                rule.name(),
                found.seed,
                found.what
            ),
            None => println!("        SILENT {} in {walks} walks", rule.name()),
        }
    }
    Ok(true)
}
