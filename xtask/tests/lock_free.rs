//! docs/lock-free.md names every atomic of the programs, with the file that it stands in.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Sources under a directory, without those of tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("a directory of sources").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && path.file_name().is_some_and(|name| name != "tests.rs")
        {
            found.push(path);
        }
    }
}

/// What a line declares that is or has an atomic: a field, or a type with one inside or as a parameter.
fn declared(line: &str) -> Option<&str> {
    let (before, _) = line.trim().split_once("Atomic")?;
    let public = ["pub(crate) ", "pub(super) ", "pub "].into_iter().find_map(|public| before.strip_prefix(public));
    let rest = public.unwrap_or(before);
    let (named, is_type) = rest.strip_prefix("struct ").map_or((rest, false), |named| (named, true));
    let end = named.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let is_field = named[end..].starts_with(": ") && !named[end..].contains('&');
    (end > 0 && (is_type || is_field)).then(|| &named[..end])
}

#[test]
fn every_atomic_is_in_the_list() {
    let list = std::fs::read_to_string(root().join("docs/lock-free.md")).expect("the list");
    let (mut files, mut count, mut missing) = (Vec::new(), 0, Vec::new());
    for krate in std::fs::read_dir(root().join("crates")).expect("crates") {
        sources(&krate.expect("a crate").path().join("src"), &mut files);
    }
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a source");
        let product = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        let file = path.strip_prefix(root().join("crates")).expect("under crates").display().to_string();
        // A row, or a paragraph.
        let of_file: Vec<&str> = list
            .split("\n\n")
            .flat_map(|part| if part.starts_with('|') { part.lines().collect() } else { vec![part] })
            .filter(|entry| entry.contains(&format!("`{file}`")))
            .collect();
        for name in product.lines().filter_map(declared) {
            count += 1;
            if !of_file.iter().any(|entry| entry.contains(&format!("`{name}`"))) {
                missing.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(count > 50, "only {count} atomics found: does this look at the right lines?");
    assert!(missing.is_empty(), "not in docs/lock-free.md: {missing:#?}");
}

#[test]
fn declarations_are_told_from_uses() {
    let lines = [
        ("    closed: AtomicBool,", Some("closed")),
        ("    pub(crate) generation: AtomicU64,", Some("generation")),
        ("    pub cancel: Arc<AtomicBool>,", Some("cancel")),
        ("    slots: Box<[AtomicUsize]>,", Some("slots")),
        ("    placed_at: (AtomicU64, AtomicU64),", Some("placed_at")),
        ("pub(crate) struct Counter(AtomicU64);", Some("Counter")),
        ("pub(crate) struct Doze<F = AtomicBool> {", Some("Doze")),
        ("use std::sync::atomic::{AtomicBool, Ordering};", None),
        ("            closed: AtomicBool::new(false),", Some("closed")),
        ("impl Flag for AtomicBool {", None),
        ("        AtomicBool::swap(self, value, order)", None),
        ("fn bump(counter: &AtomicU64, by: u64) {", None),
        ("        let stopping = Arc::new(AtomicBool::new(false));", None),
    ];
    for (line, name) in lines {
        assert_eq!(declared(line), name, "{line}");
    }
}
