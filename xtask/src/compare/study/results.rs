//! What was measured, a line for each run of a cell, on the disk before the next one begins; a
//! study that was cut off goes on behind the last whole line.

use crate::error::{Context, Outcome, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file in the study's directory.
const FILE: &str = "raw.jsonl";

/// One run of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    /// The configuration's name.
    pub config: String,
    /// The cell's.
    pub cell: String,
    /// From 1.
    pub run: u32,
    /// One of each volume, in the cell's unit.
    pub values: Vec<f64>,
}

impl Line {
    /// The mean over the volumes, as in the paper's figures.
    pub fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len().max(1) as f64
    }
}

/// The mean of all runs, and the least and greatest of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// Over all volumes and runs.
    pub mean: f64,
    /// Of the runs' means.
    pub least: f64,
    /// Of the runs' means.
    pub greatest: f64,
    /// Of all runs, by how much the slowest volume stays behind the mean of its run, at most: 0.1
    /// is a tenth.
    pub behind: f64,
}

impl Spread {
    /// Do the runs of the two lie apart?
    pub fn is_apart(&self, other: &Spread) -> bool {
        self.least > other.greatest || self.greatest < other.least
    }

    /// Of both, taken as one.
    pub fn with(&self, other: &Spread) -> Spread {
        Spread {
            mean: (self.mean + other.mean) / 2.0,
            least: self.least.min(other.least),
            greatest: self.greatest.max(other.greatest),
            behind: self.behind.max(other.behind),
        }
    }
}

/// All lines so far.
pub(super) struct Results {
    lines: Vec<Line>,
    file: File,
}

impl Results {
    /// Those of a directory, to be added to; what a run that was killed left of a line is cut off.
    ///
    /// # Errors
    /// When the file cannot be read or changed, or has a whole line that is none of these.
    pub fn open(dir: &Path) -> Outcome<Results> {
        let path = dir.join(FILE);
        let doing = || format!("cannot use {}", path.display());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).doing(doing),
        };
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let lines = text[..whole].lines().map(serde_json::from_str).collect::<Result<_, _>>();
        let lines = lines.doing(doing)?;
        let file = OpenOptions::new().create(true).append(true).open(&path).doing(doing)?;
        file.set_len(whole as u64).doing(doing)?;
        Ok(Results { lines, file })
    }

    /// Is there nothing yet?
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Was it measured?
    pub fn has(&self, config: &str, cell: &str, run: u32) -> bool {
        self.lines.iter().any(|l| l.config == config && l.cell == cell && l.run == run)
    }

    /// Keeps a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&mut self, line: Line) -> Outcome {
        ensure!(!line.values.is_empty(), "{}: no volume measured anything", line.cell);
        let mut text = serde_json::to_string(&line).doing(|| "cannot encode a result")?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).doing(|| "cannot keep a result")?;
        self.lines.push(line);
        Ok(())
    }

    /// All runs of a configuration in a cell; none if there is none.
    pub fn spread(&self, config: &str, cell: &str) -> Option<Spread> {
        let lines: Vec<&Line> =
            self.lines.iter().filter(|l| l.config == config && l.cell == cell).collect();
        let means: Vec<f64> = lines.iter().map(|line| line.mean()).collect();
        let behind = lines.iter().map(|line| {
            let slowest = line.values.iter().copied().fold(f64::INFINITY, f64::min);
            1.0 - slowest / line.mean()
        });
        (!means.is_empty()).then(|| Spread {
            mean: means.iter().sum::<f64>() / means.len() as f64,
            least: means.iter().copied().fold(f64::INFINITY, f64::min),
            greatest: means.iter().copied().fold(0.0, f64::max),
            behind: behind.fold(0.0, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(config: &str, run: u32, values: &[f64]) -> Line {
        Line { config: config.into(), cell: "c".into(), run, values: values.to_vec() }
    }

    #[test]
    fn a_study_that_was_cut_off_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut results = Results::open(dir.path()).unwrap();
        results.keep(line("A", 1, &[90.0, 110.0])).unwrap();
        assert!(results.keep(line("A", 2, &[])).is_err());
        let mut file = OpenOptions::new().append(true).open(dir.path().join(FILE)).unwrap();
        file.write_all(b"{\"config\":\"A\",\"ce").unwrap();
        let mut results = Results::open(dir.path()).unwrap();
        assert!(results.has("A", "c", 1) && !results.has("A", "c", 2));
        results.keep(line("A", 2, &[120.0, 120.0])).unwrap();
        let spread = Results::open(dir.path()).unwrap().spread("A", "c").unwrap();
        assert_eq!((spread.mean, spread.least, spread.greatest), (110.0, 100.0, 120.0));
        assert!((spread.behind - 0.1).abs() < 1e-9);
    }

    #[test]
    fn runs_that_overlap_are_not_apart() {
        let of = |least, greatest| Spread { mean: 1.0, least, greatest, behind: 0.0 };
        assert!(of(1.0, 2.0).is_apart(&of(2.5, 3.0)) && of(2.5, 3.0).is_apart(&of(1.0, 2.0)));
        assert!(!of(1.0, 2.0).is_apart(&of(1.5, 3.0)));
    }
}
