"""Space that was reserved, on full disks. Run by reserved.rs: `reserved.py CHECK DIR [NOTE]`."""

import ctypes
import errno
import hashlib
import os
import random
import sys
import time

MIB = 1 << 20
KEEP, PUNCH = 1, 2
# Of `whole` space is reserved up to its end, of `behind` behind it.
WHOLE, BEHIND = 48 * MIB, 8 * MIB

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_file(path, flags=os.O_RDWR | os.O_CREAT):
    return os.open(path, flags, 0o644)


def blocks(fd):
    return os.fstat(fd).st_blocks * 512


def used(top):
    space = os.statvfs(top)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def reserve(top):
    # The disks have journals and file systems of their own, which are not the cluster's data.
    if used(top) > MIB:
        sys.exit(f"an empty cluster stores {used(top)} bytes")
    fd = open_file(f"{top}/whole")
    fallocate(fd, 0, 0, WHOLE)
    same("size", os.fstat(fd).st_size, WHOLE)
    try:
        sys.exit(f"SEEK_DATA finds {os.lseek(fd, 0, os.SEEK_DATA)} in what is reserved")
    except OSError as error:
        same("SEEK_DATA", errno.errorcode.get(error.errno), "ENXIO")
    same("a reserved range", os.pread(fd, MIB, MIB), bytes(MIB))
    if not WHOLE <= blocks(fd) <= WHOLE * 11 // 10:
        sys.exit(f"{blocks(fd)} bytes are in blocks of a file that has {WHOLE} reserved")
    fallocate(fd, 0, 0, WHOLE)
    if blocks(fd) > WHOLE * 11 // 10:
        sys.exit("what was reserved is reserved once more")
    os.close(fd)
    fd = open_file(f"{top}/behind")
    os.pwrite(fd, b"begin", 0)
    fallocate(fd, KEEP, 0, BEHIND)
    same("size with KEEP_SIZE", os.fstat(fd).st_size, 5)
    os.close(fd)
    fd = open_file(f"{top}/data")
    os.pwrite(fd, random.Random(5).randbytes(4 * MIB), 0)
    os.fsync(fd)
    os.close(fd)
    # Nothing is taken for what cannot fit.
    before = os.statvfs(top)
    free = before.f_bavail * before.f_frsize
    fd = open_file(f"{top}/refused")
    for length in [free + MIB, 1 << 40, 1 << 50, 1 << 57]:
        fails(f"fallocate of {length}", errno.ENOSPC, fallocate, fd, 0, 0, length)
        fails(f"fallocate of {length} behind", errno.ENOSPC, fallocate, fd, KEEP, 4096, length)
    same("size", os.fstat(fd).st_size, 0)
    same("blocks", blocks(fd), 0)
    end = time.monotonic() + 60
    while not WHOLE + BEHIND <= used(top) <= 2 * (WHOLE + BEHIND):
        if time.monotonic() > end:
            sys.exit(f"{used(top)} bytes are used of a cluster that stores {WHOLE + BEHIND}")
        time.sleep(0.2)


def fill(top):
    """Writes until there is no space. What is written late may still find a little: several times."""
    data = os.urandom(MIB)
    for turn in range(3):
        fd = open_file(f"{top}/fill-{turn}")
        at = 0
        while True:
            try:
                at += os.pwrite(fd, data[: 65536 if turn else MIB], at)
            except OSError as error:
                same("filling", errno.errorcode.get(error.errno), "ENOSPC")
                break
        os.close(fd)


def use(top, note):
    """Everything that is reserved can be written while nothing else can, in all sizes, and twice."""
    fill(top)
    sums = {}
    rng = random.Random(7)
    for name, size in [("whole", WHOLE), ("behind", BEHIND)]:
        fd = open_file(f"{top}/{name}", os.O_RDWR)
        content = bytearray(rng.randbytes(size))
        at = 0
        while at < size:
            length = min(size - at, MIB if at < size - 4 * MIB else rng.choice([512, 4096, 30_000]))
            done = os.pwrite(fd, content[at : at + length], at)
            same("bytes written", done, length)
            at += length
        os.fsync(fd)
        for at in [0, 70_001, size - MIB]:
            piece = rng.randbytes(100_000)
            os.pwrite(fd, piece, at)
            content[at : at + len(piece)] = piece
        os.fsync(fd)
        os.close(fd)
        sums[name] = hashlib.sha256(content).hexdigest()
    fill(top)
    with open(note, "w") as out:
        out.writelines(f"{sums[name]}  {name}\n" for name in sums)


def shrink(top):
    """Shrinking, punching and removing work on full disks, at ends that are in the middle of data."""
    fill(top)
    fd = open_file(f"{top}/data", os.O_RDWR)
    expected = bytearray(random.Random(5).randbytes(4 * MIB))
    for at, length in [(1_000_001, 300_000), (2 * MIB, 77), (3 * MIB + 5, MIB)]:
        fallocate(fd, KEEP | PUNCH, at, length)
        expected[at : at + length] = bytes(min(length, len(expected) - at))
        same("content after a punch", os.pread(fd, 4 * MIB, 0) == expected, True)
    for size in [3 * MIB + 1, 1_234_567, 777, 0]:
        os.ftruncate(fd, size)
        same("content after a cut", os.pread(fd, 4 * MIB, 0) == expected[:size], True)
    os.close(fd)
    # A cut inside a hole has nothing to make zeros.
    fd = open_file(f"{top}/hole")
    os.ftruncate(fd, 100 * MIB)
    os.ftruncate(fd, 50 * MIB + 77)
    os.close(fd)
    # What is given back is there for others.
    fd = open_file(f"{top}/whole", os.O_RDWR)
    fallocate(fd, KEEP | PUNCH, 0, WHOLE // 2)
    os.close(fd)
    os.unlink(f"{top}/whole")
    os.unlink(f"{top}/behind")


def main():
    globals()[sys.argv[1]](*sys.argv[2:])


main()
