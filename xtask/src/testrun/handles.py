"""File handles as an NFS server keeps them, and directories that are removed while they are open: `handles.py DIR OTHER`.

OTHER is the same directory, on this mount or another one.
"""

import ctypes
import errno
import os
import sys

AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) < 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def opened(top, handle, flags=os.O_RDONLY):
    fd = libc.open_by_handle_at(top, ctypes.byref(handle), flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd


def forget_names():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")


def handles(path):
    os.makedirs(f"{path}/a/b/c")
    kept = {}
    for number in range(50):
        name = f"{path}/a/b/c/f{number}"
        with open(name, "w") as file:
            file.write(str(number))
        kept[number] = handle_of(name)
    directory, gone = handle_of(f"{path}/a/b"), handle_of(f"{path}/a/b/c/f49")
    os.rename(f"{path}/a/b/c/f1", f"{path}/renamed")
    os.unlink(f"{path}/a/b/c/f49")
    top = os.open(path, os.O_RDONLY)
    forget_names()
    for number in range(49):
        fd = opened(top, kept[number])
        same(f"file {number}", os.read(fd, 10), str(number).encode())
        os.close(fd)
    forget_names()
    fd = opened(top, directory, os.O_RDONLY | os.O_DIRECTORY)
    same("a directory", os.listdir(fd), ["c"])
    same("the one above it", os.listdir(os.open("..", os.O_RDONLY, dir_fd=fd)), ["b"])
    os.close(fd)
    fails("a file that is gone", errno.ESTALE, opened, top, gone)
    os.close(top)


def removed(path, other):
    for where in (path, other):
        os.mkdir(f"{path}/gone")
        fd = os.open(f"{path}/gone", os.O_RDONLY | os.O_DIRECTORY)
        os.rmdir(f"{where}/gone")
        same("a directory that is gone", os.listdir(fd), [])
        fails("creating in it", errno.ENOENT, lambda: os.open("x", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        fails("a directory in it", errno.ENOENT, lambda: os.mkdir("x", dir_fd=fd))
        os.close(fd)


TOP, OTHER = sys.argv[1:3]
handles(TOP)
removed(TOP, OTHER)
