//! `cargo bench -p benches --bench classes -- --daemon FILE`.

use std::process::ExitCode;

fn main() -> ExitCode {
    benches::classes::main()
}
