"""Removed files that are kept: `trash.py plant|harvest DIR PATH TREFOIL...`: a directory on a mount, its
path in the file system, and the operator's command with what it needs. The metadata service may be
killed between the two."""

import os
import shutil
import subprocess
import time

# Nobody's.
USER, OTHER = 65531, 65532


class Area:
    def __init__(self, point, path, command):
        self.point, self.path, self.command = point, path, command

    def run(self, *words, user=None):
        options = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        command = [*self.command, "trash", *words]
        return subprocess.run(command, capture_output=True, text=True, **options)

    def must(self, *words, user=None):
        done = self.run(*words, user=user)
        same(" ".join(words), (done.returncode, done.stderr), (0, ""))
        return done.stdout

    def refused(self, why, *words, user=None):
        done = self.run(*words, user=user)
        same(" ".join(words), (done.returncode != 0, why in done.stderr), (True, True))

    def listed(self, below="", user=None):
        """The paths in the trash below one in the area, without the area's."""
        lines = self.must("ls", self.path + below, user=user).splitlines()[1:-1]
        return sorted(line.split()[-1].removeprefix(self.path) for line in lines)


def put(path, text, owner=USER, mode=0o640):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)
    os.chown(path, owner, owner)


def get(path):
    with open(path) as file:
        return file.read()


def tree(area):
    """rm -rf of a tree, and the tree again."""
    project = f"{area.point}/project"
    os.makedirs(f"{project}/deep/deeper")
    names = ["a", "deep/b", "deep/deeper/c"]
    for name in names:
        put(f"{project}/{name}", name)
    before = [os.stat(f"{project}/{name}") for name in names]
    shutil.rmtree(project)
    same("listed", area.listed("/project"), sorted(f"/project/{name}" for name in names))
    area.must("restore", f"{area.path}/project")
    for name, old in zip(names, before):
        new = os.stat(f"{project}/{name}")
        same("content", get(f"{project}/{name}"), name)
        kept = ("st_ino", "st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_nlink")
        same("as it was", *([getattr(stat, what) for what in kept] for stat in (new, old)))
        same("its attributes", os.listxattr(f"{project}/{name}"), [])
    same("nothing is left", area.listed("/project"), [])


def replaced(area):
    """What an editor has saved over."""
    text = f"{area.point}/text"
    put(text, "first")
    for version in ("second", "third"):
        put(f"{area.point}/new", version)
        os.rename(f"{area.point}/new", text)
    same("both are kept", area.listed("/text"), ["/text", "/text"])
    area.refused("--to", "restore", f"{area.path}/text")
    area.must("restore", f"{area.path}/text", "--to", f"{area.path}/old")
    same("the last one", (get(f"{area.point}/old"), get(text)), ("second", "third"))


def rights(area):
    """Of whose file it is."""
    os.chmod(area.point, 0o755)
    home = f"{area.point}/home"
    os.mkdir(home, 0o700)
    os.chown(home, USER, USER)
    put(f"{home}/secret", "mine", mode=0o600)
    os.unlink(f"{home}/secret")
    same("the owner's", area.listed("/home", user=USER), ["/home/secret"])
    same("nobody else's", area.listed("/home", user=OTHER), [])
    path = f"{area.path}/home/secret"
    area.refused("nothing in the trash", "restore", path, user=OTHER)
    area.refused("may not write", "restore", path, "--to", f"{area.path}/stolen", user=USER)
    for words in (("empty", "--yes"), ("enable", area.path), ("disable", area.path)):
        area.refused("only root", *words, user=USER)
    area.must("restore", path, user=USER)
    stat = os.stat(f"{home}/secret")
    same("is his again", (stat.st_uid, stat.st_mode & 0o777), (USER, 0o600))


def opened(area):
    """A file that is open goes on."""
    path = f"{area.point}/open"
    put(path, "begun, ")
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    os.unlink(path)
    os.write(fd, b"and gone on")
    same("read back", os.pread(fd, 99, 0), b"begun, and gone on")
    os.close(fd)
    area.must("restore", f"{area.path}/open")
    same("restored", get(path), "begun, and gone on")


def off(area):
    """Where it is off, and after its time, a file is gone."""
    brief, never = f"{area.point}/brief", f"{area.point}/never"
    for path, keep in ((brief, "1s"), (never, "0")):
        os.mkdir(path)
        area.must("enable", path.replace(area.point, area.path), "--keep", keep)
        put(f"{path}/f", "x")
        os.unlink(f"{path}/f")
    same("at once", area.listed("/never"), [])
    end = time.monotonic() + 60
    while area.listed("/brief"):
        same("gone within a minute", time.monotonic() < end, True)
        time.sleep(0.5)
    area.refused("a time has a unit", "enable", area.path, "--keep", "7")
    area.refused("no such file", "enable", f"{area.path}/none")


def plant(area):
    put(f"{area.point}/before", "x")
    os.unlink(f"{area.point}/before")
    same("never switched on", area.listed(), [])
    area.must("enable", area.path)
    for check in (tree, replaced, rights, opened, off):
        check(area)
    put(f"{area.point}/survivor", "still here")
    os.unlink(f"{area.point}/survivor")


def harvest(area):
    area.must("restore", f"{area.path}/survivor")
    same("restored", get(f"{area.point}/survivor"), "still here")
    put(f"{area.point}/last", "x")
    os.unlink(f"{area.point}/last")
    area.must("disable", area.path)
    area.refused("not on here", "disable", area.path)
    put(f"{area.point}/after", "x")
    os.unlink(f"{area.point}/after")
    same("what was kept stays", "/last" in area.listed(), True)
    same("and no more comes", "/after" in area.listed(), False)
    area.refused("say --yes", "empty")
    area.must("empty", "--yes")
    same("empty", area.listed(), [])


check, point, path, *command = sys.argv[1:]
{"plant": plant, "harvest": harvest}[check](Area(point, path, command))
