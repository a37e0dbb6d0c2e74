//! The layers of ARCHITECTURE.md, held by a test: an arrow between crates never points up the list.

use std::process::Command;

/// From the ground up. Tools stand beside the layers and may use any.
const LAYERS: [&str; 14] = [
    "placement",
    "protocol",
    "consensus",
    "messenger",
    "logging",
    "ec-store",
    "consensus-log",
    "cluster",
    "metadata",
    "client",
    "volume",
    "osd-daemon",
    "fuse-client",
    "trefoil",
];
/// Binaries: nothing of ours may depend on them, but for their own tests.
const BINARIES: [&str; 3] = ["osd-daemon", "fuse-client", "trefoil"];
/// Crates that must not know another, though it lies below them.
const FORBIDDEN: [(&str, &str); 8] = [
    ("protocol", "placement"),
    ("consensus", "placement"),
    ("ec-store", "cluster"),
    ("cluster", "ec-store"),
    ("metadata", "ec-store"),
    ("metadata", "cluster"),
    ("fuse-client", "ec-store"),
    ("fuse-client", "cluster"),
];

fn edges() -> Vec<(String, String)> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let of = |package: &serde_json::Value| -> Vec<(String, String)> {
        let from = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let normal = dependencies.iter().filter(|d| d["kind"].is_null());
        normal
            .map(|d| (from.to_owned(), d["name"].as_str().unwrap_or_default().to_owned()))
            .collect()
    };
    packages.iter().flat_map(of).collect()
}

/// Does cargo build the protocol with switches for its rules, asked for these packages?
fn has_switches(args: &[&str]) -> bool {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--prefix", "none", "--format", "{p} [{f}]"])
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo tree: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let mut lines = text.lines().filter(|line| line.starts_with("protocol v")).peekable();
    assert!(
        lines.peek().is_some(),
        "{args:?} is not built with the protocol: does this look at the right names?"
    );
    lines.any(|line| line.contains("rule-switches"))
}

/// A build of the whole workspace turns features on for all that is built with it.
#[test]
fn no_program_can_turn_rules_of_the_protocol_off() {
    for program in BINARIES {
        assert!(
            !has_switches(&["--package", program]),
            "{program} has switches for the protocol's rules"
        );
    }
    assert!(!has_switches(&["--workspace"]), "a build of the workspace has the switches");
    assert!(
        has_switches(&["--package", "simulation", "--features", "switches"]),
        "the simulator has none"
    );
}

#[test]
fn arrows_never_point_up() {
    let layer = |name: &str| LAYERS.iter().position(|&l| l == name);
    let edges = edges();
    let ours = edges.iter().filter_map(|(from, to)| Some((from, to, layer(from)?, layer(to)?)));
    let mut seen = 0;
    for (from, to, upper, lower) in ours {
        seen += 1;
        assert!(lower < upper, "{from} depends on {to}, which lies above it");
        assert!(!BINARIES.contains(&to.as_str()), "{from} depends on the binary {to}");
        assert!(
            !FORBIDDEN.contains(&(from.as_str(), to.as_str())),
            "{from} must know nothing of {to}"
        );
    }
    assert!(
        seen > 10,
        "only {seen} edges between the layers were seen: is the test looking at the right workspace?"
    );
}
