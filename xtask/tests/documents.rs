//! The documents lead somewhere, fit on a screen, stay short where they are to be read in one go,
//! and all stand in the book's table of contents. That the pages of settings are what the programs
//! say is tested beside the programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Lines of documents that are read from top to bottom.
const LINES_MAX: [(&str, usize); 3] =
    [("README.md", 120), ("ARCHITECTURE.md", 200), ("docs/design/glossary.md", 31)];
/// Columns of prose in the documents by reader. Tables, examples and links cannot always be broken.
const COLUMNS_MAX: usize = 100;
/// Lines of any page.
const PAGE_LINES_MAX: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below a directory of the repository that end so.
fn files_below(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let paths =
        entries.map(|entry| entry.expect("listed").path()).filter(|path| !path.ends_with("target"));
    let files = paths
        .flat_map(|path| if path.is_dir() { files_below(&path, extension) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Markdown files below a directory of the repository.
fn below(dir: &Path) -> Vec<PathBuf> {
    files_below(dir, "md")
}

/// Documents at the top of the repository.
const TOP: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "RELEASE.md",
];

fn documents() -> Vec<PathBuf> {
    let others = ["benches/README.md", "vendor/fuser/README.md"];
    TOP.iter()
        .chain(&others)
        .map(|name| root().join(name))
        .chain(below(&root().join("docs")))
        .collect()
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
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>();
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
        for (line, target) in links(&text).into_iter().filter(|(_, target)| !target.contains("://"))
        {
            let (file, wanted) = target.split_once('#').unwrap_or((&target, ""));
            let there =
                if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            let is_right =
                there.exists() && (wanted.is_empty() || has_anchor(&read(&there), wanted));
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
    let by_reader = ["docs/use", "docs/compare", "docs/design", "docs/develop"]
        .map(|dir| below(&root().join(dir)))
        .concat();
    for path in by_reader.into_iter().chain(TOP.map(|name| root().join(name))) {
        for (number, line) in read(&path).lines().enumerate() {
            let is_exempt =
                line.starts_with('|') || line.starts_with("    ") || line.contains("](");
            if !is_exempt && line.chars().count() > COLUMNS_MAX {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "lines above {COLUMNS_MAX} columns: {wide:#?}");
}

/// Code is held to the same width by rustfmt, but for what it cannot break: words in quotes.
#[test]
fn comments_fit_on_a_screen() {
    let formatting = read(&root().join("rustfmt.toml"));
    assert!(formatting.contains(&format!("max_width = {COLUMNS_MAX}")), "{formatting}");
    let mut wide = Vec::new();
    for path in
        ["crates", "xtask", "benches"].map(|dir| files_below(&root().join(dir), "rs")).concat()
    {
        let mut is_example = false;
        for (number, line) in read(&path).lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let text = comment.trim_start_matches(['/', '!']);
            is_example ^= text.trim_start().starts_with("```");
            let is_exempt = is_example || text.starts_with(" |") || text.starts_with("     ");
            if !is_exempt && line.chars().count() > COLUMNS_MAX {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "comments above {COLUMNS_MAX} columns: {wide:#?}");
}

#[test]
fn what_is_read_in_one_go_stays_short() {
    for (name, max) in LINES_MAX {
        let lines = read(&root().join(name)).lines().count();
        assert!(lines <= max, "{name} has {lines} lines, at most {max}");
    }
}

#[test]
fn no_page_is_too_long_for_one_subject() {
    for path in below(&root().join("docs")) {
        let lines = read(&path).lines().count();
        assert!(
            lines <= PAGE_LINES_MAX,
            "{} has {lines} lines, at most {PAGE_LINES_MAX}",
            path.display()
        );
    }
}

#[test]
fn the_book_has_every_page_once() {
    let docs = root().join("docs");
    let listed: Vec<PathBuf> = links(&read(&docs.join("SUMMARY.md")))
        .into_iter()
        .map(|(_, target)| docs.join(target))
        .collect();
    let pages: BTreeSet<PathBuf> =
        below(&docs).into_iter().filter(|path| !path.ends_with("SUMMARY.md")).collect();
    let once: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "docs/SUMMARY.md lists a page twice");
    let missing: Vec<_> = pages.difference(&once).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:#?}");
}

#[test]
fn decisions_are_numbered_without_a_gap() {
    let mut pages = below(&root().join("docs/design/decisions"));
    pages.retain(|path| !path.ends_with("README.md"));
    pages.sort();
    assert!(pages.len() > 100, "only {} decisions were found", pages.len());
    for (path, number) in pages.iter().zip(1..) {
        let number = format!("{number:04}");
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        assert!(name.starts_with(&format!("{number}-")), "{name} is not number {number}");
        let text = read(path);
        assert!(text.starts_with(&format!("# {number} ")), "{name} does not begin with its number");
        assert!(text.len() > 100, "{name} says nothing");
    }
}

/// Words of a text that are paths of this repository: from its root, and without anything that
/// stands for several files or for a name to be filled in.
fn paths_named(text: &str) -> Vec<&str> {
    const TOPS: [&str; 7] = ["docs/", "crates/", "xtask/", "benches/", "vendor/", "fuzz/", ".ci/"];
    let is_path = |c: char| c.is_alphanumeric() || "/_-.{}*<>,:$".contains(c);
    let words = text.split(|c| !is_path(c)).map(|word| word.trim_end_matches(['.', ',', ':']));
    words
        .filter(|word| {
            TOPS.iter().any(|top| word.starts_with(top))
                && !word.contains(['{', '*', '<', ':', '$'])
        })
        .collect()
}

#[test]
fn files_named_in_documents_and_comments_are_there() {
    let mut missing = BTreeSet::new();
    let by_reader = documents().into_iter().filter(|path| !path.ends_with("CHANGELOG.md"));
    for path in by_reader {
        let text = read(&path);
        let gone = paths_named(&text).into_iter().filter(|name| !root().join(name).exists());
        missing.extend(gone.map(|name| format!("{}: {name}", path.display())));
    }
    let code =
        ["crates", "xtask", "benches"].map(|dir| files_below(&root().join(dir), "rs")).concat();
    assert!(code.len() > 300, "only {} files of code were found", code.len());
    for path in code {
        let text = read(&path);
        let documents = paths_named(&text)
            .into_iter()
            .filter(|name| name.starts_with("docs/") && name.ends_with(".md"));
        missing.extend(
            documents
                .filter(|name| !root().join(name).exists())
                .map(|name| format!("{}: {name}", path.display())),
        );
    }
    assert!(missing.is_empty(), "named, and not in the repository: {missing:#?}");
}

/// The rules of the protocol as the code has them: name and what it demands.
fn rules(code: &str) -> Vec<(String, String)> {
    let (_, list) = code.split_once("rules! {\n").expect("the list of rules");
    let mut rules = Vec::new();
    let mut text = String::new();
    for line in list.lines().map(str::trim).take_while(|line| *line != "}") {
        match line.strip_prefix("///") {
            Some(words) => text = format!("{text} {}", words.trim()),
            None => rules.push((
                line.trim_end_matches(',').to_owned(),
                std::mem::take(&mut text).trim().to_owned(),
            )),
        }
    }
    rules
}

#[test]
fn every_rule_of_the_protocol_is_told() {
    let page = read(&root().join("docs/design/rules.md"));
    let rules = rules(&read(&root().join("crates/protocol/src/rules.rs")));
    assert!(rules.len() > 60, "only {} rules were found", rules.len());
    for (name, text) in &rules {
        let row = format!("| `{name}` | {text} | ");
        assert!(page.contains(&row), "docs/design/rules.md lacks the row: {row}");
    }
    assert_eq!(
        page.matches("\n| `").count(),
        rules.len(),
        "docs/design/rules.md has rules that are not in the code"
    );
}

#[test]
fn every_code_of_health_is_told() {
    let code = read(&root().join("crates/protocol/src/health.rs"));
    let (_, list) = code.split_once("health_codes! {\n").expect("the list of codes");
    let words = list.lines().filter_map(|line| line.split_once(" = \"")?.1.split_once("\":"));
    let words: BTreeSet<&str> = words.map(|(word, _)| word).collect();
    assert!(words.len() > 15, "only {} codes were found", words.len());
    let page = read(&root().join("docs/use/health.md"));
    let told: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(told, words, "sections of docs/use/health.md, and codes");
}

/// Words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A name at the beginning of a text.
fn name(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_lowercase() && c != '_' && c != '-').next().unwrap_or_default()
}

/// Settings that were renamed or dropped would live on in pages that nobody reads again.
#[test]
fn settings_and_options_named_in_documents_exist() {
    const PREFIXES: [&str; 9] =
        ["osd_", "ms_", "mon_", "mds_", "journal_", "fragment_", "pool_", "memstore_", "session_"];
    // What a user mistypes, in troubleshooting. (A name that ends in `_` is that of a family.)
    const MISSPELT: &str = "osd_cuont";
    let settings = read(&root().join("docs/use/configuration.md"));
    let options = read(&root().join("docs/use/mount-options.md"));
    let mut unknown = BTreeSet::new();
    let mut seen = 0;
    for path in documents() {
        let text = read(&path);
        for word in quoted(&text) {
            let is_there = match word.strip_prefix("mount.") {
                Some(option) if !name(option).is_empty() && !word.starts_with("mount.fuse") => {
                    options.contains(&format!("| `--{}` |", name(option).replace('_', "-")))
                }
                None if PREFIXES.iter().any(|prefix| word.starts_with(prefix))
                    && name(word) != MISSPELT
                    && !name(word).ends_with('_') =>
                {
                    settings.contains(&format!("| `{}`", name(word)))
                }
                _ => continue,
            };
            seen += 1;
            if !is_there {
                unknown.insert(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(seen > 100, "only {seen} settings were found");
    assert!(unknown.is_empty(), "no such setting or option: {unknown:#?}");
}

#[test]
fn commands_named_in_documents_exist() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("--help")
        .output()
        .expect("xtask runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let known: BTreeSet<&str> =
        help.lines().filter_map(|line| line.strip_prefix("  ")).map(name).collect();
    let mut unknown = BTreeSet::new();
    for path in documents() {
        let text = read(&path);
        let words = text.split("cargo xtask ").skip(1).map(name).filter(|word| !word.is_empty());
        let gone = words.filter(|word| !known.contains(word));
        unknown.extend(gone.map(|word| format!("{}: cargo xtask {word}", path.display())));
    }
    assert!(known.contains("test") && known.contains("docs"), "{help}");
    assert!(unknown.is_empty(), "no such command: {unknown:#?}");
}

#[test]
fn paths_are_told_from_other_words() {
    let text = "see `docs/use/limits.md`, crates/ec-store/src/pg/{mod,log}.rs and benches/runs/<date>-<name>/.";
    assert_eq!(paths_named(text), ["docs/use/limits.md"]);
}

#[test]
fn links_and_headings_are_told_from_other_text() {
    assert_eq!(
        links("a [b](c.md) and [d](e#f)\nnone"),
        [(1, "c.md".to_owned()), (1, "e#f".to_owned())]
    );
    assert!(has_anchor("# Answer writes early\n", "answer-writes-early"));
    assert!(!has_anchor("Answer writes early\n", "answer-writes-early"));
}
