//! `cargo bench -p benches --bench overhead -- --daemon FILE`.

use std::process::ExitCode;

fn main() -> ExitCode {
    benches::overhead::main()
}
