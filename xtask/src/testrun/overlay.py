"""overlayfs over LOWER, with its writable layer in BASE: `overlay.py LOWER BASE MERGED`.

What the overlay does with the writable layer (whiteouts, attributes, files without a name,
exchanges) shows in what it shows, and in what is left when it is mounted once more.
"""

import errno
import os
import shutil
import stat
import subprocess
import sys

RENAME_WITHOUT_REDIRECT = (("",), ("userxattr",), ("xino=on",), ("volatile",))
RENAME_WITH_REDIRECT = (("redirect_dir=on",), ("redirect_dir=on", "metacopy=on"), ("redirect_dir=on", "index=on"))


def put(path, text):
    with open(path, "w") as file:
        file.write(text)


def get(path):
    with open(path) as file:
        return file.read()


def fill(lower):
    for path in ("dir/sub", "removed", "replaced/old", "renamed/sub"):
        os.makedirs(f"{lower}/{path}")
    for path in ("file", "changed", "unlinked", "dir/f", "dir/sub/f", "removed/f", "replaced/old/f", "renamed/sub/f"):
        put(f"{lower}/{path}", path)
    os.symlink("file", f"{lower}/link")
    os.setxattr(f"{lower}/changed", "user.colour", b"red")


def kinds(top):
    """Every entry below, with its kind as the directory has it."""
    found = {}
    for entry in os.scandir(top):
        path = f"{top}/{entry.name}"
        found[path] = "d" if entry.is_dir(follow_symlinks=False) else "l" if entry.is_symlink() else "f"
        same(f"kind of {path}", found[path] == "d", stat.S_ISDIR(os.lstat(path).st_mode))
        if found[path] == "d":
            found.update(kinds(path))
    return found


def change(top, redirects):
    os.unlink(f"{top}/unlinked")
    fails("open of what was removed", errno.ENOENT, open, f"{top}/unlinked")
    with open(f"{top}/changed", "a") as file:
        file.write(" and more")
    os.chmod(f"{top}/file", 0o600)
    shutil.rmtree(f"{top}/removed")
    shutil.rmtree(f"{top}/replaced")
    os.mkdir(f"{top}/replaced")
    same("a directory made anew", os.listdir(f"{top}/replaced"), [])
    if redirects:
        os.rename(f"{top}/renamed", f"{top}/moved")
    else:
        fails("rename of a directory below", errno.EXDEV, os.rename, f"{top}/renamed", f"{top}/moved")
        # As mv does it.
        shutil.copytree(f"{top}/renamed", f"{top}/moved")
        shutil.rmtree(f"{top}/renamed")
    os.rename(f"{top}/dir/f", f"{top}/dir/sub/f")
    put(f"{top}/new", "new")
    os.rename(f"{top}/new", f"{top}/newer")
    os.link(f"{top}/newer", f"{top}/hard")
    os.mkfifo(f"{top}/fifo")
    os.setxattr(f"{top}/changed", "user.size", b"large")
    fd, here = os.open(top, os.O_TMPFILE | os.O_RDWR), os.open(top, os.O_RDONLY)
    os.write(fd, b"without a name at first")
    # With a descriptor of a directory, or Python calls link(), which follows nothing.
    os.link(f"/proc/self/fd/{fd}", "named", src_dir_fd=here, dst_dir_fd=here, follow_symlinks=True)
    os.close(fd)
    os.close(here)


def look(top):
    same("changed", get(f"{top}/changed"), "changed and more")
    same("attributes copied up", os.getxattr(f"{top}/changed", "user.colour"), b"red")
    same("attributes set", os.getxattr(f"{top}/changed", "user.size"), b"large")
    same("mode", stat.S_IMODE(os.stat(f"{top}/file").st_mode), 0o600)
    same("a file of the layer below", get(f"{top}/file"), "file")
    same("through a link", get(f"{top}/link"), "file")
    same("moved", get(f"{top}/moved/sub/f"), "renamed/sub/f")
    same("moved over", get(f"{top}/dir/sub/f"), "dir/f")
    same("hard links", (get(f"{top}/hard"), os.stat(f"{top}/hard").st_nlink), ("new", 2))
    same("named", get(f"{top}/named"), "without a name at first")
    names = {path[len(top) + 1 :] for path in kinds(top)}
    expected = "changed dir dir/sub dir/sub/f fifo file hard link moved moved/sub moved/sub/f named newer replaced"
    same("entries", names, set(expected.split()))


def overlaid(lower, base, merged, options, check, *args):
    layers = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
    options = ",".join(filter(None, [layers, *options]))
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, text=True)
    same(f"mount -o {options}", (done.returncode, done.stderr), (0, ""))
    try:
        check(merged, *args)
    finally:
        subprocess.run(["umount", merged], check=True)


def main(lower, base, merged):
    for redirects, sets in ((False, RENAME_WITHOUT_REDIRECT), (True, RENAME_WITH_REDIRECT)):
        for options in sets:
            for path in (lower, base, merged):
                shutil.rmtree(path, ignore_errors=True)
            for path in (lower, f"{base}/upper", f"{base}/work", merged):
                os.makedirs(path)
            fill(lower)
            overlaid(lower, base, merged, options, change, redirects)
            whiteout = os.lstat(f"{base}/upper/unlinked")
            same("whiteout", (stat.S_ISCHR(whiteout.st_mode), whiteout.st_rdev), (True, 0))
            if "volatile" in options:
                # It is only good once, but for this mark.
                shutil.rmtree(f"{base}/work/work/incompat")
            overlaid(lower, base, merged, options, look)
            shutil.rmtree(base)


main(*sys.argv[1:4])
