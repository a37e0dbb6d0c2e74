//! SQLite on the mount: both journals, several writers, a writer killed.

use super::Bench;
use super::report::Report;
use super::rig::{Rig, background};
use crate::error::{Context, Outcome, ensure, fail};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Processes that write to one database.
const WRITERS: usize = 4;

/// All tests with one kind of journal, then with the other.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, rig: &Rig, area: &str, report: &mut Report) -> Outcome {
    for (title, journal) in [("WAL", "wal"), ("rollback journal", "delete")] {
        for (name, test) in [
            (
                format!("{title}: {WRITERS} writers at once"),
                concurrent as fn(&Bench, &Path, &Path, &str) -> Outcome,
            ),
            (format!("{title}: a writer killed"), killed),
        ] {
            if report.wants_test("sqlite", &name) {
                report.case("sqlite", &name, || {
                    let area = rig.area(bench, &format!("sqlite-{area}-{journal}"))?;
                    let scratch = rig.scratch("sqlite")?;
                    test(bench, &area.join("db"), &scratch, journal)
                })?;
            }
        }
    }
    Ok(())
}

fn sqlite(db: &Path, script: &Path) -> Command {
    let mut command = Command::new("sqlite3");
    command
        .args(["-batch", "-bail", "-init", "/dev/null"])
        .arg(db)
        .arg(format!(".read {}", script.display()));
    command
}

/// Runs SQL to its end and returns what it prints.
fn query(bench: &Bench, db: &Path, scratch: &Path, sql: &str) -> Outcome<String> {
    let script = scratch.join("query.sql");
    std::fs::write(&script, format!(".timeout 30000\n{sql}\n"))
        .doing(|| "cannot write a script")?;
    Ok(bench.run(&mut sqlite(db, &script), 120)?.stdout)
}

fn make(bench: &Bench, db: &Path, scratch: &Path, journal: &str) -> Outcome {
    let sql = format!(
        "PRAGMA journal_mode={journal};\nPRAGMA synchronous=FULL;\n\
         CREATE TABLE t(writer INT, n INT, body BLOB, UNIQUE(writer, n));\nCREATE INDEX i ON t(body);"
    );
    let said = query(bench, db, scratch, &sql)?;
    ensure!(said.trim().starts_with(journal), "journal_mode={journal} is refused: {said}");
    Ok(())
}

/// Transactions of one writer; each says its number once it is committed.
fn transactions(writer: usize, count: usize) -> String {
    let mut sql = ".timeout 60000\nPRAGMA synchronous=FULL;\n".to_owned();
    for n in 1..=count {
        writeln!(
            sql,
            "BEGIN IMMEDIATE;\nINSERT INTO t VALUES({writer}, {n}, randomblob({}));\n\
             UPDATE t SET body = randomblob(40) WHERE writer = {writer} AND n = {n} / 2;\nCOMMIT;\nSELECT {n};",
            100 + n * 37 % 3_000
        )
        .expect("a string takes everything");
    }
    sql
}

fn integrity(bench: &Bench, db: &Path, scratch: &Path) -> Outcome {
    let said = query(bench, db, scratch, "PRAGMA integrity_check;")?;
    ensure!(said.trim() == "ok", "integrity_check: {said}");
    Ok(())
}

fn concurrent(bench: &Bench, db: &Path, scratch: &Path, journal: &str) -> Outcome {
    make(bench, db, scratch, journal)?;
    let count = bench.size(60, 15);
    let mut running = Vec::new();
    for writer in 0..WRITERS {
        let script = scratch.join(format!("writer-{writer}.sql"));
        std::fs::write(&script, transactions(writer, count)).doing(|| "cannot write a script")?;
        running.push(background(
            &mut sqlite(db, &script),
            &scratch.join(format!("writer-{writer}.out")),
        )?);
    }
    for writer in running {
        writer.finish(bench, 150)?;
    }
    integrity(bench, db, scratch)?;
    let found =
        query(bench, db, scratch, "SELECT count(*), count(DISTINCT writer), max(n) FROM t;")?;
    let expected = format!("{}|{WRITERS}|{count}", WRITERS * count);
    ensure!(found.trim() == expected, "rows, writers, last: {found}; expected {expected}");
    Ok(())
}

/// What the killed writer said was committed is there, the rest is whole or absent, and others can
/// write on.
fn killed(bench: &Bench, db: &Path, scratch: &Path, journal: &str) -> Outcome {
    make(bench, db, scratch, journal)?;
    let script = scratch.join("killed.sql");
    std::fs::write(&script, transactions(9, 100_000)).doing(|| "cannot write a script")?;
    let output = scratch.join("killed.out");
    // stdout to a file is written in blocks; line by line it says what was committed.
    let mut unbuffered = Command::new("stdbuf");
    let inner = sqlite(db, &script);
    unbuffered.arg("-oL").arg(inner.get_program()).args(inner.get_args());
    let mut last = 0;
    for round in 1..=bench.size(3u64, 1) {
        let mut writer = background(&mut unbuffered, &output)?;
        bench.interrupt.sleep(Duration::from_millis(700 * round))?;
        let died = writer.has_ended();
        let said = writer.kill();
        ensure!(!died, "the writer ended by itself: {said}");
        let numbers = said.lines().filter_map(|l| l.trim().parse::<u64>().ok());
        last = numbers.max().unwrap_or(0);
        integrity(bench, db, scratch)?;
        let found = query(
            bench,
            db,
            scratch,
            "SELECT coalesce(max(n), 0), count(*) FROM t WHERE writer = 9;",
        )?;
        let Some((max, count)) = found.trim().split_once('|') else {
            return fail(format!("strange answer: {found}"));
        };
        let max: u64 = max.parse().doing(|| "strange answer")?;
        ensure!(
            max >= last && count == max.to_string(),
            "{last} were committed; the last is {max} of {count}"
        );
        query(bench, db, scratch, "DELETE FROM t;")?;
    }
    ensure!(last > 0, "no transaction was committed before the kill: this shows nothing");
    Ok(())
}
