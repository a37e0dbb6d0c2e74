//! Repeated lines of the log: counted, not written.
//!
//! Contract: lines that differ only in words with digits are of one kind. The first [`BURST_LINES`]
//! of a kind are written; of those that follow, each whose number is a power of two, with the count
//! of lines left out before it. A kind that was silent for [`QUIET`] begins anew. So a fault that
//! logs a line for each request comes to some twenty lines, however long it lasts. Lines below WARN
//! are written as they are.

use crate::file::{FILE_BYTES_MAX, LogFile};
use messenger::sync::{ContentionMutex, LockTable};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Lines of one kind that are written before any is left out: each of a few OSDs may have its own.
const BURST_LINES: u64 = 10;
/// A kind that was silent for this long is news again.
const QUIET: Duration = Duration::from_secs(300);
/// Kinds remembered at most; beyond, the one that was silent for the longest time is forgotten, and
/// written again.
const KINDS_MAX: usize = 256;

/// Which lines are written.
#[derive(Debug, Default)]
struct Repeats {
    kinds: HashMap<u64, Kind>,
}

#[derive(Debug)]
struct Kind {
    lines: u64,
    left_out: u64,
    last: Duration,
}

impl Repeats {
    /// A line comes. `None`: it is left out; otherwise how many of its kind were since the last one
    /// written.
    fn admit(&mut self, now: Duration, line: &[u8]) -> Option<u64> {
        let key = kind_of(line);
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&key) {
            let oldest = self.kinds.iter().min_by_key(|(_, kind)| kind.last).map(|(key, _)| *key);
            oldest.and_then(|oldest| self.kinds.remove(&oldest));
        }
        let kind = self.kinds.entry(key).or_insert(Kind { lines: 0, left_out: 0, last: now });
        if now.saturating_sub(kind.last) > QUIET {
            kind.lines = 0;
        }
        kind.last = now;
        kind.lines = kind.lines.saturating_add(1);
        if kind.lines <= BURST_LINES || kind.lines.is_power_of_two() {
            return Some(std::mem::take(&mut kind.left_out));
        }
        kind.left_out += 1;
        None
    }
}

/// A line's kind: its text without the words that have digits, so without times, numbers, addresses
/// and ids.
fn kind_of(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for word in line.split(|byte| !byte.is_ascii_alphanumeric()) {
        if !word.iter().any(u8::is_ascii_digit) {
            hasher.write(word);
            hasher.write_u8(0);
        }
    }
    hasher.finish()
}

/// The log of a process, with repeated lines counted.
#[derive(Debug)]
pub struct CountedLog {
    began: Instant,
    repeats: ContentionMutex<Repeats>,
    /// `None`: standard error.
    file: Option<ContentionMutex<LogFile>>,
}

impl CountedLog {
    /// On standard error.
    pub fn on_stderr() -> Self {
        Self::new(None)
    }

    /// In a file, which is made if it is missing. It keeps to [`FILE_BYTES_MAX`].
    ///
    /// # Errors
    /// That it cannot be opened.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        LogFile::open(path, FILE_BYTES_MAX).map(|file| Self::new(Some(file)))
    }

    fn new(file: Option<LogFile>) -> Self {
        // The process's, not a runtime's: no table lists them.
        let table = LockTable::new(false);
        let file = file.map(|file| ContentionMutex::new(&table, "log file", file));
        Self {
            began: Instant::now(),
            repeats: ContentionMutex::new(&table, "log", Repeats::default()),
            file,
        }
    }

    fn put(&self, text: &[u8]) -> io::Result<()> {
        match &self.file {
            Some(file) => file.lock().write_all(text),
            None => io::stderr().write_all(text),
        }
    }
}

/// Writes the lines of one event.
#[derive(Debug)]
pub struct LineWriter<'a> {
    log: &'a CountedLog,
    /// False: its lines are written as they are.
    is_counted: bool,
}

impl<'a> MakeWriter<'a> for CountedLog {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { log: self, is_counted: false }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { log: self, is_counted: *meta.level() <= Level::WARN }
    }
}

impl Write for LineWriter<'_> {
    /// Takes a whole event, as the subscriber hands it over.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let log = self.log;
        let admitted = if self.is_counted {
            log.repeats.lock().admit(log.began.elapsed(), event)
        } else {
            Some(0)
        };
        match admitted {
            None => {}
            Some(0) => log.put(event)?,
            Some(left_out) => log.put(&with_count(event, left_out))?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.log.file.as_ref().map_or_else(|| io::stderr().flush(), |file| file.lock().flush())
    }
}

/// The line, with how many like it were left out before it.
fn with_count(line: &[u8], left_out: u64) -> Vec<u8> {
    let mut text = line.strip_suffix(b"\n").unwrap_or(line).to_vec();
    text.extend_from_slice(format!(" ({left_out} more like this were not written)\n").as_bytes());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_line_that_comes_without_end_is_written_some_twenty_times_and_counted() {
        let mut repeats = Repeats::default();
        let mut told = Vec::new();
        for n in 0..19_840 {
            let line = format!(
                "2026-11-27T21:{:02}:07.{n:06}Z  WARN osd: no space for PG 1.{n}, object {n:016x}, seen {n}\n",
                n % 60
            );
            told.extend(repeats.admit(second(n / 33), line.as_bytes()));
        }
        assert!(told.len() <= 24, "{told:?}");
        let all = told.len() as u64 + told.iter().sum::<u64>();
        assert_eq!(all, 16_384, "every line up to the last one written is counted");
    }

    #[test]
    fn other_lines_are_written_and_an_old_kind_is_news_again() {
        let mut repeats = Repeats::default();
        for _ in 0..20 {
            repeats.admit(second(1), b"the disk is full\n");
        }
        assert_eq!(repeats.admit(second(2), b"the disk is full\n"), None);
        assert_eq!(repeats.admit(second(2), b"the monitor is away\n"), Some(0));
        let later = second(3) + QUIET;
        assert_eq!(
            repeats.admit(later, b"the disk is full\n"),
            Some(5),
            "17 to 21; 11 to 15 were told with 16"
        );
    }

    #[test]
    fn kinds_beyond_the_limit_take_no_memory() {
        let mut repeats = Repeats::default();
        for n in 0..10_000_u32 {
            let word: String =
                n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
            assert_eq!(repeats.admit(second(n.into()), word.as_bytes()), Some(0));
        }
        assert!(repeats.kinds.len() <= KINDS_MAX);
    }

    #[test]
    fn the_count_stands_in_the_line() {
        assert_eq!(with_count(b"full\n", 7), b"full (7 more like this were not written)\n");
    }
}
