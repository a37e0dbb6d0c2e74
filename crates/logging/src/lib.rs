//! The log of a process: on standard error or in a file, with repeated lines counted.
//!
//! What it is: the writer that a process gives to `tracing_subscriber`. What it is not: a choice of
//! what is logged, or in which form.
//!
//! [`CountedLog`]: the writer. `file`: a log file that keeps to a bound.
#![forbid(unsafe_code)]

mod file;
mod repeats;

pub use file::{FILE_BYTES_MAX, older};
pub use repeats::{CountedLog, LineWriter};
