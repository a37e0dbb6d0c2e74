//! Volumes for virtual machines: the commands, and the NBD server under programs of others:
//! libnbd's, qemu's, fio's, e2fsprogs'. What no such program does is in `volume.py`.

mod guest;

use super::Bench;
use super::report::Report;
use super::rig::{Background, Rig, RigTest, background, mount_points};
use super::setup;
use crate::error::{Context, Outcome, ensure};
use crate::exec;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SCRIPT: &str = include_str!("volume.py");
/// Debian's Python, for Debian's libnbd.
const PYTHON: &str = "/usr/bin/python3";
/// What only these tests need, with Debian's packages.
const PROGRAMS: [(&str, &str); 7] = [
    ("nbdinfo", "libnbd-bin"),
    ("/usr/lib/python3/dist-packages/nbd.py", "python3-libnbd"),
    ("nbdfuse", "libnbd-bin"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("e2fsck", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
];
/// Until a server serves, also where it has to wait for what another one left.
const SERVE_SECONDS: u64 = 60;
/// Servers killed under writers.
const KILLS: usize = 4;

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    report
        .case("volume", "the programs are there", || setup::install(&PROGRAMS, &bench.interrupt))?;
    let Some(rig) = Rig::start("volume", bench, report, |spec| spec)? else { return Ok(()) };
    let tests: [RigTest; 11] = [
        ("create, ls, info, resize, rm, and what they refuse", commands),
        (
            "import and export, from files and pipes, sparse both ways, and half of one leaves nothing",
            copies,
        ),
        ("nbdinfo, nbdcopy, qemu-img and qemu-io find what they wrote", others),
        ("flags, zeros and extents, over two connections", |bench, rig| {
            script(bench, rig, "flags", 60)
        }),
        ("garbage, ranges beyond the end, clients that vanish: a good client is served", garbage),
        ("a second opener is refused and told who, and a reader is refused changes", exclusive),
        (
            "a volume is taken away, from a server that runs, and from one that wakes up late",
            taken_away,
        ),
        ("limits of a volume hold, and change while it is served", limits),
        (
            "an ext4 made inside is whole, and fio's blocks are, with a storage daemon killed meanwhile",
            degraded,
        ),
        ("servers are killed under writers: all that was answered is there", kills),
        (
            "a guest boots from a volume, writes while a storage daemon is killed, and boots again",
            guest::boots,
        ),
    ];
    let _ = std::fs::create_dir_all(sockets());
    for (name, test) in tests {
        if report.wants_test("volume", name) {
            report.case("volume", name, || test(bench, &rig))?;
        }
    }
    let _ = std::fs::remove_dir_all(sockets());
    rig.finish(bench, report)
}

/// Where servers listen: a short path.
fn sockets() -> PathBuf {
    mount_points().join("nbd")
}

/// A shell with our programs, a volume's name as `V`, and its URI as `U`.
fn shell(bench: &Bench, rig: &Rig, volume: &str, line: &str, seconds: u64) -> Outcome<exec::Run> {
    let command = rig.cluster.command("bash");
    let fail_early = "code() { set +e; \"$@\" > said 2>&1; echo $?; set -e; }";
    let whole =
        format!("PATH='{}':$PATH; set -o pipefail; {fail_early}\n{line}", bench.binaries.display());
    let mut bash = Command::new("bash");
    bash.args(["-exc", &whole]).current_dir(rig.scratch("volumes")?).env("LANG", "C");
    bash.env("V", volume).env("U", uri(volume, &sockets().join(volume)));
    for (key, value) in command.get_envs() {
        bash.env(key, value.unwrap_or_default());
    }
    bench.run(&mut bash, seconds)
}

fn uri(name: &str, socket: &Path) -> String {
    format!("nbd+unix:///{name}?socket={}", socket.display())
}

/// A running `trefoil nbd serve`.
struct Served {
    process: Background,
    output: PathBuf,
}

/// Serves a volume at `sockets()/AT`.
fn serve(bench: &Bench, rig: &Rig, name: &str, at: &str, args: &[&str]) -> Outcome<Served> {
    let served = begin_to_serve(rig, name, at, args)?;
    served.wait_ready(bench, rig)?;
    Ok(served)
}

fn begin_to_serve(rig: &Rig, name: &str, at: &str, args: &[&str]) -> Outcome<Served> {
    let output = rig.scratch("volumes")?.join(format!("{at}.log"));
    let mut command = rig.cluster.command("trefoil");
    command.args(["nbd", "serve", name, "--socket"]).arg(sockets().join(at)).args(args);
    Ok(Served { process: background(&mut command, &output)?, output })
}

impl Served {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn wait_ready(&self, bench: &Bench, rig: &Rig) -> Outcome {
        let outcome = rig.wait_for(bench, "a server is ready", SERVE_SECONDS, || {
            Ok(self.said().contains("ready:"))
        });
        ensure!(outcome.is_ok(), "no server: {}", exec::last_lines(&self.said(), 10));
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Outcome {
        let pid = Pid::from_raw(self.process.pid() as i32).expect("a process has a number");
        kill_process(pid, signal).doing(|| "cannot signal the server")
    }

    /// By SIGTERM; it ends well.
    fn stop(self, bench: &Bench) -> Outcome {
        self.signal(Signal::TERM)?;
        self.process.finish(bench, 40).map(drop)
    }
}

fn python(rig: &Rig, args: &[&str]) -> Outcome<Command> {
    let path = rig.scratch("volumes")?.join("volume.py");
    std::fs::write(&path, SCRIPT).doing(|| "cannot write the script")?;
    let mut command = Command::new(PYTHON);
    command.arg(path).args(args);
    Ok(command)
}

/// A check of the script on a volume of its own.
fn script(bench: &Bench, rig: &Rig, check: &str, seconds: u64) -> Outcome {
    shell(bench, rig, check, &format!("trefoil volume create {check} --size 6GiB"), 30)?;
    let served = serve(bench, rig, check, check, &[])?;
    bench.run(&mut python(rig, &[check, &uri(check, &sockets().join(check))])?, seconds)?;
    served.stop(bench)
}

fn commands(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "trefoil volume create a --size 10GiB; trefoil volume create 'b c' --size 512\n\
         trefoil pool create mirror --k 1 --m 2 --pg-num 8; trefoil volume create m --size 64MiB --pool mirror\n\
         trefoil volume info m | grep -q 'pool *mirror'; trefoil volume info a | grep -q 'used *0 bytes'\n\
         trefoil volume info a | grep -q 'open *by nobody'; test $(trefoil volume ls | wc -l) = 4\n\
         trefoil volume ls | grep -q '^b c'\n\
         test $(code trefoil volume create a --size 1GiB) = 5; grep -q 'already' said\n\
         test $(code trefoil volume create x --size 0) = 2; test $(code trefoil volume create x --size 513) = 2\n\
         test $(code trefoil volume create x --size 1GB) = 2; grep -q GiB said\n\
         test $(code trefoil volume create x/y --size 1GiB) = 2; test $(code trefoil volume create .x --size 1GiB) = 2\n\
         test $(code trefoil volume create x --size 1GiB --pool none) = 4; grep -q mirror said\n\
         test $(code trefoil volume info x) = 4; test $(code trefoil volume rm x --yes) = 4\n\
         test $(code trefoil volume resize x --size 1GiB) = 4; test $(code trefoil volume export x y) = 4; test ! -e y\n\
         test $(code trefoil nbd serve x --socket x.sock) = 4; test ! -e x.sock\n\
         trefoil volume resize a --size 20GiB; trefoil volume info a | grep -q 20.0\n\
         test $(code trefoil volume resize a --size 1GiB) = 2; grep -q 'will be lost' said\n\
         trefoil volume resize a --size 1GiB --yes; trefoil volume info a | grep -q '1.0 GiB'\n\
         test $(code trefoil volume rm a) = 2; grep -q 'will be removed' said; trefoil volume rm a --yes\n\
         trefoil volume rm 'b c' --yes; trefoil volume rm m --yes; test $(trefoil volume ls | wc -l) = 1\n\
         test -z \"$(ls -A MOUNT | grep -v lost+found)\"";
    shell(bench, rig, "", &lines.replace("MOUNT", &rig.mount().display().to_string()), 120)
        .map(drop)
}

fn copies(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "head -c 5000192 /dev/urandom > in; trefoil volume import in i; trefoil volume export i out; cmp in out\n\
         trefoil volume import - p < in; trefoil volume export p - | cmp - in\n\
         test $(code trefoil volume import in i) = 5; test $(code trefoil volume import /no/such/file x) = 1\n\
         test $(code trefoil volume import /dev/null x) = 2; test $(code trefoil volume export i /no/such/dir/x) = 1\n\
         head -c 1001 in > odd; trefoil volume import odd odd | grep -q 1024\n\
         trefoil volume export odd back; truncate -s 1024 odd; cmp odd back\n\
         truncate -s 1G sparse; for at in 1 300 999; do dd if=in of=sparse bs=1M seek=$at count=1 conv=notrunc 2> err; done\n\
         trefoil volume import sparse s; trefoil volume info s | grep -q 'used .*(3.[0-9] MiB)'\n\
         trefoil volume export s holes; cmp sparse holes; test $(du -k holes | cut -f1) -lt 10000\n\
         mkfifo pipe; trefoil volume import - half < pipe & importing=$!\n\
         (head -c 3000000 in; sleep 3) > pipe & sleep 1.5; kill -9 $importing; wait $importing || true; rm pipe\n\
         test $(code trefoil volume info half) = 4; test -z \"$(trefoil volume ls | grep half)\"\n\
         test $(code bash -c 'trefoil volume export s - | head -c 10 > /dev/null') = 0; test -z \"$(grep panicked said)\"\n\
         for v in i p odd s; do trefoil volume rm $v --yes; done";
    shell(bench, rig, "", lines, 150).map(drop)
}

fn others(bench: &Bench, rig: &Rig) -> Outcome {
    shell(bench, rig, "others", "trefoil volume create $V --size 64MiB", 20)?;
    let port = rig.free_ports(1)?[0].to_string();
    let served = serve(bench, rig, "others", "others", &["--listen", &port])?;
    let lines = format!(
        "nbdinfo \"$U\" > said; grep -q 'export-size: 67108864' said; grep -q 'can_multi_conn: true' said\n\
         grep -q 'block_size_maximum: 33554432' said; nbdinfo --list nbd://{port}/ | grep -q \"export=.$V\"\n\
         test $(code nbdinfo nbd://{port}/other) = 1\n\
         truncate -s 64M image; for at in 3 30 60; do dd if=/dev/urandom of=image bs=1M seek=$at count=2 conv=notrunc 2> err; done\n\
         nbdcopy --flush image \"$U\"; nbdcopy \"$U\" - | cmp - image\n\
         nbdinfo --map --totals \"$U\" | grep data | grep -q 6291456\n\
         qemu-img compare -f raw -F raw image nbd://{port}/$V\n\
         qemu-img map --output=json -f raw \"$U\" | grep -q '\"start\": 31457280, \"length\": 2097152,.*\"data\": true'\n\
         dd if=/dev/urandom of=image bs=1M seek=10 count=3 conv=notrunc 2> err\n\
         qemu-img convert -n -f raw -O raw image \"$U\"; qemu-img compare -f raw -F raw image \"$U\"\n\
         qemu-io -f raw -c 'write -P 7 1M 1M' -c 'write -f -P 8 5M 65k' -c 'write -z -u 1500k 100k' -c 'write -z 3M 13k' \
           -c 'discard 6M 1M' -c flush -c 'read -P 7 1M 400k' -c 'read -P 0 1500k 100k' -c 'read -P 8 5M 65k' \
           -c 'read -P 0 3M 13k' \"$U\" | tee said; test -z \"$(grep -i 'fail\\|error' said)\"\n\
         nbdcopy \"$U\" copied"
    );
    shell(bench, rig, "others", &lines, 90)?;
    served.stop(bench)?;
    // What was flushed by nobody but the server's end is there.
    shell(
        bench,
        rig,
        "others",
        "trefoil volume export $V out; cmp out copied; trefoil volume rm $V --yes",
        40,
    )
    .map(drop)
}

fn garbage(bench: &Bench, rig: &Rig) -> Outcome {
    shell(bench, rig, "garbage", "trefoil volume create garbage --size 64MiB", 20)?;
    let served = serve(bench, rig, "garbage", "garbage", &[])?;
    let socket = sockets().join("garbage").display().to_string();
    bench.run(&mut python(rig, &["garbage", &socket, "garbage"])?, 120)?;
    ensure!(
        !served.said().contains("panicked"),
        "a panic: {}",
        exec::last_lines(&served.said(), 10)
    );
    let pid = served.process.pid();
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).doing(|| "the server is gone")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default().trim();
    let kib: u64 = peak.trim_end_matches(" kB").parse().unwrap_or(u64::MAX);
    // Its budget is 256 MiB; buffers of the client's own have as much again.
    ensure!(kib < 768 << 10, "the server has held {kib} KiB");
    served.stop(bench)
}

fn exclusive(bench: &Bench, rig: &Rig) -> Outcome {
    shell(bench, rig, "exclusive", "trefoil volume create $V --size 64MiB", 20)?;
    let served = serve(bench, rig, "exclusive", "exclusive", &[])?;
    let refused = "for line in \"nbd serve $V --socket second\" \"nbd serve $V --socket second --read-only\" \
         \"volume rm $V --yes\" \"volume resize $V --size 128MiB\" \"volume export $V refused\"; do\n\
           test $(code trefoil $line) = 5; grep -q \"open elsewhere, by session .*nbd $V\" said; done\n\
         test ! -e second; test ! -e refused; trefoil volume info $V | grep -q \"open *by session .*nbd $V\"\n\
         test $(code trefoil nbd serve $V --steal --socket $(dirname ${U#*socket=})/$V) = 1; grep -q 'in use' said";
    shell(bench, rig, "exclusive", refused, 60)?;
    served.stop(bench)?;
    let one = serve(bench, rig, "exclusive", "exclusive", &["--read-only"])?;
    let two = serve(bench, rig, "exclusive", "second", &["--read-only"])?;
    let reads = "nbdinfo \"$U\" | grep -q 'is_read_only: true'; test $(code qemu-io -f raw -c 'write 0 4k' \"$U\") = 1\n\
         test $(code trefoil nbd serve $V --socket third) = 5; trefoil volume export $V out; rm out";
    shell(bench, rig, "exclusive", reads, 40)?;
    two.stop(bench)?;
    one.stop(bench)?;
    shell(bench, rig, "exclusive", "trefoil volume rm $V --yes", 20).map(drop)
}

/// A client of the old server and of the next one; `meanwhile` happens once the client is there.
fn taken(
    bench: &Bench,
    rig: &Rig,
    check: &str,
    meanwhile: impl FnOnce(&Served, &Path) -> Outcome,
) -> Outcome {
    shell(bench, rig, check, &format!("trefoil volume create {check} --size 64MiB"), 20)?;
    let old = serve(bench, rig, check, "old", &[])?;
    let (go, output) =
        (rig.scratch("volumes")?.join("go"), rig.scratch("volumes")?.join("client.out"));
    let uris = ["old", "new"].map(|at| uri(check, &sockets().join(at)));
    let mut args = vec![check, &uris[0], &uris[1]];
    let go_text = go.display().to_string();
    if check == "stopped" {
        args.push(&go_text);
    }
    let client = background(&mut python(rig, &args)?, &output)?;
    let said = || std::fs::read_to_string(&output).unwrap_or_default();
    rig.wait_for(bench, "the client is connected", 30, || Ok(said().contains("connected")))?;
    if check == "stopped" {
        old.signal(Signal::STOP)?;
        std::fs::write(go.with_extension("stopped"), "").doing(|| "cannot write")?;
    }
    let new = serve(bench, rig, check, "new", &["--steal"])?;
    if check == "stopped" {
        let written = rig
            .wait_for(bench, "the new server is written to", 30, || Ok(said().contains("written")));
        old.signal(Signal::CONT)?;
        written?;
    }
    meanwhile(&old, &go)?;
    client.finish(bench, 60)?;
    new.stop(bench)?;
    let ended = rig.wait_for(bench, "the old server ends", 30, || {
        Ok(old.said().contains("not this process's any more"))
    });
    ensure!(ended.is_ok(), "the old server says: {}", exec::last_lines(&old.said(), 5));
    shell(bench, rig, check, &format!("trefoil volume rm {check} --yes"), 30).map(drop)
}

fn taken_away(bench: &Bench, rig: &Rig) -> Outcome {
    taken(bench, rig, "stolen", |_, _| Ok(()))?;
    taken(bench, rig, "stopped", |_, go| {
        // What it would still send it sends now.
        bench.interrupt.sleep(Duration::from_secs(3))?;
        std::fs::write(go.with_extension("over"), "").doing(|| "cannot write")
    })
}

fn limits(bench: &Bench, rig: &Rig) -> Outcome {
    let lines = "trefoil volume create $V --size 64MiB; test $(code trefoil volume set $V) = 2\n\
         test $(code trefoil volume set $V --write-iops 0) = 2; test $(code trefoil volume set x --read-bps 1) = 4\n\
         trefoil volume set $V --write-iops 20 --read-bps 8MiB; trefoil volume info $V | grep -q 'write-iops *20 '";
    shell(bench, rig, "limits", lines, 40)?;
    let served = serve(bench, rig, "limits", "limits", &[])?;
    // A lower bound: 60 writes of which two are free, at 20 in a second.
    let program = "import nbd, sys, time\n\
         h = nbd.NBD(); h.connect_uri(sys.argv[1]); t = time.time()\n\
         [h.pwrite(b'x' * 512, i * 512) for i in range(60)]\n\
         took = time.time() - t; assert took >= 2.8, took\n\
         t = time.time(); h.pread(16 << 20, 0); h.pread(1, 0); assert time.time() - t >= 1.8\n\
         h.shutdown()";
    bench.run(
        Command::new(PYTHON).args(["-c", program, &uri("limits", &sockets().join("limits"))]),
        60,
    )?;
    // With these, the next would take longer than the test waits.
    shell(bench, rig, "limits", "trefoil volume set $V --write-iops none --read-bps none", 20)?;
    let program = "import nbd, sys, time\n\
         h = nbd.NBD(); h.connect_uri(sys.argv[1]); time.sleep(3)\n\
         [h.pwrite(b'x' * 512, i * 512) for i in range(1000)]\n\
         h.shutdown()";
    bench.run(
        Command::new(PYTHON).args(["-c", program, &uri("limits", &sockets().join("limits"))]),
        40,
    )?;
    served.stop(bench)?;
    shell(
        bench,
        rig,
        "limits",
        "test -z \"$(trefoil volume info $V | grep iops)\"; trefoil volume rm $V --yes",
        30,
    )
    .map(drop)
}

fn degraded(bench: &Bench, rig: &Rig) -> Outcome {
    shell(
        bench,
        rig,
        "degraded",
        "trefoil volume create $V --size 256MiB; trefoil volume create fio --size 64MiB",
        20,
    )?;
    let (served, other) =
        (serve(bench, rig, "degraded", "degraded", &[])?, serve(bench, rig, "fio", "fio", &[])?);
    let job = |more: &str| {
        format!(
            "fio --name=volume --ioengine=nbd --uri='{}' --rw=randrw --bsrange=512-64k --bs_unaligned=0 --iodepth=16 \
             --size=24M --io_size=12M --verify=crc32c --verify_fatal=1 --randseed=7 {more}",
            uri("fio", &sockets().join("fio"))
        )
    };
    let output = rig.scratch("volumes")?.join("fio.out");
    let mut fio = Command::new("bash");
    fio.args(["-c", &job("--do_verify=1")]).current_dir(rig.scratch("volumes")?);
    let fio = background(&mut fio, &output)?;
    bench.interrupt.sleep(Duration::from_secs(1))?;
    rig.cluster.kill("osd-1")?;
    let ext4 = "mkdir -p fuse; nbdfuse fuse/disk \"$U\" & sleep 1; for i in $(seq 50); do test -e fuse/disk && break; sleep 0.2; done\n\
         trap 'fusermount3 -u -z fuse' EXIT\n\
         mkfs.ext4 -q -E nodiscard fuse/disk; head -c 20000000 /dev/urandom > big\n\
         debugfs -w -R 'write big big' fuse/disk; e2fsck -fn fuse/disk; debugfs -R 'dump big back' fuse/disk; cmp big back\n\
         trap - EXIT; fusermount3 -u fuse; wait";
    let made = shell(bench, rig, "degraded", ext4, 180);
    let checked = fio.finish(bench, 180);
    rig.cluster.start("osd-1", &bench.interrupt)?;
    made?;
    checked?;
    rig.wait_clean(bench, 150)?;
    other.stop(bench)?;
    served.stop(bench)?;
    let lines = "trefoil volume export $V image; e2fsck -fn image; debugfs -R 'dump big back' image; cmp big back\n\
         trefoil volume rm $V --yes; trefoil volume rm fio --yes";
    shell(bench, rig, "degraded", lines, 60).map(drop)
}

fn kills(bench: &Bench, rig: &Rig) -> Outcome {
    shell(bench, rig, "kills", "trefoil volume create kills --size 64MiB", 20)?;
    let stop = rig.scratch("volumes")?.join("stop");
    let (uri, rounds) = (uri("kills", &sockets().join("kills")), KILLS.to_string());
    let mut served = serve(bench, rig, "kills", "kills", &[])?;
    let args = ["stamped", uri.as_str(), stop.to_str().expect("a name"), &rounds];
    let mut writers =
        background(&mut python(rig, &args)?, &rig.scratch("volumes")?.join("writers.out"))?;
    for round in 0..KILLS {
        bench.interrupt.sleep(Duration::from_millis(1000 + 700 * round as u64 % 1500))?;
        ensure!(!writers.has_ended(), "the writers ended");
        match round {
            0 => {
                rig.cluster.kill("mds")?;
                rig.cluster.start("mds", &bench.interrupt)?;
                bench.interrupt.sleep(Duration::from_secs(1))?;
            }
            1 => rig.cluster.kill("osd-2")?,
            _ => {}
        }
        served.process.kill();
        served = serve(bench, rig, "kills", "kills", &["--steal"])?;
        if round == 2 {
            rig.cluster.start("osd-2", &bench.interrupt)?;
        }
    }
    bench.interrupt.sleep(Duration::from_secs(2))?;
    std::fs::write(&stop, "").doing(|| "cannot write")?;
    writers.finish(bench, 150)?;
    served.stop(bench)?;
    shell(bench, rig, "kills", "trefoil volume rm kills --yes", 30)?;
    rig.wait_clean(bench, 150)
}
