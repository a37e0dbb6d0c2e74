//! What was measured, kept as it comes: every run of a cell is a line on the disk before the next
//! one begins, so that a run that is cut off keeps what it has.

use super::report;
use super::sample::{Measured, Metrics, Sample, Samples, rounded};
use crate::error::{Context, Outcome};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Lines of an error that are kept: what failed comes first, and programs repeat themselves.
const ERROR_LINES_MAX: usize = 4;

/// Samples, and the file that they go to.
pub struct Journal {
    /// Everything so far.
    pub samples: Samples,
    file: File,
}

impl Journal {
    /// An empty one in a directory.
    ///
    /// # Errors
    /// When its file cannot be made.
    pub fn create(dir: &Path) -> Outcome<Journal> {
        let path = dir.join("raw.jsonl");
        let file = File::create_new(&path).doing(|| format!("cannot make {}", path.display()))?;
        Ok(Journal { samples: Samples::default(), file })
    }

    /// Keeps a run that measured something.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn measured(
        &mut self,
        (cell, system, run): (&str, &str, u32),
        measured: Measured,
    ) -> Outcome {
        let Measured { metrics, processes_mib, operations, locks } = measured;
        println!("run {run}: {cell}: {system} {}", report::speed_words(cell, &metrics));
        let metrics = metrics.into_iter().map(|(name, value)| (name, rounded(value))).collect();
        let (cell, system) = (cell.to_owned(), system.to_owned());
        self.keep(Sample {
            cell,
            system,
            run,
            metrics,
            processes_mib,
            operations,
            locks,
            error: None,
        })
    }

    /// Keeps a run that failed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn failed(&mut self, (cell, system, run): (&str, &str, u32), error: &str) -> Outcome {
        let error = error.lines().take(ERROR_LINES_MAX).collect::<Vec<_>>().join("\n");
        println!("run {run}: {cell}: {system} FAILED: {error}");
        let (cell, system, error) = (cell.to_owned(), system.to_owned(), Some(error));
        let Measured { metrics, processes_mib, operations, locks } = Metrics::new().into();
        self.keep(Sample { cell, system, run, metrics, processes_mib, operations, locks, error })
    }

    fn keep(&mut self, sample: Sample) -> Outcome {
        let line = serde_json::to_string(&sample).doing(|| "cannot encode a sample")?;
        writeln!(self.file, "{line}").doing(|| "cannot write the raw data")?;
        self.samples.0.push(sample);
        Ok(())
    }
}
