//! `cargo xtask sweep --study table-5.2`: the study of "Ceph single parameter" as a whole. Ten
//! parameters with its 23 values, one changed at a time, on volumes as virtual machines use them:
//! served by NBD on three hosts, with its sixteen workloads.
//!
//! [`table`] has what the paper changes, measures and finds, [`hosts`] the cluster and the load,
//! [`results`] what was measured, [`report`] writes it down. The paper's sizes are the defaults:
//! some twelve days. One that was cut off goes on where it was, given its directory.

mod hosts;
mod report;
mod results;
mod table;

use super::origin::{Origin, free_dir};
use super::{Place, command_line, places, put};
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec::Interrupt;
use crate::testrun::Bench;
use crate::workspace;
use hosts::Hosts;
use results::{Line, Results};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use table::{CELLS, Cell, Config};

/// The file of the scale.
const SCALE: &str = "scale.json";
/// The directory's name ends with it.
const NAME: &str = "study-table-5.2";

/// A study of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Study {
    /// Ten parameters of Ceph, on volumes: Table 5.2 and Figures 5.1 to 5.16 of "Ceph single
    /// parameter"
    #[value(name = "table-5.2")]
    Table52,
}

/// How much of a study.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct StudyArgs {
    /// A whole study of a paper instead of --set; --runs is 9 then, --seconds 300. With the --out
    /// of one that was cut off it goes on
    #[arg(long, value_enum, conflicts_with_all = ["set", "with", "iodepth", "slow_osd", "name"])]
    pub study: Option<Study>,
    /// Configurations of the study, such as A,B,K: A is measured in any case [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LETTER", requires = "study")]
    configs: Vec<String>,
    /// Cells of the study, such as randread-4k,write-32m [default: all sixteen]
    #[arg(long, value_delimiter = ',', value_name = "CELL", requires = "study")]
    cells: Vec<String>,
    /// Volumes of the study, on three hosts
    #[arg(long, default_value_t = 12, requires = "study", value_parser = clap::value_parser!(u32).range(1..=60))]
    volumes: u32,
    /// MiB of each volume, all of them used
    #[arg(long, default_value_t = 10_240, requires = "study", value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    volume_mib: u64,
    /// Seconds of each run of a cell before its time begins to count
    #[arg(long, default_value_t = 15, requires = "study", value_parser = clap::value_parser!(u64).range(0..=600))]
    ramp: u64,
}

/// What all runs of a study have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Scale {
    volumes: u32,
    size_mib: u64,
    seconds: u64,
    ramp: u64,
}

/// What is to be done, checked.
struct Plan {
    configs: Vec<Config>,
    cells: Vec<Cell>,
    scale: Scale,
    runs: u32,
}

impl Plan {
    fn new(args: &StudyArgs, runs: Option<u32>, seconds: Option<u64>) -> Outcome<Plan> {
        let scale = Scale {
            volumes: args.volumes,
            size_mib: args.volume_mib,
            seconds: seconds.unwrap_or(300),
            ramp: args.ramp,
        };
        let mut configs = Config::all();
        let names: Vec<&str> = configs.iter().map(|config| config.name).collect();
        if let Some(unknown) = args.configs.iter().find(|name| !names.contains(&name.as_str())) {
            return fail(format!("--configs {unknown}: there are {}", names.join(", ")));
        }
        if !args.configs.is_empty() {
            configs.retain(|c| c.name == table::BASE || args.configs.iter().any(|n| n == c.name));
        }
        let names: Vec<&str> = CELLS.iter().map(|cell| cell.name).collect();
        if let Some(unknown) = args.cells.iter().find(|name| !names.contains(&name.as_str())) {
            return fail(format!("--cells {unknown}: there are {}", names.join(", ")));
        }
        let is_chosen =
            |cell: &&Cell| args.cells.is_empty() || args.cells.iter().any(|n| n == cell.name);
        let cells = CELLS.iter().filter(is_chosen).copied().collect();
        Ok(Plan { configs, cells, scale, runs: runs.unwrap_or(9) })
    }

    /// Everything that is to be measured with a configuration, and was not yet.
    fn missing<'a>(
        &'a self,
        config: &'a Config,
        results: &'a Results,
    ) -> impl Iterator<Item = (u32, &'a Cell)> {
        let all = (1..=self.runs).flat_map(|run| self.cells.iter().map(move |cell| (run, cell)));
        all.filter(|(run, cell)| !results.has(config.name, cell.name, *run))
    }
}

/// Runs what is missing of the study, and writes its report, also after a failure.
///
/// # Errors
/// When arguments make no sense, the directory is another study's, a cluster does not come up, or a
/// run fails; or on Ctrl-C. What was measured until then stays.
pub fn run(
    args: &StudyArgs,
    runs: Option<u32>,
    seconds: Option<u64>,
    out: Option<&Path>,
    interrupt: &Interrupt,
) -> Outcome {
    let plan = Plan::new(args, runs, seconds)?;
    let bench = Bench::new(interrupt, false, workspace::Profile::Release)?;
    let places = places(&bench);
    super::sweep(&places);
    let work = Place::create(&places)?;
    let out = directory(out, &plan.scale)?;
    let origin = Origin::look(NAME, &command_line(), &work.0);
    let mut results = Results::open(&out)?;
    if results.is_empty() {
        let text = serde_json::to_string_pretty(&origin).doing(|| "cannot encode the origin")?;
        put(&out.join("run.json"), &text)?;
    }
    println!("{} has all results so far; give it as --out to go on", out.display());
    let measured = measure(&plan, &work.0, &bench, &mut results);
    for (file, svg) in report::figures(&plan, &results) {
        put(&out.join(file), &svg)?;
    }
    put(&out.join("report.md"), &report::text(&plan, &origin, &results))?;
    println!("report: {}", out.join("report.md").display());
    measured
}

/// The directory of results: a new one, or one of the same scale.
fn directory(given: Option<&Path>, scale: &Scale) -> Outcome<PathBuf> {
    let free = || free_dir(&workspace::root().join("benches/runs"), NAME);
    let out = given.map_or_else(free, Path::to_path_buf);
    std::fs::create_dir_all(&out).doing(|| format!("cannot make {}", out.display()))?;
    let path = out.join(SCALE);
    let is_empty = std::fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty {
        let text = serde_json::to_string_pretty(scale).doing(|| "cannot encode the scale")?;
        put(&path, &text)?;
        return Ok(out);
    }
    let text = std::fs::read_to_string(&path)
        .doing(|| format!("--out {}: neither empty nor a study", out.display()))?;
    let known: Scale =
        serde_json::from_str(&text).doing(|| format!("cannot read {}", path.display()))?;
    ensure!(known == *scale, "--out {}: that study has {known:?}, not {scale:?}", out.display());
    Ok(out)
}

fn measure(plan: &Plan, work: &Path, bench: &Bench, results: &mut Results) -> Outcome {
    for config in &plan.configs {
        let missing: Vec<(u32, Cell)> =
            plan.missing(config, results).map(|(run, cell)| (run, *cell)).collect();
        if missing.is_empty() {
            continue;
        }
        println!("{}: {}", config.name, config.words());
        let hosts = Hosts::up(&work.join(config.name), config, plan.scale, bench)
            .doing(|| format!("configuration {}", config.name))?;
        for (run, cell) in missing {
            let values =
                hosts.measure(&cell).doing(|| format!("{}: {}", config.name, cell.name))?;
            let (config, cell_name) = (config.name.to_owned(), cell.name.to_owned());
            let line = Line { config, cell: cell_name, run, values };
            println!("  run {run}: {} {:.1} {}", cell.name, line.mean(), cell.unit.words());
            results.keep(line)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(configs: &[&str], cells: &[&str]) -> StudyArgs {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        StudyArgs {
            study: Some(Study::Table52),
            configs: owned(configs),
            cells: owned(cells),
            volumes: 12,
            volume_mib: 64,
            ramp: 0,
        }
    }

    #[test]
    fn a_part_of_the_study_has_the_defaults_beside_it() {
        let plan = Plan::new(&args(&["K"], &["randwrite-1m"]), Some(2), Some(1)).unwrap();
        let names: Vec<&str> = plan.configs.iter().map(|config| config.name).collect();
        assert_eq!((names, plan.cells.len(), plan.runs), (vec!["A", "K"], 1, 2));
        let all = Plan::new(&args(&[], &[]), None, None).unwrap();
        assert_eq!((all.configs.len(), all.cells.len(), all.runs), (26, 16, 9));
        for wrong in [args(&["Y"], &[]), args(&[], &["read-5k"])] {
            assert!(Plan::new(&wrong, None, None).is_err());
        }
    }

    #[test]
    fn what_was_measured_is_not_measured_again_and_scales_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::new(&args(&["K"], &["randwrite-1m"]), Some(2), Some(1)).unwrap();
        directory(Some(dir.path()), &plan.scale).unwrap();
        let mut results = Results::open(dir.path()).unwrap();
        let line =
            Line { config: "K".into(), cell: "randwrite-1m".into(), run: 1, values: vec![1.0] };
        results.keep(line).unwrap();
        let missing: Vec<u32> =
            plan.missing(&plan.configs[1], &results).map(|(run, _)| run).collect();
        assert_eq!(missing, [2]);
        directory(Some(dir.path()), &plan.scale).unwrap();
        let other = Scale { seconds: 2, ..plan.scale };
        assert!(directory(Some(dir.path()), &other).is_err());
    }
}
