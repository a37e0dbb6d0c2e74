"""Stores through a shared mapping, and the end of the file: `mappings.py DIR [OTHER]`, of one mount, or of two.

Bytes stored behind the end are nobody's: however the file grows over them they read as zeros. Bytes stored inside it are
data to whoever looks for data, at once.
"""

import ctypes
import errno
import mmap
import os
import subprocess
import sys

PAGE = mmap.PAGESIZE
END, BEHIND = 100, 2000
KEEP, PUNCH, ZERO = 1, 2, 16

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def copy_to(fd, at):
    source = os.open("/proc/self/exe", os.O_RDONLY)
    with open(f"{TOP}/source", "wb") as file:
        file.write(os.pread(source, 100, 0))
    os.close(source)
    source = os.open(f"{TOP}/source", os.O_RDONLY)
    os.copy_file_range(source, fd, 100, 0, at)
    os.close(source)


GROWTHS = {
    "ftruncate": lambda fd: os.ftruncate(fd, 3 * PAGE),
    "ftruncate within the page": lambda fd: os.ftruncate(fd, 3000),
    "pwrite": lambda fd: os.pwrite(fd, b"x", 2 * PAGE),
    "pwrite within the page": lambda fd: os.pwrite(fd, b"x", 3000),
    "pwrite at the end": lambda fd: os.pwrite(fd, b"x" * 10, END),
    "fallocate": lambda fd: fallocate(fd, 0, 0, 2 * PAGE),
    "zero range": lambda fd: fallocate(fd, ZERO, 2 * PAGE, PAGE),
    "copy_file_range": lambda fd: copy_to(fd, 2 * PAGE),
}


def grown(path, other, name, grow):
    """The bytes behind the end, after a growth by a handle of its own."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(fd, PAGE)
    view = mmap.mmap(fd, PAGE)
    os.ftruncate(fd, END)
    view[0:4] = b"data"
    view[BEHIND : BEHIND + 6] = b"behind"
    writer = os.open(other, os.O_RDWR)
    grow(writer)
    if name == "pwrite at the end":
        os.ftruncate(writer, 3 * PAGE)
    wrong = []
    for what, handle in (("here", fd), ("there", writer)):
        found = os.pread(handle, 3 * PAGE, 0)
        if found[:4] != b"data":
            wrong.append(f"{name}: read {what}: the stored data is {found[:4]!r}")
        if found[BEHIND : BEHIND + 6].strip(b"\0"):
            wrong.append(f"{name}: read {what}: {found[BEHIND:BEHIND + 6]!r} behind the end")
    if view[BEHIND : BEHIND + 6].strip(b"\0"):
        wrong.append(f"{name}: the mapping has {bytes(view[BEHIND:BEHIND + 6])!r}")
    view.close()
    os.fsync(fd)
    os.close(fd)
    os.close(writer)
    with open(other, "rb") as file:
        found = file.read()
        if found[BEHIND : BEHIND + 6].strip(b"\0") or found[:4] != b"data":
            wrong.append(f"{name}: at last {found[:4]!r} and {found[BEHIND:BEHIND + 6]!r}")
    os.unlink(path)
    return wrong


def seek(fd, at, what):
    try:
        return os.lseek(fd, at, what)
    except OSError as error:
        return errno.errorcode[error.errno]


def found(path, other):
    """What was stored a moment ago is data, and st_blocks is not 0."""
    size = 200 << 20
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(fd, size)
    os.fstat(fd)
    reader = os.open(other, os.O_RDONLY)
    os.fstat(reader)
    wrong = []
    view = mmap.mmap(fd, size)
    view[100 << 20 : (100 << 20) + 6] = b"stored"
    for what, handle in (("here", fd), ("there", reader)):
        at = seek(handle, 0, os.SEEK_DATA)
        if not isinstance(at, int) or at > 100 << 20:
            wrong.append(f"SEEK_DATA {what}: {at}")
        if os.fstat(handle).st_blocks == 0:
            wrong.append(f"st_blocks {what} is 0")
    archive = subprocess.run(["tar", "-cSf", "-", os.path.basename(other)], cwd=os.path.dirname(other), capture_output=True)
    if b"stored" not in archive.stdout:
        wrong.append(f"tar -S has an archive of {len(archive.stdout)} bytes without the data")
    view.close()
    os.close(fd)
    os.close(reader)
    os.unlink(path)
    return wrong


def written(path, other):
    """The same for a file that was allocated, looked at, and written a moment ago."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    fallocate(fd, 0, 0, 100 << 20)
    os.stat(other)
    os.pwrite(fd, b"\1" * 4096, 90 << 20)
    archive = subprocess.run(["tar", "-cSf", "-", os.path.basename(other)], cwd=os.path.dirname(other), capture_output=True)
    os.close(fd)
    os.unlink(path)
    if b"\1" * 4096 not in archive.stdout:
        return [f"tar -S of a file written a moment ago has {len(archive.stdout)} bytes without the data"]
    return []


TOP = sys.argv[1]
OTHER = sys.argv[2] if len(sys.argv) > 2 else TOP
failures = []
for name, grow in GROWTHS.items():
    failures += grown(f"{TOP}/file", f"{OTHER}/file", name, grow)
failures += found(f"{TOP}/file", f"{OTHER}/file")
failures += written(f"{TOP}/file", f"{OTHER}/file")
if failures:
    sys.exit("\n".join(failures))
