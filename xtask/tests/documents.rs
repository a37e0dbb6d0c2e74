//! The documents lead somewhere, fit on a screen, and stay short where they are to be read in one
//! go.

use std::path::{Path, PathBuf};

/// Lines of documents that are read from top to bottom.
const LINES_MAX: [(&str, usize); 3] = [("README.md", 120), ("ARCHITECTURE.md", 200), ("docs/design/glossary.md", 31)];
/// Columns of prose in the documents by reader. Tables, examples and links cannot always be broken.
const COLUMNS_MAX: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Markdown files below a directory of the repository.
fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let paths = entries.map(|entry| entry.expect("listed").path());
    let files = paths.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn documents() -> Vec<PathBuf> {
    let top = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benches/README.md",
        "vendor/fuser/README.md",
    ];
    top.iter().map(|name| root().join(name)).chain(below(&root().join("docs"))).collect()
}

/// Targets of inline links, and the line of each.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for part in line.split("](").skip(1) {
            found.extend(part.split_once(')').map(|(target, _)| (number + 1, target.to_owned())));
        }
    }
    found
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).any(|anchor| anchor == wanted)
}

#[test]
fn links_lead_somewhere() {
    let mut dangling = Vec::new();
    for path in documents() {
        let text = read(&path);
        for (line, target) in links(&text).into_iter().filter(|(_, target)| !target.contains("://")) {
            let (file, wanted) = target.split_once('#').unwrap_or((&target, ""));
            let there = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            let is_right = there.exists() && (wanted.is_empty() || has_anchor(&read(&there), wanted));
            if !is_right {
                dangling.push(format!("{}:{line}: {target}", path.display()));
            }
        }
    }
    assert!(dangling.is_empty(), "links without a target: {dangling:#?}");
}

#[test]
fn documents_by_reader_fit_on_a_screen() {
    let mut wide = Vec::new();
    let by_reader =
        ["docs/use", "docs/compare", "docs/design", "docs/develop"].map(|dir| below(&root().join(dir))).concat();
    for path in by_reader.into_iter().chain(["README.md", "CHANGELOG.md"].map(|name| root().join(name))) {
        for (number, line) in read(&path).lines().enumerate() {
            let is_exempt = line.starts_with('|') || line.starts_with("    ") || line.contains("](");
            if !is_exempt && line.chars().count() > COLUMNS_MAX {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "lines above {COLUMNS_MAX} columns: {wide:#?}");
}

#[test]
fn what_is_read_in_one_go_stays_short() {
    for (name, max) in LINES_MAX {
        let lines = read(&root().join(name)).lines().count();
        assert!(lines <= max, "{name} has {lines} lines, at most {max}");
    }
}

#[test]
fn links_and_headings_are_told_from_other_text() {
    assert_eq!(links("a [b](c.md) and [d](e#f)\nnone"), [(1, "c.md".to_owned()), (1, "e#f".to_owned())]);
    assert!(has_anchor("# Answer writes early\n", "answer-writes-early"));
    assert!(!has_anchor("Answer writes early\n", "answer-writes-early"));
}
