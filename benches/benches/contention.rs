//! `cargo bench -p benches --bench contention -- --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    benches::contention::main()
}
