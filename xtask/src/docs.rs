//! The documents as a book: `docs/SUMMARY.md` is its table of contents, `book.toml` its settings.

use crate::error::{Context, Outcome};
use crate::exec::{self, Interrupt};
use crate::testrun::setup;
use crate::workspace::{self, Profile};
use clap::Args;
use std::process::Command;
use std::time::Duration;

/// Pages that a program prints from its own tables: which, the program, and with what it does.
const GENERATED: [(&str, &str, &str); 2] = [
    ("docs/use/configuration.md", "osd-daemon", "--markdown-settings"),
    ("docs/use/mount-options.md", "fuse-client", "markdown-options"),
];

/// What to do with the documents.
#[derive(Args, Debug)]
pub struct DocsArgs {
    /// Write the pages that are generated from tables of settings anew, and build no book
    #[arg(long)]
    renew: bool,
}

/// Builds the book, or renews what is generated.
///
/// # Errors
/// When a program cannot be built, or mdBook finds the book wrong.
pub fn run(args: &DocsArgs, interrupt: &Interrupt) -> Outcome {
    if args.renew { renew(interrupt) } else { build(interrupt) }
}

fn renew(interrupt: &Interrupt) -> Outcome {
    let programs = workspace::build(Profile::Dev, interrupt)?;
    for (page, program, arg) in GENERATED {
        let out = exec::run_ok(Command::new(programs.join(program)).arg(arg), Duration::from_secs(10), interrupt)?;
        std::fs::write(workspace::root().join(page), out.stdout).doing(|| format!("cannot write {page}"))?;
        println!("{page}");
    }
    Ok(())
}

fn build(interrupt: &Interrupt) -> Outcome {
    let target = workspace::target_dir(interrupt)?;
    let tools = target.join("tools");
    setup::mdbook(&tools, interrupt)?;
    let book = target.join("book");
    let mut command = Command::new(tools.join("bin/mdbook"));
    command.current_dir(workspace::root()).args(["build", "--dest-dir"]).arg(&book);
    exec::run_visible(&mut command, Duration::from_secs(120), interrupt)?;
    println!("{}", book.join("index.html").display());
    Ok(())
}
