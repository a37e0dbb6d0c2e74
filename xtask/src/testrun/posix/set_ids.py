"""What a change of content takes away: `set_ids.py MOUNT LOCAL`, as root.

Every case is done on both, and must leave the same mode and the same file capability.
"""

import ctypes
import mmap
import os
import struct
import sys

OUTSIDER, GROUP = 65534, 54321
MODES = [0o4777, 0o2777, 0o6777, 0o2666, 0o6666, 0o4755, 0o1777, 0o777]
# VFS_CAP_REVISION_2 with cap_chown permitted and effective.
CAPABILITY = struct.pack("<5I", 0x02000001, 1, 0, 0, 0)
KEEP, PUNCH, ZERO = 1, 2, 16
SIZE = 16384

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def block():
    """Memory that O_DIRECT takes."""
    memory = mmap.mmap(-1, 4096)
    memory.write(b"x" * 4096)
    return memory


def opened(path, flags, call):
    fd = os.open(path, flags)
    try:
        call(fd)
    finally:
        os.close(fd)


def fallocate(mode, length=4096):
    def run(path):
        def call(fd):
            if libc.fallocate(fd, mode, 0, length) < 0:
                raise OSError(ctypes.get_errno(), "fallocate")

        opened(path, os.O_RDWR, call)

    return run


def copy(path):
    def call(fd):
        source = os.open(path + ".source", os.O_RDONLY)
        os.copy_file_range(source, fd, 100, 0, 0)
        os.close(source)

    opened(path, os.O_RDWR, call)


def sendfile(path):
    def call(fd):
        source = os.open(path + ".source", os.O_RDONLY)
        os.sendfile(fd, source, 0, 100)
        os.close(source)

    opened(path, os.O_RDWR, call)


CHANGES = {
    "write": lambda path: opened(path, os.O_WRONLY, lambda fd: os.write(fd, b"x")),
    "append": lambda path: opened(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"x")),
    "direct write": lambda path: opened(path, os.O_WRONLY | os.O_DIRECT, lambda fd: os.writev(fd, [block()])),
    "synchronous write": lambda path: opened(path, os.O_WRONLY | os.O_SYNC, lambda fd: os.write(fd, b"x")),
    "shorten": lambda path: opened(path, os.O_WRONLY, lambda fd: os.ftruncate(fd, 10)),
    "lengthen": lambda path: opened(path, os.O_WRONLY, lambda fd: os.ftruncate(fd, SIZE + 1)),
    "same size": lambda path: os.truncate(path, SIZE),
    "O_TRUNC": lambda path: opened(path, os.O_WRONLY | os.O_TRUNC, lambda fd: None),
    "fallocate": fallocate(0, SIZE + 4096),
    "punch": fallocate(PUNCH | KEEP),
    "zero": fallocate(ZERO),
    "copy_file_range": copy,
    "sendfile": sendfile,
    "read": lambda path: opened(path, os.O_RDONLY, lambda fd: os.read(fd, 10)),
}
CALLERS = {"outsider": (OUTSIDER, OUTSIDER, []), "member": (OUTSIDER, OUTSIDER, [GROUP]), "root": (0, 0, [])}


def as_caller(who, call, path):
    """Runs the call in a child with the rights of somebody; how it ended."""
    uid, gid, groups = CALLERS[who]
    child = os.fork()
    if child == 0:
        try:
            # What lies above may be closed to him.
            os.chdir(os.path.dirname(path))
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            call(os.path.basename(path))
            os._exit(0)
        except OSError as error:
            os._exit(error.errno & 0x7F)
        except BaseException:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(top, mode, who, change, capability):
    path = f"{top}/file"
    for name in (path, path + ".source"):
        with open(name, "wb") as file:
            file.write(b"d" * SIZE)
    os.chmod(path + ".source", 0o644)
    os.chown(path, 0, GROUP)
    if capability:
        os.setxattr(path, "security.capability", CAPABILITY)
    os.chmod(path, mode)
    ended = as_caller(who, CHANGES[change], path)
    left = "security.capability" in os.listxattr(path)
    found = (ended, oct(os.stat(path).st_mode & 0o7777), left)
    os.unlink(path)
    return found


def main():
    mount, local = sys.argv[1:3]
    different, cases = [], 0
    for top in (mount, local):
        os.chmod(top, 0o777)
    for change in CHANGES:
        for mode in MODES:
            for who in CALLERS:
                capability = mode in (0o777, 0o4755)
                case = (mode, who, change, capability)
                here, there = outcome(mount, *case), outcome(local, *case)
                cases += 1
                if here != there:
                    different.append(f"{change} by {who}, {oct(mode)}: {here}, locally {there}")
    if different:
        sys.exit(f"{len(different)} of {cases} differ:\n" + "\n".join(different[:40]))
    print(f"{cases} cases are the same")


main()
