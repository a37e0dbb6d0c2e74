//! fio: its command line for a cell, and the numbers in its JSON. Nothing is run here.

use super::cells::FioJob;
use super::sample::Metrics;
use crate::error::{Context, Outcome, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Files of one kind that jobs use: `f.0`, `f.1`, ... of so many MiB each.
#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// Before the dot.
    pub prefix: &'static str,
    /// How many.
    pub count: u32,
    /// MiB of each.
    pub mib: u64,
}

impl Files {
    /// Where they lie in a directory.
    pub fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        (0..self.count).map(|n| dir.join(format!("{}.{n}", self.prefix))).collect()
    }
}

/// Arguments that write the files of all jobs, and have them on the disk in the end.
pub fn prepare(directory: &str, files: Files) -> Vec<String> {
    let mut arguments = common(directory, files, files.count);
    arguments.extend(["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"].map(str::to_owned));
    arguments
}

/// Arguments of a cell; jobs take the directories in turn.
pub fn arguments(job: &FioJob, directories: &[PathBuf], files: Files, seconds: u64) -> Vec<String> {
    let list: Vec<String> =
        directories.iter().map(|d| d.display().to_string().replace(':', "\\:")).collect();
    let mut arguments = common(&list.join(":"), files, job.jobs * directories.len().max(1) as u32);
    arguments.extend([
        format!("--rw={}", job.rw),
        format!("--bs={}", job.block),
        format!("--iodepth={}", job.depth),
        "--time_based".into(),
        format!("--runtime={seconds}"),
        "--randrepeat=0".into(),
        "--norandommap".into(),
    ]);
    if job.rw == "randrw" {
        arguments.extend(["--rwmixread=80".into(), "--unified_rw_reporting=mixed".into()]);
    }
    arguments.extend(job.fsync.then(|| "--fsync=1".to_owned()));
    arguments
}

fn common(directory: &str, files: Files, jobs: u32) -> Vec<String> {
    vec![
        "--name=cell".into(),
        format!("--directory={directory}"),
        format!("--filename_format={}.$jobnum", files.prefix),
        format!("--size={}m", files.mib),
        format!("--numjobs={jobs}"),
        "--direct=1".into(),
        "--ioengine=libaio".into(),
        "--group_reporting".into(),
        "--output-format=json".into(),
    ]
}

/// What a cell's fio measured, and how many operations that were.
///
/// # Errors
/// When it printed no JSON, tells of an error, or did nothing.
pub fn parse(output: &str, job: &FioJob) -> Outcome<(Metrics, f64)> {
    // It may print notes before the JSON.
    let json = output.find('{').map_or("", |at| &output[at..]);
    let report: Value = serde_json::from_str(json).doing(|| "fio did not print JSON")?;
    let all = &report["jobs"][0];
    ensure!(all["error"].as_i64() == Some(0), "fio says error {}", all["error"]);
    let part = &all[match job.rw {
        "randrw" => "mixed",
        rw if rw.contains("read") => "read",
        _ => "write",
    }];
    let latency = if job.fsync { &all["sync"]["lat_ns"] } else { &part["clat_ns"] };
    let number = |value: &Value| value.as_f64().filter(|n| n.is_finite()).unwrap_or(0.0);
    let operations = number(&part["total_ios"]);
    let speed =
        [("ops_per_s", number(&part["iops"])), ("mb_per_s", number(&part["bw_bytes"]) / 1e6)];
    ensure!(speed.iter().all(|(_, value)| *value > 0.0), "fio did nothing in its time");
    let times = [
        ("mean_us", number(&latency["mean"]) / 1e3),
        ("p50_us", number(&latency["percentile"]["50.000000"]) / 1e3),
        ("p99_us", number(&latency["percentile"]["99.000000"]) / 1e3),
    ];
    // A run so short that no fsync came back has none.
    let times = times.into_iter().filter(|(_, value)| *value > 0.0);
    let metrics =
        speed.into_iter().chain(times).map(|(name, value)| (name.to_owned(), value)).collect();
    Ok((metrics, operations))
}

#[cfg(test)]
mod tests {
    use super::super::cells::{CELLS, Work};
    use super::*;

    fn job(name: &str) -> FioJob {
        let cell = CELLS.iter().find(|cell| cell.name == name).unwrap();
        let Work::Fio(job) = cell.work else { panic!("{name} is no cell of fio") };
        job
    }

    fn section(iops: f64) -> String {
        format!(
            r#"{{"iops":{iops},"total_ios":1000,"bw_bytes":4096000,"clat_ns":{{"mean":250000.0,
               "percentile":{{"50.000000":200000,"99.000000":900000}}}}}}"#
        )
    }

    #[test]
    fn numbers_are_found_behind_notes() {
        let text = format!(
            "note: both iodepth >= 1\n{{\"jobs\":[{{\"error\":0,\"read\":{},\"write\":{}}}]}}",
            section(8000.0),
            section(0.0)
        );
        let (metrics, operations) = parse(&text, &job("randread-4k")).unwrap();
        assert_eq!(operations, 1000.0);
        assert_eq!(metrics["ops_per_s"], 8000.0);
        assert_eq!(metrics["mb_per_s"], 4.096);
        assert_eq!(
            (metrics["mean_us"], metrics["p50_us"], metrics["p99_us"]),
            (250.0, 200.0, 900.0)
        );
        assert!(parse(&text, &job("randwrite-4k")).is_err(), "nothing was written");
    }

    #[test]
    fn fsync_latency_is_that_of_the_sync() {
        let sync =
            r#"{"lat_ns":{"mean":9000.0,"percentile":{"50.000000":8000,"99.000000":70000}}}"#;
        let text =
            format!("{{\"jobs\":[{{\"error\":0,\"write\":{},\"sync\":{sync}}}]}}", section(80.0));
        let (metrics, _) = parse(&text, &job("fsync-4k")).unwrap();
        assert_eq!((metrics["mean_us"], metrics["p50_us"], metrics["p99_us"]), (9.0, 8.0, 70.0));
    }

    #[test]
    fn errors_are_told() {
        let text = format!("{{\"jobs\":[{{\"error\":5,\"read\":{}}}]}}", section(8000.0));
        assert!(parse(&text, &job("randread-4k")).unwrap_err().to_string().contains('5'));
        assert!(parse("fio: killed", &job("randread-4k")).is_err());
    }

    #[test]
    fn every_mount_has_a_job() {
        let mounts = ["/a".into(), "/b:c".into()];
        let files = Files { prefix: "c", count: 8, mib: 4 };
        let line = arguments(&super::super::cells::CLIENT_JOB, &mounts, files, 3).join(" ");
        assert!(line.contains("--directory=/a:/b\\:c ") && line.contains("--numjobs=2 "), "{line}");
        assert!(
            line.contains("--runtime=3 ") && line.contains("--filename_format=c.$jobnum "),
            "{line}"
        );
    }
}
