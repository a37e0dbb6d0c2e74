//! A guest that boots from a volume: a PC of qemu's (emulated, so that it runs on every machine),
//! with Debian's kernel, which writes stamps while a storage daemon is killed under it, and finds
//! them again after it was killed itself.

use super::{serve, shell, sockets, uri};
use crate::cluster::layout::osd_name;
use crate::error::{Outcome, ensure};
use crate::exec::last_lines;
use crate::testrun::Bench;
use crate::testrun::rig::{Background, Rig, background};
use crate::testrun::setup;
use std::path::PathBuf;
use std::process::Command;

const DISK: &str = include_str!("guest_disk.sh");
/// What only this test needs, with Debian's packages.
const PROGRAMS: [(&str, &str); 8] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("syslinux", "syslinux"),
    ("/usr/lib/syslinux/mbr/mbr.bin", "syslinux-common"),
    ("mcopy", "mtools"),
    ("mkfs.vfat", "dosfstools"),
    ("sfdisk", "fdisk"),
    ("mke2fs", "e2fsprogs"),
    ("/bin/busybox", "busybox-static"),
];
/// Fetches Debian's kernel into this directory, and unpacks it there; it is not installed.
const KERNEL: &str = "package() { apt-cache depends linux-image-cloud-amd64 \
     | sed -n 's/.*Depends: \\(linux-image-[0-9].*\\)/\\1/p' | head -1; }; \
     test -n \"$(package)\" || apt-get update -q; \
     apt-get download -q $(package) || { apt-get update -q && apt-get download -q $(package); }; \
     dpkg -x linux-image-*.deb kernel";
/// An emulated PC is up, or has written some stamps, within this time, on a busy machine too.
const SECONDS: u64 = 300;
/// Stamps between two events.
const STAMPS: usize = 5;
const VOLUME: &str = "guest";

/// A running guest.
struct Guest {
    process: Background,
    console: PathBuf,
}

impl Guest {
    fn boot(rig: &Rig, name: &str) -> Outcome<Guest> {
        let console = rig.scratch("guest")?.join(format!("console-{name}"));
        let disk = uri(VOLUME, &sockets().join(VOLUME));
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-accel", "tcg", "-m", "256", "-display", "none", "-nodefaults"]);
        command.args(["-no-reboot", "-serial"]).arg(format!("file:{}", console.display()));
        command.arg("-drive").arg(format!("file={disk},format=raw,if=virtio,cache=none"));
        let process =
            background(&mut command, &rig.scratch("guest")?.join(format!("qemu-{name}")))?;
        Ok(Guest { process, console })
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// How many stamps the guest found when it came up.
    fn found(&self, bench: &Bench, rig: &Rig) -> Outcome<usize> {
        let count = |said: &str| {
            let rest = said.split("guest: up with ").nth(1)?;
            rest.split(' ').next()?.parse().ok()
        };
        self.wait(bench, rig, "the guest to come up", |said| count(said).is_some())?;
        Ok(count(&self.said()).expect("it said so a moment ago"))
    }

    /// The last stamp of which the guest has said that it is synced.
    fn stamp(&self) -> usize {
        let told = |line: &str| line.trim_end().strip_prefix("guest: stamp ")?.parse().ok();
        self.said().lines().filter_map(told).max().unwrap_or(0)
    }

    /// Waits for some more stamps.
    fn work(&self, bench: &Bench, rig: &Rig) -> Outcome<usize> {
        let enough = self.stamp() + STAMPS;
        self.wait(bench, rig, "the guest to write on", |_| self.stamp() >= enough)?;
        Ok(self.stamp())
    }

    fn wait(&self, bench: &Bench, rig: &Rig, what: &str, ready: impl Fn(&str) -> bool) -> Outcome {
        rig.wait_for(bench, what, SECONDS, || {
            let said = self.said();
            for fault in ["no root", "is damaged", "I/O error", "EXT4-fs error", "panic"] {
                ensure!(!said.contains(fault), "the guest says:\n{}", last_lines(&said, 12));
            }
            Ok(ready(&said))
        })
    }
}

/// The test.
pub fn boots(bench: &Bench, rig: &Rig) -> Outcome {
    setup::install(&PROGRAMS, &bench.interrupt)?;
    let scratch = rig.scratch("guest")?;
    bench.shell(&scratch, KERNEL, SECONDS)?;
    bench.shell(&scratch, DISK, SECONDS)?;
    let disk = scratch.join("disk");
    let import = format!("trefoil volume import {} $V", disk.display());
    shell(bench, rig, VOLUME, &import, SECONDS)?;

    let server = serve(bench, rig, VOLUME, VOLUME, &[])?;
    let guest = Guest::boot(rig, "first")?;
    let found = guest.found(bench, rig)?;
    ensure!(found == 0, "{found} stamps in a new file system");
    guest.work(bench, rig)?;
    rig.cluster.kill(&osd_name(1))?;
    let degraded = guest.work(bench, rig);
    rig.cluster.start(&osd_name(1), &bench.interrupt)?;
    degraded?;
    guest.work(bench, rig)?;
    // first the server, so that no answer of the guest is counted that it did not get
    server.process.kill();
    let promised = guest.stamp();
    guest.process.kill();

    let server = serve(bench, rig, VOLUME, VOLUME, &["--steal"])?;
    let guest = Guest::boot(rig, "second")?;
    let found = guest.found(bench, rig)?;
    ensure!(found >= promised, "{found} stamps are there, {promised} were synced");
    guest.work(bench, rig)?;
    guest.process.kill();
    server.stop(bench)?;
    rig.wait_clean(bench, SECONDS)
}
