//! `cargo bench -p benches --bench datapath -- --daemon FILE`.

use std::process::ExitCode;

fn main() -> ExitCode {
    benches::datapath::main()
}
