"""What one program does on two mounts, A and B, of one cluster. Run by two_mounts.rs: `two_mounts.py CHECK A B`.

Nothing here waits for a cache to become old: what one mount did, the other must show at once.
"""

import errno
import fcntl
import mmap
import os
import random
import signal
import struct
import sys
import time

WHOLE = (0, 0)
# Nobody's.
USER = 65531


def put(path, data, flags=os.O_CREAT | os.O_TRUNC, at=None):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    if at is None:
        os.write(fd, data)
    else:
        os.pwrite(fd, data, at)
    os.close(fd)


def get(path):
    with open(path, "rb") as file:
        return file.read()


def wait_for_go():
    """Until the test says so, by making a file that is on no mount."""
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)


def insist(call, *args):
    """Calls until it succeeds, half a minute at most."""
    end = time.monotonic() + 30
    while True:
        try:
            return call(*args)
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"{call.__name__} still fails: {error}")
            time.sleep(0.1)


def data(a, b):
    """Bytes, sizes and times, by turns."""
    rng = random.Random(7)
    model = b""
    for turn in range(30):
        here, there = (a, b) if turn % 2 else (b, a)
        name = "file"
        kind = rng.randrange(4) if turn else 0
        if kind == 0:
            model = rng.randbytes(rng.randrange(1, 300_000))
            put(f"{here}/{name}", model)
        elif kind == 1:
            more = rng.randbytes(rng.randrange(1, 70_000))
            put(f"{here}/{name}", more, os.O_APPEND)
            model += more
        elif kind == 2:
            size = rng.randrange(0, 400_000)
            os.truncate(f"{here}/{name}", size)
            model = model[:size].ljust(size, b"\0")
        else:
            at = rng.randrange(0, len(model) + 50_000)
            piece = rng.randbytes(rng.randrange(1, 9_000))
            put(f"{here}/{name}", piece, 0, at)
            model = model.ljust(at, b"\0")
            model = model[:at] + piece + model[at + len(piece):]
        same(f"turn {turn}: size there", os.stat(f"{there}/{name}").st_size, len(model))
        same(f"turn {turn}: bytes there", get(f"{there}/{name}") == model, True)
        same(f"turn {turn}: bytes here", get(f"{here}/{name}") == model, True)
        mine, theirs = os.stat(f"{here}/{name}"), os.stat(f"{there}/{name}")
        same(f"turn {turn}: mtime", mine.st_mtime_ns, theirs.st_mtime_ns)


def descriptors(a, b):
    """Files that are open or mapped while the other mount changes them."""
    put(f"{a}/f", b"first")
    fd = os.open(f"{b}/f", os.O_RDWR)
    same("read before", os.pread(fd, 99, 0), b"first")
    put(f"{a}/f", b"second", 0, 0)
    same("read after the other's write", os.pread(fd, 99, 0), b"second")
    same("fstat after the other's write", os.fstat(fd).st_size, 6)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    same("mapped before", mapped[:6], b"second")
    put(f"{a}/f", b"THIRD!", 0, 0)
    same("mapped after the other's write", mapped[:6], b"THIRD!")
    os.truncate(f"{a}/f", 3)
    same("cut by the other", (os.pread(fd, 99, 0), os.lseek(fd, 0, os.SEEK_END)), (b"THI", 3))
    put(f"{a}/g", b"replacement")
    os.rename(f"{a}/g", f"{a}/f")
    same("the name shows the new file", get(f"{b}/f"), b"replacement")
    same("the descriptor shows the old one", os.pread(fd, 99, 0), b"THI")
    os.pwrite(fd, b"still mine", 0)
    same("which can be written", os.pread(fd, 99, 0), b"still mine")
    same("and has no name", os.fstat(fd).st_nlink, 0)
    same("and does not leak into the new one", get(f"{a}/f"), b"replacement")
    mapped.close()
    os.close(fd)
    put(f"{a}/log", b"x" * 5000)
    fd = os.open(f"{b}/log", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"more")
    os.truncate(f"{a}/log", 0)
    os.write(fd, b"after ")
    os.write(fd, b"the cut")
    same("appended after the other's cut", get(f"{a}/log"), b"after the cut")
    same("and here", get(f"{b}/log"), b"after the cut")
    os.close(fd)
    fd = os.open(f"{b}/f", os.O_RDONLY)
    os.unlink(f"{a}/f")
    fails("removed by the other", errno.ENOENT, os.stat, f"{b}/f")
    same("unlinked while open elsewhere", os.pread(fd, 99, 0), b"replacement")
    os.close(fd)


def names(a, b):
    """Names and attributes, by turns, with each side's caches as warm as they get."""
    for turn in range(8):
        here, there = (a, b) if turn % 2 else (b, a)
        os.mkdir(f"{here}/d")
        put(f"{here}/d/x", b"x")
        same("listed", sorted(os.listdir(f"{there}/d")), ["x"])
        os.rename(f"{there}/d/x", f"{there}/d/y")
        fails("the old name", errno.ENOENT, os.stat, f"{here}/d/x")
        inode = os.stat(f"{there}/d/y").st_ino
        same("the new name", os.stat(f"{here}/d/y").st_ino, inode)
        os.chmod(f"{here}/d/y", 0o600 + turn % 8)
        same("mode", os.stat(f"{there}/d/y").st_mode & 0o777, 0o600 + turn % 8)
        os.link(f"{there}/d/y", f"{there}/d/z")
        same("links", os.stat(f"{here}/d/y").st_nlink, 2)
        os.setxattr(f"{here}/d/y", "user.turn", str(turn).encode())
        same("attribute", os.getxattr(f"{there}/d/z", "user.turn"), str(turn).encode())
        os.symlink("y", f"{here}/d/l")
        same("through a link", get(f"{there}/d/l"), b"x")
        fails("not empty", errno.ENOTEMPTY, os.rmdir, f"{there}/d")
        for name in ["l", "z", "y"]:
            os.unlink(f"{there}/d/{name}")
        same("emptied", os.listdir(f"{here}/d"), [])
        fails("removed", errno.ENOENT, os.stat, f"{here}/d/y")
        os.rmdir(f"{here}/d")
        fails("the directory", errno.ENOENT, os.stat, f"{there}/d")


def leases(a, b):
    """Whatever A changes B sees at once, though B answers from memory, of which it fills all it can."""
    names = [f"n{at:03}" for at in range(120)]
    for turn in range(4):
        here, there = (a, b) if turn % 2 else (b, a)
        os.makedirs(f"{here}/leases/sub/deep")
        for name in names:
            put(f"{here}/leases/{name}", b"1")

        def warm():
            """All of it is known there."""
            for _ in range(2):
                for entry in os.scandir(f"{there}/leases"):
                    entry.stat(follow_symlinks=False)
                fails("none", errno.ENOENT, os.stat, f"{there}/leases/none")
                os.stat(f"{there}/leases/sub/deep")

        def mine(name):
            return f"{here}/leases/{name}"

        def theirs(name):
            return f"{there}/leases/{name}"

        for name in names[:8]:
            warm()
            put(mine("none"), b"now")
            same("made", get(theirs("none")), b"now")
            os.unlink(mine("none"))
            warm()
            os.rename(mine(name), mine("moved"))
            fails("moved away", errno.ENOENT, os.stat, theirs(name))
            same("moved", os.stat(theirs("moved")).st_ino, os.stat(mine("moved")).st_ino)
            warm()
            os.rename(mine("moved"), mine(name))
            same("moved back", os.stat(theirs(name)).st_ino, os.stat(mine(name)).st_ino)
            warm()
            os.chmod(mine(name), 0o640)
            same("mode", os.stat(theirs(name)).st_mode & 0o777, 0o640)
            warm()
            os.setxattr(mine(name), "user.x", b"y")
            same("attribute", os.listxattr(theirs(name)), ["user.x"])
            os.removexattr(mine(name), "user.x")
            same("no attribute", os.listxattr(theirs(name)), [])
            warm()
            put(mine(name), b"longer", os.O_APPEND)
            same("size", os.stat(theirs(name)).st_size, 7)
            fd = os.open(mine(name), os.O_WRONLY)
            for size in range(8, 12):
                warm()
                os.pwrite(fd, b"z", size - 1)
                same("size while it is written", os.stat(theirs(name)).st_size, size)
            os.close(fd)
            warm()
            os.truncate(mine(name), 3)
            same("cut", os.stat(theirs(name)).st_size, 3)
            warm()
            os.utime(mine(name), (5, 6))
            same("times", os.stat(theirs(name)).st_mtime, 6)
            warm()
            os.link(mine(name), mine("sub/link"))
            same("links", os.stat(theirs(name)).st_nlink, 2)
            warm()
            os.unlink(mine("sub/link"))
            same("links left", os.stat(theirs(name)).st_nlink, 1)
            warm()
            os.rename(mine("sub/deep"), mine("deep"))
            same("a directory has moved", os.path.exists(theirs("sub/deep")), False)
            same("its parent", os.stat(theirs("deep/..")).st_ino, os.stat(mine("")).st_ino)
            os.rename(mine("deep"), mine("sub/deep"))
            warm()
            os.unlink(mine(name))
            fails("removed", errno.ENOENT, os.stat, theirs(name))
            same("not listed", name in os.listdir(theirs("")), False)
        for name in os.listdir(theirs("")):
            if name != "sub":
                os.unlink(theirs(name))
        os.removedirs(mine("sub/deep"))


def warmed(a, b):
    """B knows a directory, and goes on to look at it until it is told to stop."""
    os.mkdir(f"{a}/warmed")
    for name in "xyz":
        put(f"{a}/warmed/{name}", b"1")
    said = False
    while not os.path.exists(os.environ["GO"]):
        for entry in os.scandir(f"{b}/warmed"):
            entry.stat()
        if not said:
            print("held", flush=True)
            said = True


def changed(a, b):
    """A changes what B knew, though B is gone."""
    os.chmod(f"{a}/warmed/x", 0o600)
    os.unlink(f"{a}/warmed/y")
    same("left", sorted(os.listdir(f"{a}/warmed")), ["x", "z"])


def changed_there(a, b):
    """B has seen it."""
    same("left there", sorted(os.listdir(f"{b}/warmed")), ["x", "z"])
    same("mode there", os.stat(f"{b}/warmed/x").st_mode & 0o777, 0o600)
    for name in "xz":
        os.unlink(f"{b}/warmed/{name}")
    os.rmdir(f"{a}/warmed")


def as_user(directory, call):
    """What a call in a directory returns to a user who owns nothing, or its error's number."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # What lies above may be closed to him.
        os.chdir(directory)
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        try:
            said = repr(call())
        except OSError as error:
            said = repr(error.errno)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read().decode()
    same("the user's process", os.waitpid(child, 0)[1], 0)
    return text


def acl(user, mask=7):
    """An ACL that names the user."""
    no_id = 0xFFFFFFFF
    entries = [(1, 7, no_id), (2, user, USER), (4, 0, no_id), (16, mask, no_id), (32, 0, no_id)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def acls(a, b):
    """What an ACL grants through one mount, and takes away, counts on the other, whatever its kernel has cached."""
    access, default = "system.posix_acl_access", "system.posix_acl_default"
    reads, lists, refused = lambda: get("f"), lambda: os.listdir("."), repr(errno.EACCES)
    for top in (a, b):
        os.chmod(top, 0o755)
    for turn in range(6):
        here, there = (a, b) if turn % 2 else (b, a)
        os.mkdir(f"{here}/acls", 0o755)
        put(f"{here}/acls/f", b"x")
        os.chmod(f"{here}/acls/f", 0o600)
        for top in (here, there):
            same("without an ACL", as_user(f"{top}/acls", reads), refused)
        kept = os.open(f"{there}/acls/f", os.O_RDONLY)
        os.setxattr(f"{here}/acls/f", access, acl(4))
        for top in (there, here, there):
            same("granted", as_user(f"{top}/acls", reads), repr(b"x"))
        same("shown", os.getxattr(f"{there}/acls/f", access), acl(4))
        os.setxattr(f"{here}/acls/f", access, acl(0))
        for top in (there, here):
            same("taken away", as_user(f"{top}/acls", reads), refused)
        same("shown at an open file", os.getxattr(kept, access), acl(0))
        os.close(kept)
        os.setxattr(f"{there}/acls/f", access, acl(6))
        same("granted by the other", as_user(f"{here}/acls", reads), repr(b"x"))
        os.chmod(f"{there}/acls/f", 0o700)
        for top in (here, there):
            same("the mask forbids it", as_user(f"{top}/acls", reads), refused)
            same("in the ACL, too", os.getxattr(f"{top}/acls/f", access), acl(6, mask=0))
        os.chmod(f"{here}/acls/f", 0o740)
        same("and grants it", as_user(f"{there}/acls", reads), repr(b"x"))
        os.removexattr(f"{here}/acls/f", access)
        same("there is none any more", as_user(f"{there}/acls", reads), refused)
        os.setxattr(f"{here}/acls", default, acl(5))
        os.mkdir(f"{there}/acls/made")
        os.setxattr(f"{there}/acls/made", default, acl(5, mask=1))
        os.mkdir(f"{here}/acls/made/deeper")
        for top in (here, there):
            same("inherited", as_user(f"{top}/acls/made", lists), repr(["deeper"]))
            same("another one, too", as_user(f"{top}/acls/made/deeper", lists), refused)
            same("handed on", os.getxattr(f"{top}/acls/made/deeper", default), acl(5, mask=1))
        os.rmdir(f"{there}/acls/made/deeper")
        os.rmdir(f"{there}/acls/made")
        os.unlink(f"{there}/acls/f")
        os.rmdir(f"{there}/acls")


def appends(a, b):
    """Many writers append to one file through both mounts: whole records, each writer's in order."""
    records, writers = 60, 4
    path = "log"
    put(f"{a}/{path}", b"")
    children = []
    for writer in range(writers):
        pid = os.fork()
        if pid == 0:
            fd = os.open(f"{(a, b)[writer % 2]}/{path}", os.O_WRONLY | os.O_APPEND)
            for number in range(records):
                record = f"<{writer} {number} ".encode() + bytes([97 + writer]) * (number * 37 % 5000) + b">\n"
                same("bytes taken", os.write(fd, record), len(record))
            os._exit(0)
        children.append(pid)
    for pid in children:
        same("a writer's end", os.waitpid(pid, 0)[1], 0)
    content = get(f"{a}/{path}")
    same("both show the same", get(f"{b}/{path}") == content, True)
    seen = {writer: 0 for writer in range(writers)}
    for line in content.splitlines():
        writer, number, rest = line[1:].split(b" ", 2)
        writer, number = int(writer), int(number)
        same("record in turn", number, seen[writer])
        same("whole record", (line[:1], rest), (b"<", bytes([97 + writer]) * (number * 37 % 5000) + b">"))
        seen[writer] += 1
    same("records", seen, {writer: records for writer in range(writers)})


def small_appends(a, b):
    """Writers append four bytes at a time, two on A and one, seldom, on B: nothing is torn, lost or late."""
    path, words = "words", 1500
    put(f"{a}/{path}", b"")
    children = []
    for writer in range(3):
        pid = os.fork()
        if pid == 0:
            fd = os.open(f"{b if writer == 2 else a}/{path}", os.O_WRONLY | os.O_APPEND)
            for number in range(words // 50 if writer == 2 else words):
                same("bytes taken", os.write(fd, writer.to_bytes(2, "little") + number.to_bytes(2, "little")), 4)
                if writer == 2:
                    time.sleep(0.01)
            os._exit(0)
        children.append(pid)

    def in_turn(place):
        seen = [0, 0, 0]
        content = get(f"{place}/{path}")
        same("whole words", len(content) % 4, 0)
        for at in range(0, len(content), 4):
            writer, number = content[at] + 256 * content[at + 1], content[at + 2] + 256 * content[at + 3]
            same("word in turn", number, seen[writer])
            seen[writer] += 1
        return seen

    for pid in children:
        same("a writer's end", os.waitpid(pid, 0)[1], 0)
    for place in [a, b]:
        same("words", in_turn(place), [words, words, words // 50])
    # What A has appended B sees at once.
    fd = os.open(f"{a}/seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    expected = b""
    for number in range(200):
        word = number.to_bytes(4, "little")
        os.write(fd, word)
        expected += word
        if number % 20 == 19:
            same("size", os.stat(f"{b}/seen").st_size, len(expected))
            same("content", get(f"{b}/seen"), expected)
    os.close(fd)


def locked(fd, kind, range=WHOLE):
    """Tries a lock."""
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB, range[1], range[0])
        return True
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False


def child(path, act):
    """Another process with the file open: a holder of its own. Returns its pid and a pipe with what it says."""
    out, to = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        fd = os.open(path, os.O_RDWR)
        act(fd, lambda word: os.write(to, word))
        os._exit(0)
    os.close(to)
    return pid, out


def locks(a, b):
    """Byte-range locks from both sides."""
    put(f"{a}/l", b"")
    here, there = os.open(f"{a}/l", os.O_RDWR), os.open(f"{b}/l", os.O_RDWR)

    def try_from(path, kind, range=WHOLE):
        pid, out = child(path, lambda fd, say: say(b"y" if locked(fd, kind, range) else b"n"))
        answer = os.read(out, 1)
        os.waitpid(pid, 0)
        os.close(out)
        return answer == b"y"

    same("lock", locked(here, fcntl.LOCK_EX, (10, 10)), True)
    same("taken, seen from there", try_from(f"{b}/l", fcntl.LOCK_SH, (15, 1)), False)
    same("taken, seen from here", try_from(f"{a}/l", fcntl.LOCK_SH, (15, 1)), False)
    same("beside it", try_from(f"{b}/l", fcntl.LOCK_EX, (20, 5)), True)
    fcntl.lockf(here, fcntl.LOCK_UN, 4, 12)
    same("the hole", try_from(f"{b}/l", fcntl.LOCK_EX, (12, 4)), True)
    same("around the hole", try_from(f"{b}/l", fcntl.LOCK_EX, (11, 4)), False)
    same("downgrade", locked(here, fcntl.LOCK_SH, (10, 10)), True)
    same("shared", try_from(f"{b}/l", fcntl.LOCK_SH), True)
    same("not alone", try_from(f"{b}/l", fcntl.LOCK_EX), False)

    def wait(fd, say):
        fcntl.lockf(fd, fcntl.LOCK_EX)
        say(b"g")

    first, first_out = child(f"{b}/l", wait)
    time.sleep(0.3)
    second, second_out = child(f"{b}/l", wait)
    time.sleep(0.3)
    begin = time.monotonic()
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    same("a killed waiter dies soon", time.monotonic() - begin < 15, True)
    same("and has nothing", os.read(first_out, 1), b"")
    fcntl.lockf(here, fcntl.LOCK_UN)
    same("the next gets it", os.read(second_out, 1), b"g")
    os.waitpid(second, 0)
    same("its end lets it go", try_from(f"{a}/l", fcntl.LOCK_EX), True)

    # A signal with a handler ends a wait, too.
    same("lock", locked(there, fcntl.LOCK_EX), True)

    def interrupted(fd, say):
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit("x"))
        try:
            say(b"w")
            fcntl.lockf(fd, fcntl.LOCK_EX)
            say(b"g")
        except SystemExit:
            say(b"i")

    pid, out = child(f"{a}/l", interrupted)
    same("waits", os.read(out, 1), b"w")
    time.sleep(0.3)
    os.kill(pid, signal.SIGUSR1)
    same("interrupted", os.read(out, 1), b"i")
    os.waitpid(pid, 0)

    # Two that wait for each other over two mounts: the second is told.
    fcntl.lockf(there, fcntl.LOCK_UN)
    same("here", locked(here, fcntl.LOCK_EX, (0, 1)), True)

    def cross(fd, say):
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1)
        say(b"1")
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
        say(b"g")

    pid, out = child(f"{b}/l", cross)
    same("its own", os.read(out, 1), b"1")
    time.sleep(0.5)
    fails("a circle", errno.EDEADLK, fcntl.lockf, here, fcntl.LOCK_EX, 1, 1)
    # Closing any descriptor of the file lets all locks of the process go.
    os.close(os.open(f"{a}/l", os.O_RDONLY))
    same("the other goes on", os.read(out, 1), b"g")
    os.waitpid(pid, 0)
    os.close(here)
    os.close(there)


def hold(a, b):
    """Holds a lock and the write lease through B until killed; says when."""
    fd = os.open(f"{b}/h", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.lockf(fd, fcntl.LOCK_EX, 100, 0)
    os.pwrite(fd, b"written before the death", 0)
    os.fsync(fd)
    print("held", flush=True)
    wait_for_go()


def take(a, b):
    """Waits through A for what the other held."""
    fd = os.open(f"{a}/h", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 100, 0)
    same("content", os.pread(fd, 99, 0), b"written before the death")
    os.pwrite(fd, b"WRITTEN", 0)
    os.pwrite(fd, b"written", 0)
    os.fsync(fd)
    os.close(fd)


def denied(a, b):
    """The lock is still the other's."""
    fd = os.open(f"{a}/h", os.O_RDWR)
    same("lock", locked(fd, fcntl.LOCK_SH, (50, 1)), False)
    same("beside it", locked(fd, fcntl.LOCK_EX, (100, 1)), True)


def stopped(a, b):
    """A program on B, which is stopped and goes on when told: it must see what A wrote meanwhile."""
    fd = os.open(f"{b}/s", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.pwrite(fd, b"before", 0)
    os.fsync(fd)
    same("own", os.pread(fd, 99, 0), b"before")
    print("held", flush=True)
    wait_for_go()
    # Calls may fail until the client has a session again. What they return is of the new one.
    again = insist(os.open, f"{b}/s", os.O_RDWR)
    same("the other's", insist(os.pread, again, 99, 0), b"AFTERWARDS")
    insist(os.pwrite, again, b"and on", 0)
    insist(os.fsync, again)
    same("seen there", get(f"{a}/s"), b"and onARDS")


def untold(a, b):
    """Alone on A: a file that stays open, and files that were closed a moment ago; B is not there yet."""
    fd = os.open(f"{a}/open", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"x" * 5000)
    os.fchown(fd, 5, 6)
    os.fchmod(fd, 0o640)
    os.utime(fd, (7, 8))
    for number in range(50):
        made(f"{a}/closed{number}", number)
    print("held", flush=True)
    wait_for_go()
    same("the other's mode", os.fstat(fd).st_mode & 0o777, 0o604)
    os.close(fd)
    same("after the close", os.stat(f"{a}/open").st_mode & 0o777, 0o604)


def made(path, number):
    """A file that is closed at once, with all that goes with it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, bytes([number]) * 3000)
    os.fchmod(fd, 0o640 + number % 8)
    os.close(fd)


def seen(path, number):
    """What `made` has made."""
    stat = os.stat(path)
    same("size and mode", (stat.st_size, stat.st_mode & 0o777), (3000, 0o640 + number % 8))
    same("content", get(path), bytes([number]) * 3000)


def told(a, b):
    """B sees all of it, and what it changes stays."""
    stat = os.stat(f"{b}/open")
    same("mode, owner, group", (stat.st_mode & 0o777, stat.st_uid, stat.st_gid), (0o640, 5, 6))
    same("size and times", (stat.st_size, stat.st_atime, stat.st_mtime), (5000, 7, 8))
    os.chmod(f"{b}/open", 0o604)
    for number in range(50):
        seen(f"{b}/closed{number}", number)


def closes(a, b):
    """Each file is looked at through B as soon as its close on A is answered."""
    for number in range(100):
        made(f"{a}/c{number}", number)
        if number % 2:
            same("listed", f"c{number}" in os.listdir(b), True)
        seen(f"{b}/c{number}", number)
        fd = os.open(f"{a}/c{number}", os.O_WRONLY)
        os.write(fd, b"again")
        os.close(fd)
        same("again", get(f"{b}/c{number}")[:5], b"again")


CHECKS = [
    data, descriptors, names, acls, appends, small_appends, locks, hold, take, denied, stopped, untold,
    told, closes, leases, warmed, changed, changed_there,
]

if __name__ == "__main__":
    check = {check.__name__: check for check in CHECKS}[sys.argv[1]]
    check(sys.argv[2], sys.argv[3])
