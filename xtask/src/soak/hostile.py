"""Calls at random with extreme arguments, as an unprivileged user: `hostile.py DIR SEED STOP`.

Runs until the file STOP is there. Every error is an answer; what is not is a call that takes longer than
ANSWER_MAX seconds, or a mount that is gone. Prints how many calls of each kind were made, and the longest.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import sys
import time

ANSWER_MAX = 120.0
NAMES = 24
# What one call stores at most, so that only numbers are extreme and not the space that is taken.
STORED_MAX = 256 << 10
EDGES = [0, 1, 511, 512, 4095, 4096, 65536, 1 << 20, (64 << 20) - 1, 64 << 20, (64 << 20) + 1]
EDGES += [edge for bit in (31, 32, 33, 40, 50, 57, 58, 59, 62) for edge in ((1 << bit) - 1, 1 << bit, (1 << bit) + 1)]
EDGES += [(1 << 63) - 4096, (1 << 63) - 2, (1 << 63) - 1]
FALLOC_KEEP, FALLOC_PUNCH, FALLOC_ZERO = 1, 2, 16

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Hostile:
    def __init__(self, top, seed):
        self.rng = random.Random(seed)
        self.top = top
        self.calls = {}
        self.longest = (0.0, "")

    def number(self):
        return self.rng.choice(EDGES) if self.rng.random() < 0.8 else self.rng.randrange(1 << 63)

    def path(self):
        where = self.top if self.rng.random() < 0.8 else f"{self.top}/d{self.rng.randrange(4)}"
        return f"{where}/f{self.rng.randrange(NAMES)}"

    def file(self):
        extra = self.rng.choice([0, 0, os.O_APPEND, os.O_TRUNC, os.O_DIRECT, os.O_SYNC])
        return os.open(self.path(), os.O_RDWR | os.O_CREAT | extra, 0o644)

    def with_file(self, call):
        fd = self.file()
        try:
            call(fd)
        finally:
            os.close(fd)

    def truncate(self):
        os.truncate(self.path(), self.number())

    def write(self):
        data = bytes([self.rng.randrange(256)]) * self.rng.randrange(STORED_MAX)
        self.with_file(lambda fd: os.pwrite(fd, data, self.number()))

    def read(self):
        self.with_file(lambda fd: os.pread(fd, 1 << 20, self.number()))

    def seek(self):
        self.with_file(lambda fd: os.lseek(fd, self.number(), self.rng.choice([os.SEEK_DATA, os.SEEK_HOLE])))

    def allocate(self):
        # What is not a hole is stored: plain reservations stay small or are beyond any disk.
        mode = self.rng.choice([0, FALLOC_KEEP, FALLOC_PUNCH | FALLOC_KEEP, FALLOC_ZERO, FALLOC_ZERO | FALLOC_KEEP])
        length = self.number()
        if not mode & FALLOC_PUNCH and STORED_MAX < length < 1 << 50:
            length = STORED_MAX
        self.with_file(lambda fd: checked(libc.fallocate(fd, mode, self.number(), length)))

    def copy(self):
        count = self.rng.choice([self.number(), STORED_MAX])
        source, target = self.file(), self.file()
        try:
            at, to = self.number(), self.number()
            os.copy_file_range(source, target, min(count, (1 << 63) - 1), at, to)
        finally:
            os.close(source)
            os.close(target)

    def rename(self):
        os.rename(self.path(), self.path())

    def unlink(self):
        os.unlink(self.path())

    def orphan(self):
        fd = self.file()
        os.unlink(f"/proc/self/fd/{fd}" if self.rng.random() < 0.1 else self.path())
        os.close(fd)

    def link(self):
        os.link(self.path(), self.path())

    def directory(self):
        path = f"{self.top}/d{self.rng.randrange(4)}"
        if self.rng.random() < 0.7:
            os.mkdir(path)
        else:
            os.rmdir(path)

    def names(self):
        name = self.rng.choice(["x" * self.rng.choice([254, 255, 256, 4000]), "\n", "\xff" * 100, "a/" * 200])
        os.mknod(f"{self.top}/{name}")

    def remove_names(self):
        for name in os.listdir(self.top):
            if name[0] not in "fd":
                os.unlink(f"{self.top}/{name}")

    def attribute(self):
        name = self.rng.choice(["user.a", "user." + "n" * 250, "user." + "n" * 251, "trusted.a", "security.a"])
        os.setxattr(self.path(), name, b"v" * self.rng.choice([0, 1, 4000, 65535, 65536]))

    def lock(self):
        kind = self.rng.choice([fcntl.LOCK_EX, fcntl.LOCK_SH]) | fcntl.LOCK_NB
        self.with_file(lambda fd: fcntl.lockf(fd, kind, self.number(), self.rng.randrange(1 << 40), 0))

    def times(self):
        os.utime(self.path(), ns=(self.number(), self.number()))

    def owner(self):
        os.chown(self.path(), self.rng.choice([0, 1, (1 << 32) - 2]), -1)

    def mode(self):
        os.chmod(self.path(), self.rng.choice([0o4777, 0o2666, 0o1000, 0o644]))

    def mapping(self):
        def store(fd):
            os.ftruncate(fd, self.rng.choice([1, 100, 4096, 5000]))
            with mmap.mmap(fd, 1 << 20 if self.rng.random() < 0.5 else 1) as view:
                view[0] = 1

        self.with_file(store)

    def flush(self):
        def ranged(fd):
            checked(libc.sync_file_range(fd, self.number(), self.number(), 7))
            os.fsync(fd)

        self.with_file(ranged)

    def listing(self):
        for entry in os.scandir(self.top):
            entry.stat(follow_symlinks=False)

    def step(self):
        kinds = [self.truncate, self.write, self.read, self.seek, self.allocate, self.copy, self.rename, self.unlink]
        kinds += [self.orphan, self.link, self.directory, self.names, self.remove_names, self.attribute, self.lock]
        kinds += [self.times, self.owner, self.mode, self.mapping, self.flush, self.listing]
        call = self.rng.choice(kinds)
        name = call.__name__
        began = time.monotonic()
        answer = "ok"
        try:
            call()
        except OSError as error:
            answer = errno.errorcode.get(error.errno, str(error.errno))
        except (ValueError, OverflowError):
            answer = "refused by Python"
        took = time.monotonic() - began
        self.calls[name] = self.calls.get(name, 0) + 1
        self.longest = max(self.longest, (took, f"{name}: {answer}"))
        if answer in ("ENOTCONN", "EIO", "ESTALE") or took > ANSWER_MAX:
            sys.exit(f"{name}: {answer} after {took:.1f} s")


def main():
    top, seed, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.makedirs(top, exist_ok=True)
    hostile = Hostile(top, seed)
    while not os.path.exists(stop):
        hostile.step()
    calls = ", ".join(f"{count} {name}" for name, count in sorted(hostile.calls.items()))
    print(f"calls {sum(hostile.calls.values())} longest {hostile.longest[0]:.2f} s ({hostile.longest[1]}); {calls}")


main()
