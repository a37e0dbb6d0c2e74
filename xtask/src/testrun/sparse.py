"""Files whose sizes say nothing of what they store. Run by sparse.rs: `sparse.py CHECK DIR`.

Every call here ends by itself: if one does work by a number instead of by what is stored, the test's deadline passes.
"""

import ctypes
import errno
import os
import subprocess
import sys
import time

# Objects of 64 MiB, numbered with 32 bits.
LARGEST = 1 << 58
SIZES = [3 << 40, 200 << 50, LARGEST]
KEEP, PUNCH, ZERO = 1, 2, 16

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make(path, size, *places):
    """A file of this size with four bytes of data at each of some places."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(fd, size)
    for at in places:
        os.pwrite(fd, b"data", at)
    return fd


def data_at(fd, start):
    """Where data is found from here on; None where there is none."""
    try:
        return os.lseek(fd, start, os.SEEK_DATA)
    except OSError as error:
        same("SEEK_DATA", errno.errorcode.get(error.errno), "ENXIO")
        return None


def near(what, found, at):
    """Data is told by whole stripes, and never behind where it begins."""
    if found is None or not at - 65536 <= found <= at:
        sys.exit(f"{what}: found data at {found}, expected it at {at}")


def content(top):
    for size in SIZES:
        middle, last = size // 2 & ~4095, size - 4
        fd = make(f"{top}/f", size, 0, middle, last)
        same("size", os.fstat(fd).st_size, size)
        if os.fstat(fd).st_blocks > 3 * (64 << 20) // 512:
            sys.exit(f"{os.fstat(fd).st_blocks} blocks of a file that stores 12 bytes")
        near("in the middle", data_at(fd, 1 << 30), middle)
        near("at the end", data_at(fd, middle + (1 << 30)), last)
        hole = os.lseek(fd, 0, os.SEEK_HOLE)
        same("a hole follows the first data", 0 < hole <= 65536, True)
        same("the file ends with data", os.lseek(fd, last, os.SEEK_HOLE), size)
        same("a hole reads as zeros", os.pread(fd, 100, middle + (1 << 30)), bytes(100))
        fallocate(fd, PUNCH | KEEP, 1 << 20, size - (1 << 20))
        same("nothing is left behind a hole", data_at(fd, 1 << 20), None)
        os.pwrite(fd, b"data", middle)
        fallocate(fd, ZERO, 1 << 20, size - (1 << 20))
        same("zeros", os.pread(fd, 4, middle), bytes(4))
        os.pwrite(fd, b"data", middle)
        os.ftruncate(fd, 5)
        same("what is left", os.pread(fd, 10, 0), b"data\0")
        os.ftruncate(fd, size)
        same("what was cut is gone", data_at(fd, 1 << 20), None)
        os.pwrite(fd, b"data", last)
        os.close(fd)
        os.close(os.open(f"{top}/f", os.O_WRONLY | os.O_TRUNC))
        same("nothing is left", os.stat(f"{top}/f").st_size, 0)
        os.close(make(f"{top}/f", size, last))
        os.close(make(f"{top}/g", size, 0))
        os.rename(f"{top}/f", f"{top}/g")
        os.unlink(f"{top}/g")


def copies(top):
    fd = make(f"{top}/from", 65 << 30, (65 << 30) - 4)
    to = make(f"{top}/to", 1 << 30, 100 << 20)
    at = 0
    while at < 200 << 20:
        at += os.copy_file_range(fd, to, (200 << 20) - at, at, at)
    same("a hole is copied as one", data_at(to, 0), None)
    same("only over what it covers", os.fstat(to).st_size, 1 << 30)
    os.close(to)
    subprocess.run(["cp", f"{top}/from", f"{top}/copy"], check=True)
    copy = os.open(f"{top}/copy", os.O_RDONLY)
    same("the copy ends as the file does", os.pread(copy, 10, (65 << 30) - 6), b"\0\0data")
    near("the copy's data", data_at(copy, 0), (65 << 30) - 4)
    for name in ("from", "to", "copy"):
        os.unlink(f"{top}/{name}")


def too_large(top):
    fd = make(f"{top}/f", 1 << 20, 0)
    for beyond in (LARGEST + 1, (1 << 62) + 1, (1 << 63) - 1):
        fails(f"truncate to {beyond}", errno.EFBIG, os.ftruncate, fd, beyond)
        fails(f"write at {beyond - 1}", errno.EFBIG, os.pwrite, fd, b"x", beyond - 1)
        for mode in (0, KEEP, ZERO, ZERO | KEEP, PUNCH | KEEP):
            fails(f"fallocate {mode} to {beyond}", errno.EFBIG, fallocate, fd, mode, beyond - 1, 1)
    same("nothing was done", (os.fstat(fd).st_size, os.pread(fd, 4, 0)), (1 << 20, b"data"))
    os.close(fd)
    os.unlink(f"{top}/f")


def removed(top):
    """Left to be removed by the metadata service: many objects by their sizes, few by what is stored."""
    for number in range(20):
        os.close(make(f"{top}/huge{number}", LARGEST, 0, LARGEST - 4))
        os.unlink(f"{top}/huge{number}")


def held(top):
    """Holds a huge file open that nobody has told of, a removed one, and one without a name, until
    it is killed with its mount."""
    fd = make(f"{top}/held", LARGEST)
    os.fsync(fd)
    os.pwrite(fd, b"data", 200 << 50)
    gone = make(f"{top}/gone", LARGEST, 200 << 50)
    os.unlink(f"{top}/gone")
    unnamed = os.open(top, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.pwrite(unnamed, b"data", 5 << 20)
    os.fsync(unnamed)
    print("held", flush=True)
    while gone and unnamed:
        time.sleep(1)


def after(top):
    fd = os.open(f"{top}/held", os.O_RDWR)
    near("what a dead mount wrote", data_at(fd, 1 << 20), 200 << 50)
    os.close(fd)
    os.unlink(f"{top}/held")


CHECKS = {check.__name__: check for check in (content, copies, too_large, removed, held, after)}
CHECKS[sys.argv[1]](sys.argv[2])
