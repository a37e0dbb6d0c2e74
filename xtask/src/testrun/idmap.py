"""Idmapped mounts: `idmap.py DIR LOCAL`.

What is seen, made and refused through a mount of DIR that shows user 1000 as 2000, beside the same
of LOCAL. The mounts are attached nowhere: they are gone with the process.
"""

import ctypes
import os
import stat
import subprocess

LIBC = ctypes.CDLL(None, use_errno=True)
OPEN_TREE, MOUNT_SETATTR = 428, 442
OPEN_TREE_CLONE, AT_EMPTY_PATH, MOUNT_ATTR_IDMAP, CLONE_NEWUSER = 1, 0x1000, 0x100000, 0x10000000
AT_FDCWD = -100
STORED, SHOWN, OTHER = 1000, 2000, 3000


class MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def called(what, result):
    if result < 0:
        number = ctypes.get_errno()
        sys.exit(f"{what}: {os.strerror(number)}")
    return result


def user_namespace():
    """One in which STORED is SHOWN outside."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        called("unshare", LIBC.unshare(CLONE_NEWUSER))
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    for table in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{table}", "w") as file:
            file.write(f"{STORED} {SHOWN} 1\n")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.write(go[1], b".")
    os.waitpid(child, 0)
    return namespace


def idmapped(path, namespace):
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC
    tree = called("open_tree", LIBC.syscall(OPEN_TREE, AT_FDCWD, path.encode(), flags))
    attr = MountAttr(set=MOUNT_ATTR_IDMAP, userns=namespace)
    what = f"mount_setattr of {path}"
    called(what, LIBC.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attr), ctypes.sizeof(attr)))
    return tree


def outcome(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def as_user(uid, call):
    """What a call comes to in a process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.write(writer, repr(outcome(call)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        result = file.read().decode()
    os.waitpid(child, 0)
    return result


def steps(top, namespace):
    """Name and outcome of each step."""
    os.mkdir(f"{top}/dir")
    for name, uid, mode in (("dir", STORED, 0o755), ("dir/mine", STORED, 0o644), ("dir/other", OTHER, 0o644)):
        if name != "dir":
            with open(f"{top}/{name}", "w") as file:
                file.write("content")
        os.chown(f"{top}/{name}", uid, uid)
        os.chmod(f"{top}/{name}", mode)
    tree = idmapped(top, namespace)

    def owner(name, dir_fd=tree):
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    def stored(name):
        return owner(f"{top}/{name}", None)

    def make(name, flags=0, mode=0o644):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY | flags, mode, dir_fd=tree))
        return "made"

    def unnamed(name):
        file = os.open("dir", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=tree)
        os.write(file, b"later")
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=tree, follow_symlinks=True)
        return "made"

    def append(name):
        file = os.open(name, os.O_WRONLY | os.O_APPEND, dir_fd=tree)
        return os.write(file, b"more")

    for name in ("dir", "dir/mine", "dir/other"):
        yield f"seen: {name}", owner(name)
    for uid in (SHOWN, STORED, OTHER, 0):
        yield f"{uid} creates", as_user(uid, lambda: make(f"dir/by-{uid}"))
        yield f"{uid} makes a directory", as_user(uid, lambda: os.mkdir(f"dir/d-{uid}", dir_fd=tree))
        yield f"{uid} makes a link", as_user(uid, lambda: os.symlink("to", f"dir/l-{uid}", dir_fd=tree))
        yield f"{uid} makes a pipe", as_user(uid, lambda: os.mkfifo(f"dir/p-{uid}", dir_fd=tree))
        yield f"{uid} appends", as_user(uid, lambda: append("dir/mine"))
        yield f"{uid} changes the mode", as_user(uid, lambda: os.chmod(tree_path(tree, "dir/mine"), 0o664))
        yield f"{uid} changes times", as_user(uid, lambda: os.utime("dir/mine", (1, 2), dir_fd=tree))
    for name in sorted(os.listdir(f"{top}/dir")):
        yield f"stored: {name}", stored(f"dir/{name}")
        yield f"shown: {name}", owner(f"dir/{name}")
    yield "root makes a file without a name", outcome(lambda: unnamed("dir/unnamed"))
    yield "root gives away", outcome(lambda: os.chown("dir/other", SHOWN, SHOWN, dir_fd=tree))
    yield "stored after that", stored("dir/other")
    yield "root gives to nobody there", outcome(lambda: os.chown("dir/other", OTHER, OTHER, dir_fd=tree))
    for mode in (0o4777, 0o2777, 0o6777):
        os.chmod(f"{top}/dir/mine", mode)
        yield f"{mode:o} appended to by {SHOWN}", (as_user(SHOWN, lambda: append("dir/mine")), stored("dir/mine"))
        os.chmod(f"{top}/dir/mine", mode)
        yield f"{mode:o} appended to by root", (outcome(lambda: append("dir/mine")), stored("dir/mine"))
    subprocess.run(["setfacl", "-m", f"u:{STORED}:rwx", f"{top}/dir/other"], check=True)
    file = os.open("dir/other", os.O_RDONLY, dir_fd=tree)
    yield "an ACL, as shown", os.getxattr(file, "system.posix_acl_access")
    os.close(file)
    yield "moved", as_user(SHOWN, lambda: os.rename("dir/mine", "dir/moved", src_dir_fd=tree, dst_dir_fd=tree))
    yield "removed", as_user(SHOWN, lambda: os.unlink("dir/moved", dir_fd=tree))
    os.close(tree)


def tree_path(tree, name):
    """A path for calls that take no directory descriptor for what they change."""
    os.fchdir(tree)
    return name


def main():
    namespace = user_namespace()
    found = list(steps(sys.argv[1], namespace))
    expected = list(steps(sys.argv[2], namespace))
    same("steps", len(found), len(expected))
    for (name, here), (_, there) in zip(found, expected):
        same(name, here, there)
    print(f"{len(found)} outcomes as on the local file system")


main()
