"""Quotas of directories, on two mounts: what fits and what does not, for a user who is not root.

Arguments: the check; the same directory on both mounts; its path inside the file system; then the
command `trefoil` with the monitor's address.
"""

import ctypes
import mmap
import os
import shutil
import subprocess
import time

MIB = 1 << 20
USER = 1234
FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE = 1, 16
LIBC = ctypes.CDLL(None, use_errno=True)


def quota(*args):
    return subprocess.run([*TREFOIL, "quota", *args], capture_output=True, text=True, timeout=60)


def must(*args):
    done = quota(*args)
    same(f"trefoil quota {' '.join(args)}", (done.returncode, done.stderr), (0, ""))
    return done.stdout


def refused(why, *args):
    done = quota(*args)
    if done.returncode == 0 or why not in done.stderr:
        sys.exit(f"trefoil quota {' '.join(args)}: {done.returncode}, {done.stderr!r}, not {why!r}")


def as_user(call):
    """Calls as a user who is not root, in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            call()
            os._exit(0)
        except SystemExit as told:
            print(told, file=sys.stderr, flush=True)
        except BaseException as error:
            print(f"as a user: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    same("what a user did", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


def directory(name):
    path = os.path.join(ONE, name)
    os.mkdir(path)
    os.chown(path, USER, USER)
    return path, os.path.join(INSIDE, name)


def counted(path):
    """What the directory's counters say."""
    return tuple(
        int(os.getxattr(path, f"trefoil.dir.{what}").decode()) for what in ("rbytes", "rfiles")
    )


def recounted(path):
    """The same, found by looking at everything. Each file once, whatever its names."""
    found = {}
    for top, dirs, files in os.walk(path):
        for name in [".", *files, *dirs]:
            stat = os.lstat(os.path.join(top, name))
            regular = stat.st_mode & 0o170000 == 0o100000
            found[stat.st_ino] = stat.st_size if regular else 0
    return sum(found.values()), len(found)


def settled(path, expected=None, seconds=60):
    """Waits until the counters say what there is: lengths come with a close."""
    expected = expected or recounted(path)
    end = time.monotonic() + seconds
    while counted(path) != expected and time.monotonic() < end:
        time.sleep(0.05)
    same(f"counters of {path}", counted(path), expected)


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def write(path, length, piece=64 << 10):
    """Writes until all is there or nothing fits any more. Says how much was taken."""
    done = 0
    with open(path, "ab", buffering=0) as file:
        while done < length:
            try:
                done += file.write(b"q" * min(piece, length - done))
            except OSError as error:
                same(f"writing {path}", errno.errorcode[error.errno], "EDQUOT")
                break
    return done


def fallocate(file, mode, offset, length):
    offset, length = ctypes.c_int64(offset), ctypes.c_int64(length)
    if LIBC.fallocate(file.fileno(), mode, offset, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def files():
    top, inside = directory("files")
    must("set", inside, "--files", "4")

    def user():
        os.mkdir(f"{top}/sub")
        create(f"{top}/sub/a")
        os.symlink("a", f"{top}/sub/b")
        fails("a file too many", errno.EDQUOT, create, f"{top}/sub/c")
        fails("a directory too many", errno.EDQUOT, os.mkdir, f"{top}/c")
        fails("a link too many", errno.EDQUOT, os.symlink, "a", f"{top}/c")
        fails("a pipe too many", errno.EDQUOT, os.mkfifo, f"{top}/c")
        fails("no name", errno.EDQUOT, os.open, top, os.O_TMPFILE | os.O_WRONLY, 0o600)
        os.link(f"{top}/sub/a", f"{top}/sub/c")
        os.rename(f"{top}/sub/c", f"{top}/c")
        os.unlink(f"{top}/sub/b")
        create(f"{top}/d")

    as_user(user)
    settled(top, (0, 4))
    there = os.path.join(OTHER, "files")
    fails("on the other mount", errno.EDQUOT, create, f"{there}/e")
    os.unlink(f"{there}/d")
    held = os.open(f"{top}/held", os.O_CREAT | os.O_RDWR)
    os.unlink(f"{top}/held")
    fails("an open file without a name counts", errno.EDQUOT, create, f"{there}/e")
    os.close(held)
    settled(top, (0, 3))
    create(f"{there}/e")
    settled(top, (0, 4))


def lengths():
    top, inside = directory("bytes")
    must("set", inside, "--bytes", "8MiB")

    def user():
        same("what fits", write(f"{top}/full", 20 * MIB), 8 * MIB)
        fails("one more", errno.EDQUOT, os.truncate, f"{top}/full", 8 * MIB + 1)
        same("a file beside it", write(f"{top}/beside", 1), 0)
        os.unlink(f"{top}/full")
        same("removed, it gives back", write(f"{top}/again", 20 * MIB), 8 * MIB)
        os.truncate(f"{top}/again", 0)
        with open(f"{top}/again", "r+b", buffering=0) as file:
            fails("ftruncate", errno.EDQUOT, file.truncate, 8 * MIB + 1)
            for mode in (0, FALLOC_FL_ZERO_RANGE):
                fails(f"fallocate {mode}", errno.EDQUOT, fallocate, file, mode, MIB, 7 * MIB + 1)
            fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 9 * MIB)
            fails("far away", errno.EDQUOT, os.pwrite, file.fileno(), b"x", 9 * MIB)
            os.pwrite(file.fileno(), b"x", 8 * MIB - 1)
            same("a sparse file", os.fstat(file.fileno()).st_size, 8 * MIB)
            # A mapping changes what is there, and makes nothing longer.
            with mmap.mmap(file.fileno(), 8 * MIB) as mapped:
                mapped[MIB:2 * MIB] = b"m" * MIB
                mapped.flush()
            with open(f"{top}/copy", "w+b", buffering=0) as copy:
                fails("copying", errno.EDQUOT, os.copy_file_range,
                      file.fileno(), copy.fileno(), MIB, MIB, 0)
            file.truncate(4 * MIB)
            with open(f"{top}/copy", "r+b", buffering=0) as copy:
                same("copied", os.copy_file_range(file.fileno(), copy.fileno(), MIB, MIB, 0), MIB)
            os.unlink(f"{top}/copy")
        os.truncate(f"{top}/again", 8 * MIB)
        fails("root sets quotas", errno.EPERM, os.setxattr,
              top, "trefoil.quota.max_bytes", b"99999999")

    as_user(user)
    settled(top)
    # dd, as people try it; and the other mount, whose files count, too.
    os.unlink(f"{top}/again")
    there = os.path.join(OTHER, "bytes")
    dd = ["dd", "if=/dev/zero", f"of={there}/dd", "bs=1M", "count=30", "oflag=append",
          "conv=notrunc"]
    done = subprocess.run(dd, capture_output=True, text=True, timeout=120)
    if done.returncode == 0 or "Disk quota exceeded" not in done.stderr:
        sys.exit(f"dd: {done.returncode}, {done.stderr}")
    same("what dd wrote", os.stat(f"{there}/dd").st_size, 8 * MIB)
    same("this mount", write(f"{top}/here", 1), 0)


def both():
    """Both mounts write at once, each to files of its own and none beyond the limit."""
    top, inside = directory("both")
    must("set", inside, "--bytes", "40MiB")
    children = []
    for number, mount in enumerate((ONE, OTHER, ONE, OTHER)):
        child = os.fork()
        if child == 0:
            try:
                path = os.path.join(mount, "both", f"of-{number}")
                file = os.open(path, os.O_CREAT | os.O_WRONLY)
                done = 0
                while done < 30 * MIB:
                    done += os.write(file, b"b" * (256 << 10))
                    if number > 1:
                        # One that has room and is slow.
                        time.sleep(0.02)
            except OSError as error:
                os._exit(0 if error.errno == errno.EDQUOT else 1)
            os._exit(2)
        children.append(child)
    for child in children:
        same("a writer", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
    settled(top)
    used = counted(top)[0]
    if not 39 * MIB <= used <= 40 * MIB:
        sys.exit(f"four writers made {used} bytes of 40 MiB")


def trees():
    """Names do not move between quotas, mv copies; quotas around quotas."""
    top, inside = directory("trees")
    for name in ("a", "b", "a/deep"):
        os.mkdir(f"{top}/{name}")
    write(f"{top}/a/file", MIB)
    must("set", f"{inside}/a", "--bytes", "4MiB")
    must("set", f"{inside}/b", "--files", "5")
    settled(f"{top}/a")
    fails("rename", errno.EXDEV, os.rename, f"{top}/a/file", f"{top}/b/file")
    fails("rename of a directory", errno.EXDEV, os.rename, f"{top}/a/deep", f"{top}/deep")
    fails("link", errno.EXDEV, os.link, f"{top}/a/file", f"{top}/file")
    subprocess.run(["mv", f"{top}/a/file", f"{top}/b/file"], check=True, timeout=60)
    settled(f"{top}/a", (0, 2))
    settled(f"{top}/b", (MIB, 2))
    os.rename(f"{top}/b", f"{top}/c")
    os.rename(f"{top}/c", f"{top}/b")
    # Around both, and one inside.
    must("set", inside, "--bytes", "3MiB", "--files", "100")
    must("set", f"{inside}/a/deep", "--bytes", "1MiB")
    settled(top)
    same("in the innermost", write(f"{top}/a/deep/file", 5 * MIB), MIB)
    same("in the one around it", write(f"{top}/a/file", 5 * MIB), MIB)
    same("of all", write(f"{top}/beside", 1), 0)
    settled(top, (3 * MIB, 8))
    listed = must("get", f"{inside}/a/deep/file").splitlines()[1:]
    same("quotas of a file", [line.split()[0] for line in listed],
         [f"{inside}/a/deep", f"{inside}/a", inside])
    listed = [line.split()[0] for line in must("ls").splitlines()[1:]]
    for name in (inside, f"{inside}/a", f"{inside}/b", f"{inside}/a/deep"):
        same(f"{name} in the list", listed.count(name), 1)
    for name in ("a/deep", "a", "b"):
        must("rm", f"{inside}/{name}")
        refused("has no quota", "rm", f"{inside}/{name}")
    os.rename(f"{top}/b/file", f"{top}/a/moved")
    must("rm", inside)
    refused("counts for no quota", "get", inside)
    same("without a quota", write(f"{top}/beside", 5 * MIB), 5 * MIB)


def numbers():
    """Absurd ones; a limit below what there is; what is no directory."""
    top, inside = directory("numbers")
    write(f"{top}/file", MIB)
    refused("not a directory", "set", f"{inside}/file", "--bytes", "1")
    refused("no such file", "set", f"{inside}/none", "--bytes", "1")
    refused("begins at the root", "set", "relative", "--bytes", "1")
    for wrong in ("0", "-1", "18446744073709551616", "1X", ""):
        done = quota("set", inside, "--bytes", wrong)
        same(f"--bytes {wrong!r}", done.returncode, 2)
    for limit in ("9223372036854775808", "18446744073709551615"):
        must("set", inside, "--bytes", limit, "--files", limit)
        same("the limit", os.getxattr(top, "trefoil.quota.max_bytes").decode(), limit)
        settled(top, (MIB, 2))
        same("a write", write(f"{top}/file", 1), 1)
        os.truncate(f"{top}/file", MIB)
    huge = os.open(f"{top}/huge", os.O_CREAT | os.O_RDWR)
    os.ftruncate(huge, 1 << 55)
    same("as long as can be", counted(top), (MIB + (1 << 55), 3))
    os.close(huge)
    os.unlink(f"{top}/huge")
    os.setxattr(top, "trefoil.quota.max_bytes", b"1000")
    os.setxattr(top, "trefoil.quota.max_files", b"1")
    settled(top, (MIB, 2))
    same("over it", write(f"{top}/file", 1), 0)
    fails("over it", errno.EDQUOT, create, f"{top}/new")
    with open(f"{top}/file", "r+b", buffering=0) as file:
        file.write(b"what is there may change")
        file.truncate(500)
    settled(top, (500, 2))
    same("below it again", write(f"{top}/file", 1), 1)
    os.removexattr(top, "trefoil.quota.max_files")
    create(f"{top}/new")
    fails("no number", errno.EINVAL, os.setxattr, top, "trefoil.quota.max_bytes", b"1k")
    fails("a counter", errno.EPERM, os.setxattr, top, "trefoil.dir.rbytes", b"1")
    fails("a file", errno.ENOTDIR, os.setxattr, f"{top}/new", "trefoil.quota.max_bytes", b"1")
    fails("of a file", errno.ENODATA, os.getxattr, f"{top}/new", "trefoil.dir.rbytes")
    same("names of attributes", os.listxattr(top), [])


def sizes():
    """statfs shows the quota."""
    top, inside = directory("sizes")
    must("set", inside, "--bytes", "64MiB", "--files", "10")
    write(f"{top}/file", 16 * MIB, MIB)
    settled(top)
    for path in (top, f"{top}/file", os.path.join(OTHER, "sizes")):
        shown = os.statvfs(path)
        sizes = (shown.f_blocks * shown.f_frsize, shown.f_bavail * shown.f_frsize)
        same(f"space at {path}", sizes, (64 * MIB, 48 * MIB))
        same(f"files at {path}", (shown.f_files, shown.f_ffree), (10, 8))
    if os.statvfs(ONE).f_blocks * shown.f_frsize <= 64 * MIB:
        sys.exit("the quota is shown outside of its directory")


def writer():
    """Who writes a file already when its directory gets a quota is held up, too."""
    top, inside = directory("writer")
    file = os.open(f"{top}/file", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(file, b"w" * MIB)
    must("set", inside, "--bytes", "2MiB")
    settled(top, (MIB, 2))
    os.write(file, b"w" * MIB)
    fails("beyond it", errno.EDQUOT, os.write, file, b"w")
    must("set", inside, "--bytes", "3MiB")
    os.write(file, b"w" * MIB)
    fails("beyond the new one", errno.EDQUOT, os.write, file, b"w")
    must("rm", inside)
    os.write(file, b"w" * MIB)
    os.close(file)


def plant():
    """A tree that takes a while to count."""
    top, inside = directory("tree")
    for number in range(60):
        path = f"{top}/{number % 7}/{number}"
        os.makedirs(path)
        for file in range(100):
            with open(f"{path}/{file}", "wb") as one:
                one.write(b"t" * file)
        os.link(f"{path}/99", f"{path}/link")
    must("set", inside, "--bytes", "1GiB")


def harvest():
    top, inside = os.path.join(ONE, "tree"), os.path.join(INSIDE, "tree")
    settled(top, seconds=120)
    same("counted", "being counted" in must("get", inside), False)
    file = f"{top}/3/3/new"
    write(file, 1000)
    shutil.rmtree(f"{top}/4")
    settled(top)
    # A directory that is removed takes its quota along.
    shutil.rmtree(top)
    same("in the list", inside in must("ls"), False)


CHECKS = {
    "rules": [files, lengths, both, trees, numbers, sizes, writer],
    "plant": [plant],
    "harvest": [harvest],
}

_, CHECK, ONE, OTHER, INSIDE, *TREFOIL = sys.argv
for check in CHECKS[CHECK]:
    check()
