"""POSIX ACLs: `acls.py MOUNT LOCAL`, as root.

Every case is done on both: what it returns and what it leaves must be the same, but for times.
"""

import errno
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NAMED, GROUPED, STRANGER = 65531, 65532, 65534
TEAM = 54321
# User, group, further groups.
CALLERS = {
    "named user": (NAMED, NAMED, []),
    "member of a named group": (GROUPED, GROUPED, [TEAM]),
    "stranger": (STRANGER, STRANGER, []),
    "root": (0, 0, []),
}
KINDS = {
    "file": lambda path, mode: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)),
    "directory": os.mkdir,
    "fifo": os.mkfifo,
    "node": os.mknod,
    "symlink": lambda path, mode: os.symlink("target", path),
    "socket": lambda path, mode: socket.socket(socket.AF_UNIX).bind(path),
}


def acl(*entries, version=2):
    """The attribute's bytes, from (tag, permissions) or (tag, permissions, id)."""
    packed = (struct.pack("<HHI", *entry, *[0xFFFFFFFF][: 3 - len(entry)]) for entry in entries)
    return struct.pack("<I", version) + b"".join(packed)


def named(own=7, user=7, group=5, team=5, mask=7, other=0):
    return acl((USER_OBJ, own), (USER, user, NAMED), (GROUP_OBJ, group), (GROUP, team, TEAM), (MASK, mask), (OTHER, other))


def minimal(own, group, other):
    return acl((USER_OBJ, own), (GROUP_OBJ, group), (OTHER, other))


def attempt(call, *args):
    """What a call returns, or its error's name."""
    try:
        return call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]


def state(path):
    """Mode and ACLs of a file, and its attributes' names."""
    found = [oct(os.lstat(path).st_mode)]
    for name in (ACCESS, DEFAULT):
        found.append(attempt(lambda: os.getxattr(path, name, follow_symlinks=False).hex()))
    return found + [sorted(os.listxattr(path, follow_symlinks=False))]


def as_caller(who, directory, call):
    """Runs the call in a directory in a child with the rights of somebody: its result, or error."""
    uid, gid, groups = CALLERS[who]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # What lies above may be closed to him.
            os.chdir(directory)
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            os.write(writer, repr(attempt(call)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read().decode()
    os.waitpid(child, 0)
    return text


def fresh(top, name="f", mode=0o640):
    path = f"{top}/{name}"
    KINDS["file"](path, 0o600)
    os.chmod(path, mode)
    return path


def stored(top):
    """What is kept of lists, and what the mode becomes."""
    seen = []
    for number, value in enumerate([named(), named(mask=2), minimal(6, 4, 1), minimal(7, 7, 7), acl(
        (USER_OBJ, 6), (GROUP_OBJ, 7), (MASK, 4), (OTHER, 1))]):
        path = fresh(top, f"f{number}", 0o4751)
        before = os.stat(path).st_ctime_ns
        seen.append((attempt(os.setxattr, path, ACCESS, value), state(path)))
        seen.append(os.stat(path).st_ctime_ns > before)
        for mode in (0o751, 0o4640, 0o007, 0o070, 0o700):
            seen.append((attempt(os.chmod, path, mode), state(path)))
        seen.append((attempt(os.chown, path, 5, 6), state(path)))
        for flags in (os.XATTR_CREATE, os.XATTR_REPLACE):
            seen.append((attempt(os.setxattr, path, ACCESS, named(user=flags), flags), state(path)))
        for _ in range(2):
            seen.append((attempt(os.removexattr, path, ACCESS), state(path)))
        seen.append((attempt(os.setxattr, path, DEFAULT, value), attempt(os.removexattr, path, DEFAULT), state(path)))
        directory = f"{top}/d{number}"
        os.mkdir(directory, 0o751)
        for name in (DEFAULT, ACCESS):
            seen.append((attempt(os.setxattr, directory, name, value), state(directory)))
        os.chmod(directory, 0o2705)
        seen.append(state(directory))
        for _ in range(2):
            seen.append((attempt(os.removexattr, directory, DEFAULT), state(directory)))
    return seen


def refused(top):
    """What is no ACL, and where none can be."""
    good = named()
    bad = [b"", good[:3], good[:4], good[:-1], good + b"x", good[:-8], acl((USER_OBJ, 7), (GROUP_OBJ, 7))]
    bad += [good.replace(b"\2", b"\1", 1), good[:4] + good[12:], good + good[-8:], acl((USER_OBJ, 8), (GROUP_OBJ, 0), (OTHER, 0))]
    bad += [acl((USER_OBJ, 7), (USER, 7, 0xFFFFFFFF), (GROUP_OBJ, 7), (MASK, 7), (OTHER, 7))]
    bad += [acl((USER_OBJ, 7), (USER, 7, 5), (GROUP_OBJ, 7), (OTHER, 7)), acl((USER_OBJ, 7), (3, 7), (GROUP_OBJ, 7), (OTHER, 7))]
    bad += [acl((USER_OBJ, 7), (GROUP_OBJ, 7), (GROUP, 7, 5), (MASK, 7)), acl((GROUP_OBJ, 7), (USER_OBJ, 7), (OTHER, 7))]
    path, directory = fresh(top), f"{top}/d"
    os.mkdir(directory)
    seen = []
    for value in bad:
        for name in (ACCESS, DEFAULT):
            seen.append((value.hex(), name, attempt(os.setxattr, directory, name, value)))
        seen.append(attempt(os.setxattr, path, ACCESS, value))
    os.symlink("f", f"{top}/l")
    seen.append(attempt(lambda: os.setxattr(f"{top}/l", ACCESS, good, follow_symlinks=False)))
    seen.append((attempt(os.getxattr, path, ACCESS), attempt(os.getxattr, path, DEFAULT)))
    # Who does not own the file.
    for who in CALLERS:
        for call in (lambda: os.setxattr("f", ACCESS, good), lambda: os.removexattr("f", ACCESS)):
            seen.append((who, as_caller(who, top, call)))
    return seen + [state(path), state(directory)]


def set_group_id(top):
    """Who is not of the file's group loses set-group-ID with an ACL."""
    seen = []
    os.chmod(top, 0o777)
    for who in CALLERS:
        for number, (name, value) in enumerate([(ACCESS, minimal(7, 7, 1)), (ACCESS, named()), (DEFAULT, named())]):
            path = f"{top}/{number}-{who}"
            (os.mkdir if name == DEFAULT else KINDS["file"])(path, 0o700)
            os.chown(path, CALLERS[who][0], TEAM)
            os.chmod(path, 0o6755)
            ended = as_caller(who, top, lambda: os.setxattr(os.path.basename(path), name, value))
            seen.append((who, ended, state(path)))
    return seen


def access(top):
    """Who may do what, for named and owning users and groups, and masks."""
    seen = []
    lists = [named(mask=mask, user=user, team=team, group=0, other=other)
             for mask in (0, 4, 7) for user in (0, 6) for team in (2, 5) for other in (0, 7)]
    lists += [named(own=0, group=7), minimal(7, 0, 4)]
    path, directory = fresh(top, "f", 0o700), f"{top}/d"
    os.mkdir(directory)
    fresh(directory, "inside", 0o666)
    os.chmod(top, 0o755)
    for value in lists:
        for target in (path, directory):
            os.setxattr(target, ACCESS, value)
        for who in CALLERS:
            for call in (
                lambda: open("f", "rb").read(),
                lambda: os.close(os.open("f", os.O_WRONLY | os.O_APPEND)),
                lambda: [os.access("f", bits) for bits in range(8)],
                lambda: os.listdir("d"),
                lambda: os.stat("d/inside").st_size,
                lambda: (os.mkdir("d/made"), os.rmdir("d/made")),
            ):
                seen.append((value.hex(), who, as_caller(who, top, call)))
    # What is granted and taken away counts at once.
    for number in range(6):
        os.setxattr(path, ACCESS, named(user=4 * (number % 2), other=0))
        seen.append(as_caller("named user", top, lambda: open("f", "rb").read()))
        os.chmod(path, 0o700 if number % 3 else 0o750)
        seen.append(as_caller("named user", top, lambda: open("f", "rb").read()))
    return seen


def inherited(top):
    """What new files get, of every kind, for modes, umasks and default ACLs."""
    seen = []
    lists = [None, named(), named(mask=5, other=4), named(own=5, user=3), minimal(7, 5, 1), minimal(0, 7, 0)]
    for number, value in enumerate(lists):
        directory = f"{top}/d{number}"
        os.mkdir(directory)
        os.chmod(directory, 0o2775 if number % 2 else 0o755)
        os.chown(directory, 0, TEAM)
        if value is not None:
            os.setxattr(directory, DEFAULT, value)
        for kind, make in KINDS.items():
            for mode in (0o666, 0o777, 0o640, 0o1757, 0):
                for umask in (0, 0o022, 0o077, 0o777):
                    before = os.umask(umask)
                    path = f"{directory}/{kind}-{mode:o}-{umask:o}"
                    ended = attempt(make, path, mode)
                    os.umask(before)
                    seen.append((number, kind, oct(mode), oct(umask), ended, state(path)))
        # Also what lies two directories below, and a link and a move, which inherit nothing.
        os.makedirs(f"{directory}/deep/er")
        fresh(top, f"moved{number}")
        os.link(f"{top}/moved{number}", f"{directory}/linked")
        os.rename(f"{top}/moved{number}", f"{directory}/moved")
        seen += [state(f"{directory}/{name}") for name in ("deep", "deep/er", "linked", "moved")]
        if value is not None:
            os.removexattr(directory, DEFAULT)
            os.mkdir(f"{directory}/after")
            seen.append(state(f"{directory}/after"))
    return seen


def sh(top, command):
    """How a command ends; what it says of several files in the order of their names."""
    done = subprocess.run(command, shell=True, cwd=top, capture_output=True, text=True)
    return done.returncode, sorted(done.stdout.split("\n\n")), done.stderr


def programs(top):
    """setfacl, getfacl with a restore, cp -a and tar --acls, as users have them."""
    return [sh(top, command) for command in (
        "umask 022; mkdir -p tree/sub; touch tree/f tree/sub/g; ln -s f tree/l",
        f"setfacl -R -m u:{NAMED}:rwX,g:{TEAM}:r-X tree",
        f"setfacl -d -m u:{NAMED}:rwx,m::rx tree/sub; touch tree/sub/h; mkdir tree/sub/deep",
        "getfacl -R tree",
        "getfacl -Rp tree > saved; setfacl -R -b tree; getfacl -R tree",
        "setfacl --restore=saved; getfacl -R tree",
        "cp -a tree copied; getfacl -R copied",
        "tar --acls -cf t.tar tree; mkdir out; tar --acls -xpf t.tar -C out; getfacl -R out",
        "setfacl -k tree/sub; setfacl -k tree/sub; setfacl -b tree/f; setfacl -b tree/f; getfacl -R tree",
        f"setfacl -x u:{NAMED} tree/sub/g; setfacl -m m::- tree/sub/g; chmod g+w tree/sub/g; getfacl tree/sub/g",
        f"setfacl -d -m u:{NAMED}:rwx tree/f",
        f"setfacl -m u:{NAMED}:rwx tree/l; getfacl tree/l",
        "ls -l tree | tr -s ' ' | cut -d' ' -f1",
    )]


CASES = [stored, refused, set_group_id, access, inherited, programs]


def main():
    mount, local = sys.argv[1:3]
    for top in (mount, local):
        os.chmod(top, 0o755)
    os.umask(0o022)
    different, looked_at = [], 0
    for case in CASES:
        seen = []
        for top in (mount, local):
            area = tempfile.mkdtemp(prefix=case.__name__, dir=top)
            seen.append(case(area))
            shutil.rmtree(area)
        for here, there in zip(*seen, strict=True):
            looked_at += 1
            if here != there:
                different.append(f"{case.__name__}:\n  {here}\n  locally {there}")
    if different:
        sys.exit(f"{len(different)} of {looked_at} differ:\n" + "\n".join(different[:20]))
    print(f"{looked_at} outcomes are the same")


main()
