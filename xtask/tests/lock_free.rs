//! docs/design/lock-free.md names every atomic of the programs, and every lock that is no
//! `ContentionMutex`, with the file that it stands in.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Sources under a directory, without those of tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("a directory of sources").path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !is_test {
            found.push(path);
        }
    }
}

/// What a line declares that is or has an atomic: a field, or a type with one inside or as a
/// parameter.
fn declared(line: &str) -> Option<&str> {
    let (before, _) = line.trim().split_once("Atomic")?;
    let public = ["pub(crate) ", "pub(super) ", "pub "]
        .into_iter()
        .find_map(|public| before.strip_prefix(public));
    let rest = public.unwrap_or(before);
    let (named, is_type) =
        rest.strip_prefix("struct ").map_or((rest, false), |named| (named, true));
    let end = named.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let is_field = named[end..].starts_with(": ") && !named[end..].contains('&');
    (end > 0 && (is_type || is_field)).then(|| &named[..end])
}

/// A file's name in the list, and its text up to its tests; for every source.
fn products() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for krate in std::fs::read_dir(root().join("crates")).expect("crates") {
        sources(&krate.expect("a crate").path().join("src"), &mut files);
    }
    let product = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source");
        let product = text.split("\n#[cfg(test)]").next().unwrap_or_default().to_owned();
        (
            path.strip_prefix(root().join("crates")).expect("under crates").display().to_string(),
            product,
        )
    };
    files.into_iter().map(product).collect()
}

fn list() -> String {
    std::fs::read_to_string(root().join("docs/design/lock-free.md")).expect("the list")
}

/// Does a line name a type of lock that counts nothing?
fn names_bare_lock(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words
        .into_iter()
        .any(|word| matches!(word, "Mutex" | "RwLock" | "ReentrantMutex" | "FairMutex" | "Condvar"))
}

#[test]
fn every_lock_without_a_name_is_in_the_list() {
    let list = list();
    let (_, locks) = list.split_once("## Locks without a name").expect("the section");
    let is_listed = |file: &str| locks.contains(&format!("| `{file}` |"));
    let products = products();
    // what only simulates is no program
    let bare = products.iter().filter(|(file, text)| {
        !file.starts_with("simulation/") && text.lines().any(names_bare_lock)
    });
    let bare: Vec<&String> = bare.map(|(file, _)| file).collect();
    let missing: Vec<_> = bare.iter().filter(|file| !is_listed(file)).collect();
    assert!(
        missing.is_empty(),
        "make these a ContentionMutex, or give a reason in docs/design/lock-free.md: {missing:#?}"
    );
    let rows = locks.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(
        rows,
        bare.len(),
        "the list has files without such a lock; these have one: {bare:#?}"
    );
}

#[test]
fn bare_locks_are_told_from_others() {
    let bare = [
        "    state: RwLock<State>,",
        "use parking_lot::Mutex;",
        "    inner: parking_lot::Mutex<T>,",
    ];
    assert!(bare.into_iter().all(names_bare_lock));
    let others =
        ["    map: ContentionMutex<Map>,", "/// Not a Mutex.", "fn f() -> MutexGuard<'_, T> {"];
    assert!(!others.into_iter().any(names_bare_lock));
}

#[test]
fn every_atomic_is_in_the_list() {
    let list = list();
    let (mut count, mut missing) = (0, Vec::new());
    for (file, product) in products() {
        // A row, or a paragraph.
        let of_file: Vec<&str> = list
            .split("\n\n")
            .flat_map(
                |part| if part.starts_with('|') { part.lines().collect() } else { vec![part] },
            )
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
    assert!(missing.is_empty(), "not in docs/design/lock-free.md: {missing:#?}");
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
        ("pub(crate) struct SleepFlag<F = AtomicBool> {", Some("SleepFlag")),
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
