//! What a user sees when a mount cannot be: the exit status, and a message that says what to do.

use std::process::{Command, Output};

/// Killed after a minute, with a status of its own.
fn fuse_client(args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    // Of mounts in the background: not where those of this machine log.
    command.env("TREFOIL_FUSE_LOG_FILE", "/dev/null");
    command
        .args(["60", env!("CARGO_BIN_EXE_fuse-client")])
        .args(args)
        .output()
        .expect("coreutils are there")
}

fn complains(args: &[&str], status: i32, words: &[&str]) {
    let output = fuse_client(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?} said {said}");
    assert!(!said.contains("panicked at"), "{args:?} said {said}");
    for word in words {
        assert!(said.contains(word), "{args:?} said {said:?}, without {word:?}");
    }
}

/// A port where nobody listens: it was free a moment ago.
fn silent_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn wrong_usage_is_status_2() {
    complains(&[], 2, &["Usage"]);
    complains(&["mount", "host:1"], 2, &["DIR"]);
    complains(&["mount", "host:1", "/mnt", "-o", "readpolicy=hash"], 2, &["readpolicy"]);
    complains(&["mount", "host:1", "/mnt", "--timeout", "soon"], 2, &["seconds"]);
    complains(&["mount", "host:1", "/mnt", "-o", "retry=-1"], 2, &["seconds"]);
}

#[test]
fn a_bad_mount_point_is_named() {
    complains(&["mount", "127.0.0.1:1", "/no/such/dir"], 1, &["/no/such/dir", "mkdir -p"]);
    complains(&["mount", "127.0.0.1:1", "/etc/passwd"], 1, &["not a directory"]);
    complains(&["umount", "/tmp"], 1, &["not a mounted trefoil file system"]);
}

/// Mounting says so in time, and mounts nothing.
fn names_an_unreachable_cluster(command: &[&str]) {
    let address = silent_address();
    let name = format!("fuse-client-test-{}-{}", std::process::id(), command.join(""));
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let path = dir.to_str().expect("UTF-8");
    complains(&[command, &[&address, path]].concat(), 1, &[&address, "is the cluster running"]);
    std::fs::remove_dir(&dir).expect("nothing is mounted there");
}

#[test]
fn an_unreachable_cluster_is_named() {
    names_an_unreachable_cluster(&["mount"]);
}

#[test]
fn an_unreachable_cluster_is_named_by_a_mount_in_the_background() {
    names_an_unreachable_cluster(&["mount", "--daemon"]);
}
