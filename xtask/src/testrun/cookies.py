"""Where reading a directory goes on: `cookies.py DIR [SAME-DIR-ON-ANOTHER-MOUNT]`, `cookies.py --save FILE DIR`, and
after a remount `cookies.py --check FILE DIR`.

Positions (d_off) stay right for the life of a name: in other opens, on other mounts, while other names come and go.
"""

import ctypes
import json
import os
import struct

GETDENTS64 = {"x86_64": 217, "aarch64": 61}[os.uname().machine]
LIBC = ctypes.CDLL(None, use_errno=True)
# More than the client asks for at once.
COUNT = 1500
# Some sixty names a call.
ROOM = 4096


def read(fd, room=ROOM):
    """Names with their positions, of one call; empty at the end."""
    buffer = ctypes.create_string_buffer(room)
    got = LIBC.syscall(GETDENTS64, fd, buffer, room)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    at, found = 0, []
    while at < got:
        _, position, length, _ = struct.unpack_from("<QqHB", buffer, at)
        name = buffer.raw[at + 19 : at + length].split(b"\0")[0].decode()
        found.append((name, position))
        at += length
    return found


def part(path, position, calls=1):
    """What a new open gives from a position on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.lseek(fd, position, os.SEEK_SET)
    found = [entry for _ in range(calls) for entry in read(fd)]
    os.close(fd)
    return found


def rest(path, position):
    """All names from a position on, each part by a new open."""
    names = []
    while entries := part(path, position):
        names += [name for name, _ in entries]
        position = entries[-1][1]
    return names


def fill(top):
    os.mkdir(top)
    for number in range(COUNT):
        os.close(os.open(f"{top}/name-{number:05}-{'x' * (number % 40)}", os.O_CREAT | os.O_WRONLY))
    return sorted(os.listdir(top))


def each_once(what, names, expected):
    names = [name for name in names if name not in (".", "..")]
    same(f"{what}: number", len(names), len(expected))
    same(what, sorted(names), sorted(expected))


def opens_go_on(top, others):
    everything = fill(top)
    for path in others:
        each_once(f"parts by new opens of {path}", rest(path, 0), everything)
    first = part(top, 0, 20)
    for index in (0, 1, 2, 500, len(first) - 1):
        position, seen = first[index][1], {name for name, _ in first[: index + 1]}
        for path in others:
            each_once(f"after entry {index}", rest(path, position), [n for n in everything if n not in seen])
    return first


def names_come_and_go(top, others):
    everything = sorted(os.listdir(top))
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    seen = [entry for _ in range(20) for entry in read(fd)]
    passed = [name for name, _ in seen if name not in (".", "..")]
    # The last one that was read among them.
    for name in passed[: len(passed) // 2] + [passed[-1]]:
        os.unlink(f"{top}/{name}")
    for number in range(0, COUNT, 7):
        os.close(os.open(f"{top}/name-{number:05}-new", os.O_CREAT | os.O_WRONLY))
    left = [name for name in everything if name not in passed]
    for path in others[:1]:
        found = [name for name in rest(path, seen[-1][1]) if not name.endswith("-new")]
        each_once("a new open, after names were removed", found, left)
    found = []
    while entries := read(fd):
        found += [name for name, _ in entries if not name.endswith("-new")]
    each_once("the open that was at it", found, left)
    os.lseek(fd, 0, os.SEEK_SET)
    found = []
    while entries := read(fd):
        found += [name for name, _ in entries]
    each_once("from the beginning again", found, os.listdir(top))
    os.close(fd)
    while entries := [e for e in part(top, 0) if e[0] not in (".", "..")]:
        for name, _ in entries:
            os.unlink(f"{top}/{name}")


def garbage(top):
    os.close(os.open(f"{top}/one", os.O_CREAT | os.O_WRONLY))
    for position in (3, 4096, 2**31, 2**62 - 1, 2**62, 2**62 + 12345, 2**63 - 1):
        fails(f"position {position}", errno.EINVAL, part, top, position)
    same("after garbage", sorted(name for name, _ in part(top, 0)), [".", "..", "one"])


def main(args):
    if args[0] == "--save":
        everything = fill(args[2])
        first = part(args[2], 0, 20)
        with open(args[1], "w") as file:
            json.dump([everything, first], file)
        return
    if args[0] == "--check":
        with open(args[1]) as file:
            everything, first = json.load(file)
        for index in (2, 500, len(first) - 1):
            seen = {name for name, _ in first[: index + 1]}
            found = rest(args[2], first[index][1])
            each_once("after a remount", found, [name for name in everything if name not in seen])
        return
    top = f"{args[0]}/cookies"
    others = [f"{dir}/cookies" for dir in args]
    opens_go_on(top, others)
    names_come_and_go(top, others)
    garbage(top)


main(sys.argv[1:])
