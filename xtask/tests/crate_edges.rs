//! The layers of ARCHITECTURE.md, held by a test: an arrow between crates never points up the list.

use std::process::Command;

/// From the ground up. Tools stand beside the layers and may use any.
const LAYERS: [&str; 10] = [
    "placement",
    "protocol",
    "messenger",
    "ec-store",
    "cluster",
    "metadata",
    "client",
    "osd-daemon",
    "fuse-client",
    "trefoil",
];
/// Binaries: nothing of ours may depend on them, but for their own tests.
const BINARIES: [&str; 3] = ["osd-daemon", "fuse-client", "trefoil"];
/// Crates that must not know another, though it lies below them.
const FORBIDDEN: [(&str, &str); 7] = [
    ("protocol", "placement"),
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
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let of = |package: &serde_json::Value| -> Vec<(String, String)> {
        let from = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let normal = dependencies.iter().filter(|d| d["kind"].is_null());
        normal.map(|d| (from.to_owned(), d["name"].as_str().unwrap_or_default().to_owned())).collect()
    };
    packages.iter().flat_map(of).collect()
}

/// What cargo would build of a package, with the features that it turns on.
fn features(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal,features", "--prefix", "none"])
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo tree: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A build of the whole workspace turns features on for all that is built with it.
#[test]
fn no_program_can_turn_rules_of_the_protocol_off() {
    let switch = "protocol feature \"rule-switches\"";
    for program in BINARIES {
        assert!(!features(&["--package", program]).contains(switch), "{program} has switches for the protocol's rules");
    }
    assert!(!features(&["--workspace"]).contains(switch), "a build of the workspace has the switches");
    let with = features(&["--package", "simulation", "--features", "switches"]);
    assert!(with.contains(switch), "the simulator has none: does this test look for the right words?");
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
        assert!(!FORBIDDEN.contains(&(from.as_str(), to.as_str())), "{from} must know nothing of {to}");
    }
    assert!(seen > 10, "only {seen} edges between the layers were seen: is the test looking at the right workspace?");
}
