//! The documents as a book: `docs/SUMMARY.md` is its table of contents, `book.toml` its settings.
//!
//! Pages lead to files outside `docs`, such as reports of benchmarks, and a book has only what lies
//! in one directory: so the book is made of a copy that has those, too, below the same paths.

use crate::error::{Context, Outcome};
use crate::exec::{self, Interrupt};
use crate::testrun::setup;
use crate::workspace::{self, Profile};
use clap::Args;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
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
        let out = exec::run_ok(
            Command::new(programs.join(program)).arg(arg),
            Duration::from_secs(10),
            interrupt,
        )?;
        std::fs::write(workspace::root().join(page), out.stdout)
            .doing(|| format!("cannot write {page}"))?;
        println!("{page}");
    }
    Ok(())
}

fn build(interrupt: &Interrupt) -> Outcome {
    let target = workspace::target_dir(interrupt)?;
    let tools = target.join("tools");
    setup::mdbook(&tools, interrupt)?;
    let (source, book) = (target.join("book-source"), target.join("book"));
    gather(workspace::root(), &source)?;
    let mut command = Command::new(tools.join("bin/mdbook"));
    command
        .current_dir(&source)
        .env("MDBOOK_BOOK__SRC", ".")
        .args(["build", "--dest-dir"])
        .arg(&book);
    exec::run_visible(&mut command, Duration::from_secs(120), interrupt)?;
    println!("{}", book.join("index.html").display());
    Ok(())
}

/// Copies what the book is made of, and writes its table of contents: that of the documents, then
/// the pages beside them.
fn gather(root: &Path, source: &Path) -> Outcome {
    if source.exists() {
        std::fs::remove_dir_all(source).doing(|| format!("cannot remove {}", source.display()))?;
    }
    let is_page = |path: &PathBuf| path.extension() == Some(OsStr::new("md"));
    let top =
        entries(root)?.into_iter().filter(|path| is_page(path) && !path.ends_with("README.md"));
    let top: Vec<PathBuf> = top.collect();
    let (reports, data): (Vec<_>, Vec<_>) =
        below(&root.join("benches/runs"))?.into_iter().partition(is_page);
    let single = ["README.md", "benches/README.md", "book.toml"].map(|name| root.join(name));
    let all = below(&root.join("docs"))?.into_iter().chain(data).chain(single.clone());
    for path in all.chain(top.iter().cloned()).chain(reports.iter().cloned()) {
        let to = source.join(path.strip_prefix(root).doing(|| "a path outside of the repository")?);
        let dir = to.parent().unwrap_or(source);
        std::fs::create_dir_all(dir).doing(|| format!("cannot make {}", dir.display()))?;
        std::fs::copy(&path, &to).doing(|| format!("cannot copy {}", path.display()))?;
    }
    let contents = root.join("docs/SUMMARY.md");
    let contents = std::fs::read_to_string(&contents)
        .doing(|| format!("cannot read {}", contents.display()))?;
    // The first page is also the book's `index.html`, so it must stand where that does.
    let first = "[Trefoil](docs/README.md)";
    let mut summary = contents.replace("](", "](docs/");
    summary = summary.replace(first, "[Trefoil](README.md)\n\n[By reader](docs/README.md)");
    let more = top.into_iter().chain([single[1].clone()]).collect::<Vec<_>>();
    for (title, pages) in [("The repository", more), ("Reports", reports)] {
        let _ = write!(summary, "\n# {title}\n\n");
        for page in pages {
            let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
            let _ = writeln!(summary, "* [{}]({name})", name.trim_start_matches("benches/runs/"));
        }
    }
    std::fs::remove_file(source.join("docs/SUMMARY.md"))
        .doing(|| "cannot replace the table of contents")?;
    std::fs::write(source.join("SUMMARY.md"), summary)
        .doing(|| "cannot write the table of contents")
}

/// What lies in a directory, in order.
fn entries(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let listed = std::fs::read_dir(dir).doing(|| format!("cannot list {}", dir.display()))?;
    let paths: Result<Vec<_>, _> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.doing(|| format!("cannot list {}", dir.display()))?;
    paths.sort();
    Ok(paths)
}

/// All files below a directory, in order.
fn below(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in entries(dir)? {
        if path.is_dir() {
            files.extend(below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
