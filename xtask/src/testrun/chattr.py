"""chattr(1) and lsattr(1), and what their flags forbid: `chattr.py DIR...`. The last directory is on
a local file system; what it answers all others must."""

import errno
import os
import subprocess
import sys

SIZE = 100_000


def flags(path):
    done = subprocess.run(["lsattr", "-d", path], capture_output=True, text=True)
    same(f"lsattr of {path}", (done.returncode, done.stderr), (0, ""))
    return {flag for flag in done.stdout.split()[0] if flag in "ia"}


def chattr(change, path):
    done = subprocess.run(["chattr", change, path], capture_output=True, text=True)
    same(f"chattr {change} {path}", (done.returncode, done.stderr), (0, ""))


def answer(call, *args, **named):
    """The name of the error, or that there is none."""
    try:
        found = call(*args, **named)
    except OSError as error:
        return errno.errorcode[error.errno]
    if isinstance(found, int) and call in (os.open,):
        os.close(found)
    return "done"




def tried(top, flag):
    """What every call says to a file and to a directory with the flag."""
    file, other, sub = f"{top}/file", f"{top}/other", f"{top}/dir"
    os.mkdir(sub)
    for path in (file, other, f"{sub}/in"):
        with open(path, "wb") as made:
            made.write(b"x" * SIZE)
    os.setxattr(file, "user.a", b"1")
    writer, appender = os.open(file, os.O_RDWR), os.open(file, os.O_WRONLY | os.O_APPEND)
    os.pwrite(writer, b"before", 0)
    for path in (file, sub):
        chattr(f"+{flag}", path)
        same("flags", flags(path), {flag})
    found = {
        "open to read": answer(os.open, file, os.O_RDONLY),
        "open to write": answer(os.open, file, os.O_WRONLY),
        "open to append": answer(os.open, file, os.O_WRONLY | os.O_APPEND),
        "truncating open": answer(os.open, file, os.O_WRONLY | os.O_APPEND | os.O_TRUNC),
        "append": answer(os.write, appender, b"more"),
        "truncate": answer(os.truncate, file, 5),
        "unlink": answer(os.unlink, file),
        "link": answer(os.link, file, f"{top}/link"),
        "rename": answer(os.rename, file, f"{top}/moved"),
        "rename over": answer(os.rename, other, file),
        "chmod": answer(os.chmod, file, 0o600),
        "chown": answer(os.chown, file, 5, 5),
        "touch": answer(os.utime, file),
        "utime": answer(os.utime, file, (1, 1)),
        "setxattr": answer(os.setxattr, file, "user.a", b"2"),
        "removexattr": answer(os.removexattr, file, "user.a"),
        "create inside": answer(os.open, f"{sub}/new", os.O_CREAT | os.O_WRONLY),
        "mkdir inside": answer(os.mkdir, f"{sub}/d"),
        "unlink inside": answer(os.unlink, f"{sub}/in"),
        "rename inside": answer(os.rename, f"{sub}/in", f"{sub}/on"),
        "rename into": answer(os.rename, other, f"{sub}/other"),
        "write inside": answer(os.truncate, f"{sub}/in", 7),
        "chmod of the directory": answer(os.chmod, sub, 0o700),
        "rmdir": answer(os.rmdir, sub),
        "size": os.stat(file).st_size - SIZE,
        "first bytes": open(file, "rb").read(6),
    }
    if flag == "i":
        found["write by an older handle"] = answer(os.pwrite, writer, b"after", 0)
    for path in (file, sub):
        chattr(f"-{flag}", path)
        same("flags", flags(path), set())
    os.close(appender)
    found["afterwards"] = (answer(os.pwrite, writer, b"after", 0), answer(os.truncate, file, 5))
    os.close(writer)
    return found


def who_may(top):
    """Whether the owner may set a flag, and root without CAP_LINUX_IMMUTABLE."""
    file = f"{top}/owned"
    open(file, "w").close()
    os.chown(file, 1000, 1000)
    os.chmod(top, 0o755)
    refused = {}
    for who, how in (
        ("its owner", ["--reuid=1000", "--regid=1000", "--clear-groups"]),
        ("root without the capability", ["--bounding-set=-linux_immutable"]),
    ):
        done = subprocess.run(["setpriv", *how, "chattr", "+i", file], capture_output=True, text=True)
        refused[who] = (done.returncode, done.stderr.split(" on ")[0].split(":")[-1], flags(file))
    return refused


def main(tops):
    expected = None
    for top in reversed(tops):
        for flag in "ia":
            os.mkdir(f"{top}/{flag}")
        found = {flag: tried(f"{top}/{flag}", flag) for flag in "ia"}
        found["who"] = who_may(top)
        expected = expected or found
        same("who may", found["who"], expected["who"])
        for flag in "ia":
            for what in found[flag]:
                same(f"+{flag}: {what}", found[flag][what], expected[flag][what])


main(sys.argv[1:])
