//! The page of the documents that lists every setting: `docs/use/configuration.md`.
//!
//! Contract: the page is made from the table of settings alone, so that it cannot differ from
//! `--help` and `trefoil config show`. A test here compares it with the file in the repository;
//! `cargo xtask docs --renew` writes that file.

use super::Settings;
use crate::osd::live::LIVE_KEYS;
use std::fmt::Write as _;

/// Titles of the page's parts, each with the first key of its part. Every part goes on to the next.
const PARTS: [(&str, &str); 9] = [
    ("The process and its addresses", "data_dir"),
    ("A new cluster", "osd_count"),
    ("Threads and connections", "osd_op_threads"),
    ("Failure detection", "osd_heartbeat_grace_ms"),
    ("Journal and metadata", "journal_sync_interval_ms"),
    ("Full disks", "mon_osd_nearfull_ratio"),
    ("For measuring only", "osd_objectstore"),
    ("Telemetry", "http_listen"),
    ("Scrub, recovery, log", "osd_scrub_min_interval_s"),
];

const HEAD: &str = "\
# Configuration

<!-- Generated from the table of settings (crates/osd-daemon/src/config.rs).
     Do not edit; `cargo xtask docs --renew` writes it. -->

Settings of `osd-daemon`, which runs the monitor, the metadata service and storage daemons. The same
set of keys holds for all roles; a role ignores what is not its own. Each key is

* a line of the TOML file given with `--config FILE`: `osd_id = 1`,
* an environment variable, with `TREFOIL_` before it: `TREFOIL_OSD_ID=1`,
* a flag, with `-` for `_`: `--osd-id 1`.

A flag wins over the environment, the environment over the file, the file over the default. An
unknown key is an error that names the nearest known one. `trefoil config show TARGET` tells what a
running daemon has; keys marked **live** can be changed in a running storage daemon with `trefoil
config set osd.N KEY VALUE`, until it stops (`log`: in any role). Options of mounts have a
[page of their own](mount-options.md).
";

/// The whole page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (&(key, help), rust_type) in Settings::HELP.iter().zip(Settings::TYPES) {
        if let Some((title, _)) = PARTS.iter().find(|(_, first)| *first == key) {
            let _ = write!(
                page,
                "\n## {title}\n\n| key | type | default | what it is |\n|---|---|---|---|\n"
            );
        }
        let (text, default) = split_default(help);
        let is_live = LIVE_KEYS.contains(&key) || key == "log";
        let live = if is_live { " **live**" } else { "" };
        let _ = writeln!(
            page,
            "| `{key}`{live} | {} | {} | {} |",
            toml_type(rust_type),
            cell(default),
            cell(text)
        );
    }
    page
}

/// A help text, and the default in brackets at its end.
pub(crate) fn split_default(help: &str) -> (&str, &str) {
    match help.split_once("[default: ") {
        Some((text, default)) => (text.trim(), default.trim_end_matches([' ', ']'])),
        None => (help.trim(), ""),
    }
}

/// Text that can stand in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// What a value is called in TOML.
fn toml_type(rust_type: &str) -> &'static str {
    match rust_type {
        "bool" => "boolean",
        "f64" => "float",
        "u8" | "u16" | "u32" | "u64" => "integer",
        "SocketAddr" => "string, IP:PORT",
        "HostPort" => "string, HOST:PORT",
        "PathBuf" => "string, path",
        "String" => "string",
        "Vec<Role>" => "list of strings",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, Command};
    use std::path::Path;

    #[test]
    fn the_page_of_the_documents_is_what_the_table_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/use/configuration.md");
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        let (new, old) = (page(), there.lines().collect::<Vec<_>>());
        let stale = new.lines().enumerate().find(|(number, line)| old.get(*number) != Some(line));
        assert!(
            new == there,
            "docs/use/configuration.md is stale, first in {stale:?}: `cargo xtask docs --renew` writes it"
        );
    }

    /// The page says so of all of them.
    #[test]
    fn every_key_is_a_flag_and_a_variable_of_its_name() {
        let command = Settings::augment_args(Command::new("osd-daemon"));
        let words = |arg: &clap::Arg| {
            let env = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            (
                arg.get_id().to_string(),
                arg.get_long().unwrap_or_default().to_owned(),
                env.unwrap_or_default(),
            )
        };
        let told: Vec<_> = command.get_arguments().map(words).collect();
        let named = |key: &&str| {
            (key.to_string(), key.replace('_', "-"), format!("TREFOIL_{}", key.to_uppercase()))
        };
        assert_eq!(told, Settings::KEYS.iter().map(named).collect::<Vec<_>>());
    }

    #[test]
    fn every_type_has_a_name() {
        let unnamed = Settings::TYPES.iter().find(|name| toml_type(name).is_empty());
        assert_eq!(unnamed, None, "what is it called in TOML?");
    }

    #[test]
    fn every_part_begins_at_a_key_that_there_is() {
        let starts = PARTS.map(|(_, key)| Settings::KEYS.iter().position(|known| *known == key));
        assert!(
            starts[0] == Some(0) && starts.is_sorted() && !starts.contains(&None),
            "{starts:?}"
        );
    }
}
