//! A mount that is served on by others, NFS-Ganesha and Samba, or is the storage of containers,
//! each with a storage daemon killed in the middle.
//!
//! The clients are programs of others as well: `nfs-ls` and `nfs-cat` of libnfs (whose `nfs-cp`
//! cannot write by NFSv4, on a local file system neither), and `smbclient`.

use super::Bench;
use super::report::Report;
use super::rig::{Background, Rig, background};
use super::setup;
use crate::cluster::layout::osd_name;
use crate::error::{Context, Outcome, ensure};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of these tests, and their Debian packages.
const PROGRAMS: [(&str, &str); 7] = [
    ("/usr/bin/ganesha.nfsd", "nfs-ganesha"),
    (FSAL_VFS, "nfs-ganesha-vfs"),
    ("nfs-ls", "libnfs-utils"),
    ("/usr/sbin/smbd", "samba"),
    ("smbclient", "smbclient"),
    ("buildah", "buildah"),
    ("/bin/busybox", "busybox-static"),
];
/// The part of NFS-Ganesha that serves a mounted file system.
const FSAL_VFS: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/ganesha/libfsalvfs.so"
} else {
    "/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so"
};
/// Each program ends, and each server is there, within this time, on a busy machine too.
const SECONDS: u64 = 120;
/// Names in the directory: some round trips of every listing.
const NAMES: usize = 3000;
/// Bytes of the file that goes to and fro.
const FILE_BYTES: usize = 3_000_000;

/// A test and its name.
type Test = (&'static str, fn(&Bench, &Rig) -> Outcome);

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("reexports", bench, report, |spec| spec)? else { return Ok(()) };
    let tests: [Test; 3] = [
        ("NFS-Ganesha lists and reads all of a mount, a storage daemon killed meanwhile", ganesha),
        (
            "Samba writes, reads, lists, renames and removes on a mount, a storage daemon killed meanwhile",
            samba,
        ),
        (
            "buildah keeps its layers on a mount by overlayfs, a storage daemon killed meanwhile",
            containers,
        ),
    ];
    for (name, test) in tests {
        if report.wants_test("reexports", name) {
            report.case("reexports", name, || {
                setup::install(&PROGRAMS, &bench.interrupt)?;
                test(bench, &rig)
            })?;
        }
    }
    rig.finish(bench, report)
}

/// A port where nobody listens now.
fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").doing(|| "no free port")?;
    Ok(listener.local_addr().doing(|| "no address")?.port())
}

/// Starts a server, and waits until it listens.
fn serve(
    bench: &Bench,
    rig: &Rig,
    command: &mut Command,
    port: u16,
    output: &Path,
) -> Outcome<Background> {
    let mut server = background(command, output)?;
    rig.wait_for(bench, "the server to listen", SECONDS, || {
        ensure!(
            !server.has_ended(),
            "it has ended: {}",
            std::fs::read_to_string(output).unwrap_or_default()
        );
        Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
    })?;
    Ok(server)
}

/// A directory that everybody may write to, with many names, and a file on the local disk.
fn fill(bench: &Bench, rig: &Rig, name: &str) -> Outcome<(PathBuf, PathBuf)> {
    let share = rig.area(bench, name)?;
    let file = rig.scratch(name)?.join("file");
    let line = format!(
        "chmod 777 . && seq -f f%05g {NAMES} | xargs touch && head -c {FILE_BYTES} /dev/urandom > "
    );
    bench.shell(&share, &(line + &file.display().to_string()), SECONDS)?;
    Ok((share, file))
}

/// Does something with a storage daemon killed, which comes back afterwards.
fn with_one_dead(bench: &Bench, rig: &Rig, act: impl FnOnce() -> Outcome) -> Outcome {
    rig.cluster.kill(&osd_name(2))?;
    let done = act();
    rig.cluster.start(&osd_name(2), &bench.interrupt)?;
    done?;
    rig.wait_clean(bench, SECONDS)
}

fn ganesha(bench: &Bench, rig: &Rig) -> Outcome {
    let (share, file) = fill(bench, rig, "ganesha")?;
    let (scratch, port) = (rig.scratch("ganesha")?, free_port()?);
    let config = format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; Protocols = 4; Bind_addr = 127.0.0.1; Enable_NLM = false;
            Enable_RQUOTA = false; }}
         NFSv4 {{ Graceless = true; RecoveryRoot = \"{scratch}\"; }}
         EXPORT {{ Export_Id = 1; Path = \"{share}\"; Pseudo = \"/share\"; Access_Type = RW; SecType = sys;
            Squash = No_Root_Squash; Filesystem_Id = 77.1; FSAL {{ Name = VFS; }} }}\n",
        scratch = scratch.display(),
        share = share.display()
    );
    let (conf, log) = (scratch.join("ganesha.conf"), scratch.join("ganesha.log"));
    std::fs::write(&conf, config).doing(|| "cannot write the configuration")?;
    let mut command = Command::new("ganesha.nfsd");
    command.args(["-F", "-f"]).arg(&conf).arg("-L").arg(&log).arg("-p").arg(scratch.join("pid"));
    let server = serve(bench, rig, &mut command, port, &scratch.join("out"))?;
    let url = |name: &str| format!("nfs://127.0.0.1/share{name}?version=4&nfsport={port}");
    let listed = || {
        let listing = bench.run(Command::new("nfs-ls").arg(url("")), SECONDS)?.stdout;
        Ok(listing.lines().filter(|line| line.contains(" f0")).count())
    };
    let before = listed()?;
    ensure!(before == NAMES, "{before} names are listed, of {NAMES}");
    bench.run(Command::new("cp").arg(&file).arg(share.join("big")), SECONDS)?;
    let read = || {
        bench.shell(&scratch, &format!("nfs-cat '{}' | cmp - file", url("/big")), SECONDS).map(drop)
    };
    read()?;
    with_one_dead(bench, rig, || {
        bench.shell(&share, "rm f000[0-4]*", SECONDS)?;
        read()?;
        let (after, there) = (listed()?, NAMES - 49);
        ensure!(after == there, "{after} names are listed, of {there}");
        Ok(())
    })?;
    server.kill();
    Ok(())
}

fn samba(bench: &Bench, rig: &Rig) -> Outcome {
    let (share, file) = fill(bench, rig, "samba")?;
    let (scratch, port) = (rig.scratch("samba")?, free_port()?);
    let own = scratch.display();
    let config = format!(
        "[global]\nserver role = standalone server\nmap to guest = Bad User\nguest account = nobody\nsmb ports = {port}\n\
         interfaces = 127.0.0.1\nbind interfaces only = yes\nprivate dir = {own}\nlock directory = {own}\n\
         state directory = {own}\ncache directory = {own}\npid directory = {own}\nncalrpc dir = {own}/ncalrpc\n\
         log file = {own}/log\ndisable spoolss = yes\nload printers = no\n\
         [share]\npath = {}\nguest ok = yes\nread only = no\nforce user = root\n",
        share.display()
    );
    let conf = scratch.join("smb.conf");
    std::fs::write(&conf, config).doing(|| "cannot write the configuration")?;
    let mut command = Command::new("/usr/sbin/smbd");
    command.args(["-F", "--no-process-group", "-s"]).arg(&conf);
    let server = serve(bench, rig, &mut command, port, &scratch.join("out"))?;
    let client = |commands: &str| {
        let mut command = Command::new("smbclient");
        command.args(["-N", "-p", &port.to_string(), "//127.0.0.1/share", "-s"]).arg(&conf);
        command.args(["-c", commands]).current_dir(&scratch);
        bench.run(&mut command, SECONDS).map(|run| run.stdout)
    };
    let listed =
        || Ok(client("ls")?.lines().filter(|line| line.trim_start().starts_with("f0")).count());
    let before = listed()?;
    ensure!(before == NAMES, "{before} names are listed, of {NAMES}");
    let to_and_fro = |name: &str| {
        client(&format!(
            "put file {name}; get {name} back; rename {name} {name}2; mkdir {name}-d; put file {name}-d/in"
        ))?;
        let compare = format!(
            "cmp file back && cmp file {0}/{name}2 && cmp file {0}/{name}-d/in",
            share.display()
        );
        bench.shell(&scratch, &compare, SECONDS)
    };
    to_and_fro("before")?;
    with_one_dead(bench, rig, || {
        to_and_fro("meanwhile")?;
        client("del f0*; del before2; deltree before-d")?;
        let left = listed()?;
        ensure!(left == 0, "{left} names are left, after all were removed");
        Ok(())
    })?;
    bench.run(Command::new("cmp").arg(&file).arg(share.join("meanwhile2")), SECONDS)?;
    server.kill();
    Ok(())
}

/// What `buildah` does with its storage on the mount, of which the variable `B` has the options.
/// Programs run in the containers without namespaces of their own: those need rights that a
/// container of the tests itself may lack.
const LAYERS_BEGIN: &str = r#"
    c=$($B from scratch) && m=$($B mount $c)
    mkdir $m/bin $m/data && cp /bin/busybox $m/bin/ && ln -s busybox $m/bin/sh && cp file $m/data/old
    seq -f "$m/data/f%04g" 500 | xargs touch
    $B run --isolation chroot $c /bin/sh -c 'echo text > /data/written && mv /data/written /data/moved'
    $B umount $c && $B commit -q $c first && $B rm $c
"#;
/// A layer above: removals are whiteouts, a renamed directory is copied, all of it survives.
const LAYERS_GO_ON: &str = r#"
    c=$($B from localhost/first) && m=$($B mount $c)
    cmp file $m/data/old && test "$(cat $m/data/moved)" = text
    rm $m/data/f00* && mv $m/data $m/renamed && cp file $m/renamed/new
    $B run --isolation chroot $c /bin/sh -c 'echo more >> /renamed/moved'
    $B umount $c && $B commit -q $c second && $B rm $c
"#;
const LAYERS_COMPARE: &str = r#"
    c=$($B from localhost/second) && m=$($B mount $c)
    cmp file $m/renamed/old && cmp file $m/renamed/new && test ! -e $m/data
    test "$(cat $m/renamed/moved)" = "$(printf 'text\nmore')"
    test "$(ls $m/renamed | grep -c ^f0)" = 401
    $B umount $c && $B rm $c && $B rmi -a -f
"#;

fn containers(bench: &Bench, rig: &Rig) -> Outcome {
    let (_, file) = fill(bench, rig, "containers")?;
    let storage = rig.area(bench, "containers-storage")?;
    let scratch = file.parent().expect("it lies in the scratch directory");
    let layers = |script: &str| {
        let options = format!(
            "--root {} --runroot {}/run --storage-driver overlay",
            storage.display(),
            scratch.display()
        );
        let script = format!("set -ex; B='buildah {options}'; {script}");
        bench.run(Command::new("bash").args(["-c", &script]).current_dir(scratch), SECONDS)
    };
    layers(LAYERS_BEGIN)?;
    with_one_dead(bench, rig, || layers(LAYERS_GO_ON).map(drop))?;
    layers(LAYERS_COMPARE)?;
    // it mounts its directory of layers on itself
    let unmount = format!("umount -l {}/overlay || true", storage.display());
    bench.shell(scratch, &unmount, SECONDS).map(drop)
}
