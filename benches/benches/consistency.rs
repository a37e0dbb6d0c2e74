//! `cargo bench -p benches --bench consistency -- --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    benches::consistency::main()
}
