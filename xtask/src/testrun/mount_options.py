"""mount(8) with the client's helper: `mount_options.py ADDRESS SCRATCH CLIENT`, in a mount namespace
of its own. A tmpfs that is mounted with the same words says which flags the kernel must have."""

import errno
import os
import subprocess
import sys
import time

GENERIC = set(
    "ro rw nosuid nodev noexec noatime nodiratime relatime nosymfollow sync dirsync lazytime".split()
)
LISTS = (
    "defaults,_netdev,nofail,noauto,x-systemd.automount,X-a=b,comment=text,nouser,silent",
    "ro,nosuid,nodev,noexec,noatime,nodiratime,nosymfollow",
    "user,lazytime,strictatime,dirsync,iversion",
    "users,exec,suid,dev,norelatime,atime,diratime,symfollow,nolazytime,noiversion,nomand,sync",
)
REMOUNTS = ("ro", "rw", "ro,noatime", "rw,nosuid", "nodev,lazytime", "rw,nolazytime,sync", "async")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def must(*command):
    done = run(*command)
    same(" ".join(command), (done.returncode, done.stderr), (0, ""))


def flags(point):
    """The generic flags of a mount and of its file system."""
    with open("/proc/self/mountinfo") as table:
        line = [line.split() for line in table if line.split()[4] == point][-1]
    return (set(line[5].split(",")) & GENERIC, set(line[-1].split(",")) & GENERIC)


def is_running(client):
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline") as file:
                if client in file.read().split("\0"):
                    return True
        except OSError:
            pass
    return False


def effects(point, options):
    """Flags do what they say."""
    if "ro" in options:
        return fails("create", errno.EROFS, open, f"{point}/new", "w")
    with open(f"{point}/program", "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod(f"{point}/program", 0o755)
    if "user" in options:
        fails("a program", errno.EACCES, run, f"{point}/program")
    else:
        same("a program", run(f"{point}/program").returncode, 0)
    os.unlink(f"{point}/program")
    for number in range(3):
        os.mkdir(f"{point}/d{number}")
        fd = os.open(f"{point}/d{number}/f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"on the disk")
        os.close(fd)
        os.rename(f"{point}/d{number}/f", f"{point}/f")
        os.unlink(f"{point}/f")
        os.rmdir(f"{point}/d{number}")


def is_moved(point, listed=False):
    """Does the first read of a file, or of a directory, after a change move its access time?"""
    path = f"{point}/read"
    os.mkdir(path)
    with open(f"{path}/file", "w") as file:
        file.write("something")
    if listed:
        os.listdir(path)
    else:
        path = f"{path}/file"
        with open(path) as file:
            file.read()
    stat = os.stat(path)
    os.unlink(f"{point}/read/file")
    os.rmdir(f"{point}/read")
    return stat.st_atime_ns > stat.st_mtime_ns


def access_times(point, options):
    """Reads move them by the options; after a remount soon."""
    end = time.monotonic() + 30
    expected = ("noatime" not in options, not {"noatime", "nodiratime"} & set(options))
    while (found := (is_moved(point), is_moved(point, True))) != expected:
        if time.monotonic() > end:
            same(f"access times move with {options}", found, expected)
        time.sleep(0.1)


def links(point):
    fails("through a link", errno.ELOOP, os.stat, f"{point}/link")
    same("link", os.readlink(f"{point}/link"), "target")


def main(address, scratch, client):
    point, local, helpers = (f"{scratch}/{name}" for name in ("point", "local", "helpers"))
    for path in (point, local, helpers):
        os.makedirs(path, exist_ok=True)
    must("mount", "-t", "tmpfs", "tmpfs", helpers)
    subprocess.run([client, "install-helper", "--dir", helpers], check=True, capture_output=True)
    sbin = os.path.realpath("/sbin")
    must("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={helpers}:{sbin}", sbin)
    try:
        check(address, scratch, point, local)
    finally:
        # Its client is in this namespace, which would go on with it.
        while run("umount", "--lazy", point).returncode == 0:
            pass


def check(address, scratch, point, local):
    def mount(options, own=""):
        must("mount", "-t", "fuse.trefoil", "-o", options + own, address, point)
        must("mount", "-t", "tmpfs", "-o", options, "tmpfs", local)

    def unmount():
        must("umount", point)
        must("umount", local)
        end = time.monotonic() + 30
        while is_running(point) and time.monotonic() < end:
            time.sleep(0.05)

    mount("defaults")
    open(f"{point}/target", "w").close()
    os.symlink("target", f"{point}/link")
    unmount()
    for options in LISTS:
        mount(options)
        same(f"flags of {options}", flags(point), flags(local))
        effects(point, options.split(","))
        if "nosymfollow" in options.split(","):
            links(point)
        if "ro" not in options.split(","):
            access_times(point, options.split(","))
        unmount()

    mount("defaults", ",timeout=20")
    for options in REMOUNTS:
        must("mount", "-o", f"remount,{options}", point)
        must("mount", "-o", f"remount,{options}", local)
        same(f"flags after remount,{options}", flags(point), flags(local))
        if "rw" in flags(point)[0] & flags(point)[1]:
            access_times(point, flags(point)[0])
    with open(f"{point}/held", "w") as file:
        done = run("mount", "-o", "remount,ro", point)
        same("remount,ro of a busy one", (done.returncode != 0, "open for writing" in done.stderr), (True, True))
        file.write("still")
    os.unlink(f"{point}/held")
    must("mount", "-o", "remount,bind,ro", point)
    effects(point, ["ro"])
    must("mount", "-o", "remount,bind,rw", point)

    fstab = f"{scratch}/fstab"
    with open(fstab, "w") as file:
        file.write(f"{address} {point} fuse.trefoil noauto,_netdev,nofail,x-a,comment=b,nodev,retry=20 0 0\n")
    done = run("mount", "-T", fstab, "-o", "remount,ro", point)
    same("remount by fstab", (done.returncode, "nodev" in str(flags(point))), (0, True))
    same("what it says", "stay as they were mounted" in done.stderr, True)
    unmount()
    must("mount", "-T", fstab, point)
    same("mounted by fstab", flags(point), ({"rw", "nodev", "relatime"}, {"rw"}))
    must("umount", point)

    for options, said in (
        ("rsize=4096", "max_request_bytes"),
        ("readpolicy=hash", "read_policy"),
        ("mand", "mandatory"),
        ("discard", "leave it out"),
    ):
        done = run("mount", "-t", "fuse.trefoil", "-o", options, address, point)
        same(f"-o {options}", (done.returncode != 0, said in done.stderr), (True, True))
    done = run("mount", "-t", "fuse.trefoil", "-s", "-o", "discard", address, point)
    same("mount -s", (done.returncode, "passed over" in done.stderr), (0, True))
    must("umount", point)
    mount("defaults")
    os.unlink(f"{point}/link")
    os.unlink(f"{point}/target")
    unmount()


main(*sys.argv[1:4])
