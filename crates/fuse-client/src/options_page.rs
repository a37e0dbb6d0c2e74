//! The page of the documents that lists every option of a mount: `docs/use/mount-options.md`.
//!
//! Contract: made from the command line's own definition, so that it cannot differ from `--help`. A
//! test here compares it with the file in the repository; `cargo xtask docs --renew` writes that.

use crate::cli;
use std::fmt::Write as _;

const HEAD: &str = "\
# Mount options

<!-- Generated from the command line (crates/fuse-client/src/cli.rs).
     Do not edit; `cargo xtask docs --renew` writes it. -->

Options of `fuse-client mount ADDRESS DIR`. Where a row names a variable, the option can be given in
three ways: as the flag, as that environment variable, and in `-o` and `/etc/fstab` by the flag's
name with `_` for `-` (`-o read_policy=fastest`). A flag wins over `-o`. What the options promise
and cost is in [mounting](mounting.md).

| flag | variable | default | what it is |
|---|---|---|---|
";

/// The whole page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for arg in cli::mount_command().get_arguments() {
        let Some(flag) = arg
            .get_long()
            .map(|long| format!("--{long}"))
            .or(arg.get_short().map(|s| format!("-{s}")))
        else {
            continue;
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (text, default) = match help.split_once("[default: ") {
            Some((text, default)) => (text.trim(), default.trim_end_matches([' ', ']'])),
            None => (help.trim(), ""),
        };
        let env =
            arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let _ = writeln!(page, "| `{flag}` | {env} | {} | {} |", cell(default), cell(text));
    }
    page
}

/// Text that can stand in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::page;
    use std::path::Path;

    #[test]
    fn the_page_of_the_documents_is_what_the_command_line_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/use/mount-options.md");
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page() == there,
            "docs/use/mount-options.md is stale: `cargo xtask docs --renew` writes it"
        );
    }
}
