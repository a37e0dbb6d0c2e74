"""Locks of whole files, and of open file descriptions, on two mounts: `flock.py A B`. Both may be one."""

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time

OFD_SETLK = 37
SH, EX, NB, UN = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN


def opened(top, name="flock"):
    return os.open(f"{top}/{name}", os.O_RDWR | os.O_CREAT, 0o644)


def flock(fd, kind):
    try:
        fcntl.flock(fd, kind | NB)
        return True
    except OSError as error:
        same("a refused flock", errno.errorcode[error.errno], "EAGAIN")
        return False


def description_lock(fd, kind):
    """F_OFD_SETLK of the whole file."""
    try:
        fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
        return True
    except OSError as error:
        same("a refused lock of a description", errno.errorcode[error.errno], "EAGAIN")
        return False


def whole_files(a, b):
    one, two, three = opened(a), opened(b), opened(a)
    same("the first takes it", flock(one, EX), True)
    same("another mount does not", (flock(two, EX), flock(two, SH)), (False, False))
    same("another description of the same process does not", flock(three, SH), False)
    same("alone becomes shared", flock(one, SH), True)
    same("the others share it", (flock(two, SH), flock(three, SH)), (True, True))
    same("shared does not become alone", flock(one, EX), False)
    flock(two, UN)
    flock(three, UN)
    same("it does when nobody shares it", (flock(one, EX), flock(two, SH)), (True, False))
    other = os.dup(one)
    os.close(one)
    same("it stays with the description", flock(two, EX), False)
    os.close(other)
    taken(two, EX, "it goes with the last descriptor, while others have the file open")
    os.close(two)
    os.close(three)


def taken(fd, kind, what, lock=flock):
    """The end of a description is told when its last descriptor is closed, which nobody waits for."""
    end = time.monotonic() + 30
    while not lock(fd, kind):
        if time.monotonic() > end:
            sys.exit(f"{what}: not within 30 s")
        time.sleep(0.02)


def apart(a, b):
    """Locks of flock and of fcntl do not see each other."""
    one, two = opened(a), opened(b)
    same("flock", flock(one, EX), True)
    fcntl.lockf(two, EX | NB)
    fcntl.lockf(two, UN)
    same("still", flock(two, SH), False)
    os.close(one)
    os.close(two)


def descriptions(a, b):
    one, two, three = opened(a), opened(b), opened(a)
    same("the first takes it", description_lock(one, fcntl.F_WRLCK), True)
    same("no other does", (description_lock(two, fcntl.F_RDLCK), description_lock(three, fcntl.F_RDLCK)), (False, False))
    os.close(one)
    taken(two, fcntl.F_WRLCK, "it goes with its description", description_lock)
    os.close(two)
    taken(three, fcntl.F_WRLCK, "and again", description_lock)
    os.close(three)


def waits(a, b):
    """flock(1) of util-linux waits for another mount, and a waiter that is killed goes."""
    one = opened(a, "waits")
    same("the first takes it", flock(one, EX), True)
    killed = subprocess.Popen(["flock", f"{b}/waits", "true"])
    waiter = subprocess.Popen(["flock", f"{b}/waits", "echo", "held"], stdout=subprocess.PIPE)
    time.sleep(0.3)
    killed.kill()
    same("it was killed", killed.wait(30), -signal.SIGKILL)
    same("nobody else has it", waiter.poll(), None)
    os.close(one)
    same("then it is taken", waiter.communicate(timeout=30)[0], b"held\n")


def upgrades_of_many(a, b):
    """Each of four processes adds to a number under the lock; none is lost."""
    path = f"{a}/number"
    with open(path, "w") as file:
        file.write("0")
    children = []
    for top in (a, b, a, b):
        child = os.fork()
        if child == 0:
            for _ in range(25):
                fd = os.open(f"{top}/number", os.O_RDWR)
                fcntl.flock(fd, EX)
                number = int(os.pread(fd, 20, 0))
                os.pwrite(fd, str(number + 1).encode(), 0)
                os.close(fd)
            os._exit(0)
        children.append(child)
    for child in children:
        same("a child", os.waitpid(child, 0)[1], 0)
    with open(path) as file:
        same("the number", file.read(), "100")


A, B = sys.argv[1:3]
for check in (whole_files, apart, descriptions, waits, upgrades_of_many):
    check(A, B)
