//! What must be refused, in words that say what to do, and without touching what is there.

use super::Bench;
use super::report::Report;
use super::rig::{Rig, RigTest};
use super::spec_in;
use crate::cluster::layout::MOUNT;
use crate::cluster::{Cluster, layout};
use crate::error::{Context, Outcome, ensure, fail};
use crate::exec;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A refusal comes within this time.
const REFUSAL_MAX: Duration = Duration::from_secs(30);

/// Runs the tests.
///
/// # Errors
/// Only on Ctrl-C.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let Some(rig) = Rig::start("input", bench, report, |spec| spec)? else { return Ok(()) };
    let tests: [RigTest; 15] = [
        ("a misspelt key is refused and the right one named", misspelt_key),
        ("a configuration that is missing or no TOML is refused", broken_config),
        (
            "a setting of the messenger that is out of range is refused with what is allowed",
            messenger_settings,
        ),
        (
            "an address that nobody can dial is refused, and the key for another one named",
            addresses,
        ),
        ("a port in use is named", port_in_use),
        ("a second start on the same directory says who holds it", second_start),
        ("a data directory of another cluster is refused untouched", other_cluster),
        ("a data directory of another format is refused untouched", other_format),
        ("a read-only data directory is refused", read_only),
        ("a missing mount point and a file as mount point are refused", missing_mount_point),
        ("a busy mount point is refused", busy_mount_point),
        ("a missing /dev/fuse is named", no_dev_fuse),
        ("umount of what is not mounted is refused", not_mounted),
        ("a stale mount point is recognised", stale_mount_point),
        ("garbage to every port harms nobody", garbage),
    ];
    for (name, test) in tests {
        if report.wants_test("input", name) {
            report.case("input", name, || test(bench, &rig))?;
        }
    }
    rig.finish(bench, report)
}

/// The command must fail in time, without a panic, and say all these words.
fn refuses(bench: &Bench, command: &mut Command, words: &[&str]) -> Outcome {
    let run = exec::run(command, REFUSAL_MAX, &bench.interrupt)?;
    let said = format!("{}{}", run.stdout, run.stderr);
    ensure!(!run.ok(), "it was accepted, and said: {said}");
    ensure!(
        run.status.code().is_some() && !said.contains("panicked at"),
        "{}: {said}",
        exec::how(run.status)
    );
    let lower = said.to_lowercase();
    if let Some(word) = words.iter().find(|w| !lower.contains(&w.to_lowercase())) {
        return fail(format!("it is refused, but `{word}` is not in what it says: {said}"));
    }
    Ok(())
}

/// A daemon with this configuration.
fn daemon(rig: &Rig, name: &str, config: &str) -> Outcome<Command> {
    let path = rig.scratch("conf")?.join(format!("{}.toml", name.replace(' ', "-")));
    fs::write(&path, config).doing(|| "cannot write a configuration")?;
    let mut command = rig.cluster.command("osd-daemon");
    command
        .env_remove("TREFOIL_MONITOR")
        .arg("--config")
        .arg(path)
        .current_dir(rig.scratch("cwd")?);
    Ok(command)
}

fn misspelt_key(bench: &Bench, rig: &Rig) -> Outcome {
    let data = rig.scratch("misspelt")?;
    let config = format!("data_dir = {:?}\nosd_cuont = 3\n", data.display().to_string());
    refuses(bench, &mut daemon(rig, "misspelt", &config)?, &["osd_cuont", "osd_count"])?;
    ensure!(
        fs::read_dir(&data).doing(|| "readdir")?.next().is_none(),
        "something was made in the data directory"
    );
    refuses(bench, rig.cluster.command("osd-daemon").arg("--no-such-flag"), &["--no-such-flag"])
}

fn broken_config(bench: &Bench, rig: &Rig) -> Outcome {
    refuses(bench, &mut daemon(rig, "broken", "roles = [\"osd\"\n")?, &["broken.toml"])?;
    refuses(bench, &mut daemon(rig, "range", "pool_k = 99\nosd_count = 200\n")?, &["pool_k"])?;
    refuses(
        bench,
        rig.cluster.command("osd-daemon").args(["--config", "/no/such.toml"]),
        &["/no/such.toml"],
    )
}

fn messenger_settings(bench: &Bench, rig: &Rig) -> Outcome {
    let data = rig.scratch("messenger")?;
    let cases: [(&str, &str, &[&str]); 8] = [
        (
            "ms_mapping",
            "\"fastest\"",
            &["round-robin, traffic-aware, shared, lcam, handoff, core-affine"],
        ),
        ("ms_workers", "0", &["must be from 2 to 256"]),
        ("ms_placement_interval_ms", "0", &["allowed are 1 ms to 3600s"]),
        ("ms_lock_threshold", "2", &["above 0 and up to 1"]),
        ("ms_max_events", "\"0\"", &["allowed are auto and 1 to 65536"]),
        ("ms_class_weights", "\"I=64,II=64,III=0\"", &["class III (background) is 0", "1 to 1000"]),
        ("ms_class_weights", "\"I=1,II=1\"", &["allowed are off and the weights of all three"]),
        ("ms_connections_max", "4294967295", &["must be from 16 to", "open files"]),
    ];
    for (key, value, allowed) in cases {
        let config = format!(
            "data_dir = {:?}\nosd_op_threads = 2\n{key} = {value}\n",
            data.display().to_string()
        );
        let words = [&[key], allowed].concat();
        refuses(bench, &mut daemon(rig, "messenger", &config)?, &words).doing(|| key.to_owned())?;
    }
    ensure!(
        fs::read_dir(&data).doing(|| "readdir")?.next().is_none(),
        "something was made in the data directory"
    );
    Ok(())
}

fn addresses(bench: &Bench, rig: &Rig) -> Outcome {
    let data = rig.scratch("addresses")?;
    let cases: [(&str, &str, &str); 4] = [
        ("osd_listen", "0.0.0.0:7411", "osd_advertise"),
        ("mds_listen", "[::]", "mds_advertise"),
        ("monitor_addr", "0.0.0.0", "monitor_listen"),
        ("monitor_addr", "host:port", "HOST:PORT"),
    ];
    for (key, value, word) in cases {
        let config = format!("data_dir = {:?}\n{key} = \"{value}\"\n", data.display().to_string());
        refuses(bench, &mut daemon(rig, "address", &config)?, &[key, word])
            .doing(|| key.to_owned())?;
    }
    ensure!(
        fs::read_dir(&data).doing(|| "readdir")?.next().is_none(),
        "something was made in the data directory"
    );
    let osd = rig.cluster.layout().osds[0].to_string();
    let mut status = rig.cluster.command("trefoil");
    refuses(bench, status.args(["--monitor", &osd, "status"]), &["no monitor"])?;
    let point = rig.scratch("points")?;
    refuses(bench, &mut mount(rig, rig.cluster.layout().osds[0], &point), &["no monitor"])?;
    let mut misspelt = mount(rig, rig.cluster.layout().monitor, &point);
    refuses(
        bench,
        misspelt.args(["-o", "readpolicy=fastest"]),
        &["did you mean `read_policy`", "fuse-client mount"],
    )
}

fn port_in_use(bench: &Bench, rig: &Rig) -> Outcome {
    let ports = rig.free_ports(5)?;
    for (held, role) in [(0, "monitor"), (1, "mds"), (3, "an osd")] {
        let _holder = TcpListener::bind(ports[held]).doing(|| "cannot hold a port")?;
        let data = rig.scratch(&format!("port-{held}"))?;
        let config = format!(
            "data_dir = {:?}\nmonitor_addr = \"{}\"\nmds_listen = \"{}\"\nosd_listen = \"{}\"\n",
            data.display().to_string(),
            ports[0],
            ports[1],
            ports[2]
        );
        let port = ports[held].port().to_string();
        refuses(bench, &mut daemon(rig, "port", &config)?, &[&port, "in use"]).doing(|| role)?;
    }
    Ok(())
}

/// All at once, for each waits a while for the process that has its directory.
fn second_start(bench: &Bench, rig: &Rig) -> Outcome {
    let names = rig.cluster.layout().daemons();
    let ports = rig.free_ports(2 * names.len())?;
    std::thread::scope(|scope| {
        let mut starts = Vec::new();
        for (name, ports) in names.iter().zip(ports.chunks_exact(2)) {
            starts.push(scope.spawn(move || second_start_of(bench, rig, name, ports)));
        }
        starts
            .into_iter()
            .try_for_each(|start| start.join().unwrap_or_else(|_| fail("it panicked")))
    })
}

/// `ports`: other ones than it has, so that only the directory can be the reason.
fn second_start_of(bench: &Bench, rig: &Rig, name: &str, ports: &[SocketAddr]) -> Outcome {
    let pid = rig.cluster.daemon(name)?.pid().map(|p| p.to_string()).unwrap_or_default();
    ensure!(!pid.is_empty(), "{name} does not run");
    let config = rig.cluster.layout().config(name, rig.cluster.dir())?;
    let changed: Vec<String> = config
        .lines()
        .map(|line| match line.split_once(" = ").map_or("", |(key, _)| key) {
            "osd_listen" | "mds_listen" => format!("{} = \"{}\"", &line[..10], ports[0]),
            _ => line.to_owned(),
        })
        .chain(std::iter::once(format!("monitor_listen = \"{}\"", ports[1])))
        .collect();
    refuses(bench, &mut daemon(rig, name, &changed.join("\n"))?, &[&pid]).doing(|| name.to_owned())
}

/// Every file named `superblock` below a directory.
fn superblocks(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let tree = crate::tree::Tree::list(dir, u64::MAX, u64::MAX)?;
    let found: Vec<PathBuf> =
        tree.paths.iter().filter(|p| p.ends_with("superblock")).map(|p| dir.join(p)).collect();
    ensure!(!found.is_empty(), "no superblock below {}", dir.display());
    Ok(found)
}

fn other_cluster(bench: &Bench, rig: &Rig) -> Outcome {
    let other = Cluster::up(&spec_in(&rig.scratch("other")?), &bench.binaries, &bench.interrupt)?;
    let test = || {
        other.stop("osd-1", &bench.interrupt)?;
        rig.cluster.stop("osd-1", &bench.interrupt)?;
        let ours = rig.cluster.data_dir("osd-1");
        let theirs = other.data_dir("osd-1").display().to_string();
        let config = other
            .layout()
            .config("osd-1", other.dir())?
            .replace(&theirs, &ours.display().to_string());
        let before =
            superblocks(&ours)?.iter().map(|p| fs::read(p).unwrap_or_default()).collect::<Vec<_>>();
        let refused = refuses(
            bench,
            &mut daemon(rig, "other", &config)?,
            &["cluster", &ours.display().to_string()],
        );
        let after =
            superblocks(&ours)?.iter().map(|p| fs::read(p).unwrap_or_default()).collect::<Vec<_>>();
        rig.cluster.start("osd-1", &bench.interrupt)?;
        refused?;
        ensure!(before == after, "the superblock was changed");
        rig.wait_clean(bench, 60)
    };
    let outcome = test();
    other.kill_all();
    outcome
}

fn other_format(bench: &Bench, rig: &Rig) -> Outcome {
    rig.cluster.stop("osd-2", &bench.interrupt)?;
    let path = superblocks(&rig.cluster.data_dir("osd-2"))?.swap_remove(0);
    let good = fs::read(&path).doing(|| "cannot read the superblock")?;
    let config = rig.cluster.layout().config("osd-2", rig.cluster.dir())?;
    // The format version stands at 8, the CRC32C of the first 60 bytes at 60.
    let mut future = good.clone();
    future[8..12].copy_from_slice(&77u32.to_le_bytes());
    let sum = crc32c::crc32c(&future[..60]);
    future[60..64].copy_from_slice(&sum.to_le_bytes());
    let mut damaged = good.clone();
    damaged[20] ^= 1;
    let attempt = |bytes: &[u8], words: &[&str]| {
        fs::write(&path, bytes).doing(|| "cannot write the superblock")?;
        let refused = refuses(bench, &mut daemon(rig, "format", &config)?, words);
        let after = fs::read(&path).doing(|| "cannot read the superblock")?;
        refused?;
        ensure!(after == bytes, "the superblock was changed");
        Ok(())
    };
    let outcome =
        attempt(&future, &["format", "77"]).and_then(|()| attempt(&damaged, &["damaged"]));
    fs::write(&path, good).doing(|| "cannot restore the superblock")?;
    rig.cluster.start("osd-2", &bench.interrupt)?;
    outcome.and_then(|()| rig.wait_clean(bench, 60))
}

fn read_only(bench: &Bench, rig: &Rig) -> Outcome {
    let dir = rig.scratch("read-only")?;
    bench.run(Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "none"]).arg(&dir), 10)?;
    let ports = rig.free_ports(5)?;
    let config = format!(
        "data_dir = {:?}\nmonitor_addr = \"{}\"\nmds_listen = \"{}\"\nosd_listen = \"{}\"\n",
        dir.display().to_string(),
        ports[0],
        ports[1],
        ports[2]
    );
    let outcome = refuses(
        bench,
        &mut daemon(rig, "read-only", &config)?,
        &["read-only", &dir.display().to_string()],
    );
    crate::mounts::clear(&dir);
    outcome
}

fn mount(rig: &Rig, monitor: SocketAddr, point: &Path) -> Command {
    let mut command = rig.cluster.command("fuse-client");
    command.arg("mount").arg(monitor.to_string()).arg(point);
    command
}

fn missing_mount_point(bench: &Bench, rig: &Rig) -> Outcome {
    let monitor = rig.cluster.layout().monitor;
    let missing = rig.scratch("points")?.join("missing");
    refuses(bench, &mut mount(rig, monitor, &missing), &[&missing.display().to_string()])?;
    let file = rig.scratch("points")?.join("file");
    fs::write(&file, "").doing(|| "cannot write a file")?;
    refuses(bench, &mut mount(rig, monitor, &file), &["directory"])
}

fn busy_mount_point(bench: &Bench, rig: &Rig) -> Outcome {
    refuses(bench, &mut mount(rig, rig.cluster.layout().monitor, rig.mount()), &["mounted"])?;
    bench.shell(rig.mount(), "echo still > here; cat here", 10).map(drop)
}

fn no_dev_fuse(bench: &Bench, rig: &Rig) -> Outcome {
    let point = rig.scratch("no-dev-fuse")?;
    let inner = mount(rig, rig.cluster.layout().monitor, &point);
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "bash", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "bash"]);
    outer.arg(inner.get_program()).args(inner.get_args());
    refuses(bench, &mut outer, &["/dev/fuse"])
}

fn not_mounted(bench: &Bench, rig: &Rig) -> Outcome {
    let point = rig.scratch("not-mounted")?;
    refuses(bench, rig.cluster.command("fuse-client").arg("umount").arg(&point), &["not"])
}

/// The client died and its mount is left: mounting again works, or says how to take the old one
/// away.
fn stale_mount_point(bench: &Bench, rig: &Rig) -> Outcome {
    let client = rig.cluster.daemon(MOUNT)?;
    client.kill()?;
    let again = rig.cluster.start(MOUNT, &bench.interrupt);
    let usable = bench.shell(
        Path::new("/"),
        &format!("cd '{}'; echo on > on; cat on", rig.mount().display()),
        15,
    );
    match (again, usable) {
        (Ok(()), Ok(_)) => Ok(()),
        (again, usable) => {
            let said = client.output_since(0);
            let last = exec::last_lines(&said, 3).to_lowercase();
            let _ = client.kill();
            crate::mounts::clear(rig.mount());
            rig.cluster.start(MOUNT, &bench.interrupt)?;
            ensure!(
                last.contains("umount"),
                "neither mounted over nor explained: {again:?} {} {last}",
                usable.is_ok()
            );
            Ok(())
        }
    }
}

/// Zeros, noise, a frame of nearly the right form, half-open connections: to every port, many
/// times.
fn garbage(bench: &Bench, rig: &Rig) -> Outcome {
    let layout: &layout::Layout = rig.cluster.layout();
    bench.shell(rig.mount(), "head -c 2000000 /dev/urandom > before; sync before", 20)?;
    let mut open = Vec::new();
    for round in 0..bench.size(30u64, 8) {
        for address in [layout.monitor, layout.mds].iter().chain(&layout.osds) {
            let stream = TcpStream::connect_timeout(address, Duration::from_secs(5));
            let mut stream = stream.doing(|| format!("{address} takes no connection any more"))?;
            stream
                .set_read_timeout(Some(Duration::from_millis(30)))
                .doing(|| "cannot set a time-out")?;
            let mut bytes = vec![0u8; 64 << (round % 8)];
            if round % 3 != 0 {
                fastrand::Rng::with_seed(round).fill(&mut bytes);
            }
            // A broken pipe is the right answer.
            let _ = stream.write_all(&bytes);
            if round % 4 == 1 {
                // What the other side greets with, sent back with a few bits changed.
                let mut greeting = [0u8; 256];
                let n = stream.read(&mut greeting).unwrap_or(0);
                if n > 0 {
                    greeting[fastrand::usize(0..n)] ^= 0x40;
                    let _ = stream.write_all(&greeting[..n]);
                    let _ = stream.write_all(&bytes);
                }
            }
            if round % 5 == 0 {
                open.push(stream);
            }
        }
    }
    rig.remount(bench)?;
    bench.shell(rig.mount(), "md5sum before; echo after > after; sync after; cat after", 20)?;
    ensure!(
        crate::cluster::is_clean(&rig.cluster.status(&bench.interrupt)?),
        "the cluster is not clean any more"
    );
    drop(open);
    Ok(())
}
