//! What is mounted where, and how to get rid of a mount whatever state it is in.

use crate::exec::{self, Interrupt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Type of the file system mounted exactly at `dir`; the last one if several lie over each other.
pub fn kind_at(dir: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = dir.to_string_lossy();
    table
        .lines()
        .filter_map(parse)
        .filter(|(point, _)| *point == *wanted)
        .map(|(_, kind)| kind)
        .next_back()
}

/// Every mount point at or below `dir`, deepest and latest first.
pub fn below(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points: Vec<String> = table.lines().filter_map(parse).map(|(p, _)| p).collect();
    points.retain(|point| Path::new(point).starts_with(dir));
    points.reverse();
    points
}

/// Takes every mount at or below `dir` away: gently, else lazily. A dead FUSE daemon's mount goes
/// too.
pub fn clear(dir: &Path) {
    for point in below(dir) {
        let gentle = exec::run(
            Command::new("umount").arg(&point),
            Duration::from_secs(10),
            &Interrupt::never(),
        );
        if !gentle.is_ok_and(|r| r.ok()) {
            let _ = Command::new("umount").args(["-l", &point]).output();
        }
    }
}

/// Mount point and type of a line of mountinfo.
fn parse(line: &str) -> Option<(String, String)> {
    let (left, right) = line.split_once(" - ")?;
    Some((unescape(left.split(' ').nth(4)?), right.split(' ').next()?.to_owned()))
}

/// Undoes the kernel's octal escapes (`\040` for a space).
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read() {
        let line = r"36 35 98:0 / /mnt/a\040b rw,noatime master:1 - fuse.trefoil 127.0.0.1:7400 rw,errors=continue";
        assert_eq!(parse(line), Some(("/mnt/a b".into(), "fuse.trefoil".into())));
    }

    #[test]
    fn root_is_mounted() {
        assert!(kind_at(Path::new("/")).is_some());
        assert!(kind_at(Path::new("/no such mount")).is_none());
    }
}
