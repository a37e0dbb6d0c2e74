//! `cargo xtask sim`: walks of the simulator from the command line.

use clap::Parser;
use protocol::{Rule, Rules};
use simulation::canaries::{Canary, canary, search, search_pair, search_quorum, walk_pair};
use simulation::walk::{Found, breaks_again, shrink};
use simulation::{Fault, Focus, Run, quorum, walk};
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Drives the write protocol's real state machines through random faults, and checks its
/// invariants.
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
    /// joining, absent, owing, rebuilt, blackout, rotten, forgetful, cached, placed
    #[arg(long, default_value = "any")]
    focus: String,
    /// Walks of replicated logs, not of the write path
    #[arg(long)]
    quorum: bool,
    /// A rule of the protocol to turn off, or several: A,B
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
        (false, _) if cli.quorum => one_quorum(&cli),
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
fn without(off: &[Rule]) -> Result<Rules, String> {
    Ok(off.iter().fold(Rules::default(), |rules, rule| rules.without(*rule)))
}

#[cfg(not(feature = "switches"))]
fn without(off: &[Rule]) -> Result<Rules, String> {
    match off {
        [] => Ok(Rules::default()),
        [rule, ..] => Err(format!(
            "{} cannot be turned off: this was built without the feature `switches`",
            rule.name()
        )),
    }
}

/// The rules that `--off` names.
fn named(names: Option<&str>) -> Result<Vec<Rule>, String> {
    let names = names.into_iter().flat_map(|names| names.split(','));
    names
        .map(|name| Rule::named(name).ok_or_else(|| format!("there is no rule {name:?}")))
        .collect()
}

fn one(cli: &Cli) -> Result<bool, String> {
    let focus =
        Focus::named(&cli.focus).ok_or_else(|| format!("there is no focus {:?}", cli.focus))?;
    let off = named(cli.off.as_deref())?;
    let rules = without(&off)?;
    let until = Instant::now() + Duration::from_secs(cli.seconds);
    let seeds = cli.seed..cli.seed.saturating_add(cli.seeds.unwrap_or(u64::MAX));
    let begin = Instant::now();
    let run = walk(rules, focus, seeds, cli.off.is_some(), |_| {
        cli.seeds.is_some() || Instant::now() < until
    });
    for (what, n) in &run.covered {
        println!("{n:10} {what}");
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{} walks from seed {}, {} steps, in {seconds:.0} s", run.walks, cli.seed, run.steps);
    match &run.found {
        Some(found) => {
            tell(&off, focus, found, cli)?;
            Ok(false)
        }
        None => Ok(reached(&run)),
    }
}

/// Lines of a story that are shown: the last.
const STORY_LINES: usize = 100;

/// Walks of replicated logs.
fn one_quorum(cli: &Cli) -> Result<bool, String> {
    let rules = without(&named(cli.off.as_deref())?)?;
    let until = Instant::now() + Duration::from_secs(cli.seconds);
    let seeds = cli.seed..cli.seed.saturating_add(cli.seeds.unwrap_or(u64::MAX));
    let run = quorum::walk(rules, seeds, false, |_| cli.seeds.is_some() || Instant::now() < until);
    for (what, n) in &run.covered {
        println!("{n:10} {what}");
    }
    println!("{} walks of replicated logs from seed {}", run.walks, cli.seed);
    let Some(found) = &run.found else {
        let wanted =
            quorum::STATES.iter().copied().chain(quorum::Fault::ALL.map(quorum::Fault::counted));
        let missed: Vec<_> = wanted.filter(|what| !run.covered.contains_key(what)).collect();
        let proves = run.walks < quorum::WALKS_TO_REACH_ALL || missed.is_empty();
        if !proves {
            println!("never reached: {missed:?}");
        }
        return Ok(proves);
    };
    let from = found.story.len().saturating_sub(STORY_LINES);
    found.story[from..].iter().for_each(|line| println!("    {line}"));
    println!("broken: {}", found.what);
    let off = cli.off.as_ref().map_or_else(String::new, |rule| format!(" --off {rule}"));
    println!("again: cargo xtask sim --quorum --seed {} --seeds 1{off}", found.seed);
    Ok(false)
}

/// Tells what broke. Of a history that no single one of several rules breaks, what is shown is not
/// broken by one either.
fn tell(off: &[Rule], focus: Focus, found: &Found, cli: &Cli) -> Result<(), String> {
    let each = if off.len() > 1 {
        off.iter().map(|rule| without(&[*rule])).collect()
    } else {
        Ok(Vec::new())
    }?;
    let all_needed = !each.iter().any(|rules| breaks_again(*rules, focus, found));
    let (short, story) = shrink(without(off)?, if all_needed { &each } else { &[] }, focus, found);
    println!("broken: {} (seed {}, {} steps)", found.what, found.seed, found.trace.len());
    println!("in short: {}", short.what);
    story.iter().for_each(|line| println!("    {line}"));
    let off = cli.off.as_ref().map_or_else(String::new, |rule| format!(" --off {rule}"));
    let focus = if focus == Focus::Any { String::new() } else { format!(" --focus {focus:?}") };
    println!("again: cargo xtask sim --seed {} --seeds 1{focus}{off}", found.seed);
    Ok(())
}

/// A run of many walks that never reached something proves little.
fn reached(run: &Run) -> bool {
    let faults = Fault::ALL.map(Fault::counted);
    let wanted = simulation::walk::STATES.iter().chain(&faults);
    let missed: Vec<_> = wanted.filter(|what| !run.covered.contains_key(**what)).collect();
    if run.walks >= simulation::walk::WALKS_TO_REACH_ALL && !missed.is_empty() {
        println!("never reached: {missed:?}");
        return false;
    }
    true
}

fn canaries() -> Result<bool, String> {
    let mut passed = true;
    for &rule in Rule::ALL {
        passed &= show(rule)?;
    }
    Ok(passed)
}

/// Runs the canary of a rule and tells what came of it. False: no invariant breaks.
fn show(rule: Rule) -> Result<bool, String> {
    if let Canary::Quorum(seed) = canary(rule) {
        return Ok(show_quorum(rule, seed, &search_quorum(without(&[rule])?, seed)));
    }
    let (names, seed, (focus, run)) = match canary(rule) {
        Canary::Quorum(_) => unreachable!("it was shown"),
        Canary::Breaks(focus, seed) => {
            (rule.name().to_owned(), seed, search(without(&[rule])?, focus, seed))
        }
        Canary::Covered { by, focus, seed } => {
            let (both, each) = pair(rule, by)?;
            (
                format!("{} with {}", rule.name(), by.name()),
                seed,
                search_pair(both, each, focus, seed),
            )
        }
    };
    match &run.found {
        Some(found) => {
            let what = found.what.get(..100).unwrap_or(&found.what);
            println!("breaks  {names}: {what} (focus {focus:?}, seed {})", found.seed);
        }
        None => println!("SILENT  {names}: {} walks from seed {seed}", run.walks),
    }
    Ok(run.found.is_some())
}

/// Tells what came of the canary of a rule of replicated logs.
fn show_quorum(rule: Rule, seed: u64, run: &quorum::Run) -> bool {
    match &run.found {
        Some(found) => {
            let what = found.what.get(..100).unwrap_or(&found.what);
            println!("breaks  {}: {what} (seed {})", rule.name(), found.seed);
        }
        None => println!("SILENT  {}: {} walks from seed {seed}", rule.name(), run.walks),
    }
    run.found.is_some()
}

/// Without both rules, and without each of them.
fn pair(rule: Rule, by: Rule) -> Result<(Rules, [Rules; 2]), String> {
    Ok((without(&[rule, by])?, [without(&[rule])?, without(&[by])?]))
}

/// Looks for the first seeds anew, in every focus in turn.
fn find(cli: &Cli, seconds: u64) -> Result<bool, String> {
    let only = named(cli.off.as_deref())?;
    for &rule in Rule::ALL.iter().filter(|rule| only.is_empty() || only.contains(rule)) {
        if let Canary::Quorum(_) = canary(rule) {
            let until = Instant::now() + Duration::from_secs(seconds);
            show_quorum(
                rule,
                1,
                &quorum::walk(without(&[rule])?, 1..u64::MAX, true, |_| Instant::now() < until),
            );
            continue;
        }
        let (walks, found) = match canary(rule) {
            Canary::Covered { by, .. } => first_of(seconds, {
                let (both, each) = pair(rule, by)?;
                move |focus, seeds| walk_pair(both, each, focus, seeds)
            }),
            _ => {
                let rules = without(&[rule])?;
                first_of(seconds, move |focus, seeds| walk(rules, focus, seeds, true, |_| true))
            }
        };
        match found {
            Some((focus, found)) => {
                println!("{}: Focus::{focus:?}, {} - {}", rule.name(), found.seed, found.what)
            }
            None => println!("SILENT {} in {walks} walks", rule.name()),
        }
    }
    Ok(true)
}

/// Where such walks find something first; that one never comes to rest counts only if nothing else
/// is found.
fn first_of(
    seconds: u64,
    mut walks: impl FnMut(Focus, Range<u64>) -> Run,
) -> (u64, Option<(Focus, Found)>) {
    let (begin, mut done, mut stuck) = (Instant::now(), 0, None);
    for from in (1..).step_by(200) {
        for focus in Focus::ALL {
            let run = walks(focus, from..from + 200);
            done += run.walks;
            match run.found {
                Some(found) if found.what.starts_with("progress") => {
                    stuck = stuck.or(Some((focus, found)))
                }
                Some(found) => return (done, Some((focus, found))),
                None => {}
            }
            if begin.elapsed() > Duration::from_secs(seconds) {
                return (done, stuck);
            }
        }
    }
    (done, stuck)
}
