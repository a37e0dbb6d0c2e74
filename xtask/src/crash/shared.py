"""Two programs, each on a mount of its own, change the same files. Run by load.rs:
`shared.py write NAME DIR NOTES STOP`, and `shared.py verify DIR NOTES...` for what both have noted.

* `counter`: a number that grows by one under a lock. Whoever wrote a number has noted it, so no number is noted twice.
* `blocks`: a number in each, of a size that fits no stripe, under a lock of its range.
* `log`: lines appended without a lock. Each is there once, and whole.

Under a lock of both mounts nobody may read a number that is smaller than one that he knows of.
"""

import fcntl
import os
import random
import sys
import zlib

BLOCK = 700
BLOCKS = 64
# On average; with 1, whatever is noted is fsynced.
WRITES_PER_FSYNC = int(os.environ["writes_per_fsync"])


def sealed(text):
    return f"{text} {zlib.crc32(text.encode()):08x}"


def opened(what, line):
    text, _, crc = line.rpartition(" ")
    if sealed(text) != f"{text} {crc}":
        sys.exit(f"{what} is not whole: {line[:200]!r}")
    return text


def number_in(what, found):
    return int(opened(what, found.rstrip(b"\0 ").decode(errors="replace")).split()[0]) if found.strip(b"\0") else 0


class Numbers:
    """Numbers in a file, each in its range, and the largest ones known."""

    def __init__(self, path, size):
        self.name, self.size, self.known = os.path.basename(path), size, {}
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def raise_one(self, at, rng):
        """Returns the new number."""
        start = at * self.size
        fcntl.lockf(self.fd, fcntl.LOCK_EX, self.size, start)
        what = f"{self.name} {at}"
        number = number_in(what, os.pread(self.fd, self.size, start))
        if number < self.known.get(at, 0):
            sys.exit(f"{what}: read {number} under the lock, and {self.known[at]} was there before")
        number += 1
        os.pwrite(self.fd, sealed(f"{number} {rng.randbytes(self.size // 3).hex()}"[:self.size - 9]).encode(), start)
        self.known[at] = number
        if rng.randrange(WRITES_PER_FSYNC) == 0:
            os.fsync(self.fd)
        fcntl.lockf(self.fd, fcntl.LOCK_UN, self.size, start)
        return number


def told_in(notes):
    for line in notes:
        words = line.split()
        if len(words) == 3 and line.endswith("\n") and words[2].isdigit():
            yield words[0], words[1], int(words[2])


def write(name, area, notes, stop):
    rng = random.Random()
    counter, blocks = Numbers(f"{area}/counter", 48), Numbers(f"{area}/blocks", BLOCK)
    log = os.open(f"{area}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with open(notes, "a+") as noted:
        noted.seek(0)
        # A line may be in the log that nobody had the time to note.
        last = max((number for file, _, number in told_in(noted) if file == "log"), default=0) + 1000
        # The last note may have been cut: what is left of it must not read as another one.
        noted.write(" cut\n")
        while not os.path.exists(stop):
            print("counter", 0, counter.raise_one(0, rng), file=noted, flush=True)
            at = rng.randrange(BLOCKS)
            print("blocks", at, blocks.raise_one(at, rng), file=noted, flush=True)
            last += 1
            os.write(log, (sealed(f"{name} {last} {'x' * rng.randrange(200)}") + "\n").encode())
            if rng.randrange(WRITES_PER_FSYNC) == 0:
                os.fsync(log)
            print("log", name, last, file=noted, flush=True)


def verify(area, *paths):
    turns, numbers, lines = 0, {}, set()
    for path in paths:
        with open(path) as noted:
            for file, of, number in told_in(noted):
                turns += 1
                if file == "log":
                    lines.add((of, number))
                    continue
                told = numbers.setdefault((file, int(of)), set())
                if number in told:
                    sys.exit(f"{file} {of} {number}: noted twice, so one of two writes was lost")
                told.add(number)
    for (file, at), told in numbers.items():
        size = BLOCK if file == "blocks" else 48
        with open(f"{area}/{file}", "rb") as data:
            data.seek(at * size)
            found = number_in(f"{file} {at}", data.read(size))
        if found < max(told):
            sys.exit(f"{file} {at} is {found}, and {max(told)} was promised")
    found = set()
    with open(f"{area}/log", "rb") as log:
        for line in log:
            name, number, *_ = opened("a line of the log", line.rstrip(b"\n").decode(errors="replace")).split()
            if (name, int(number)) in found:
                sys.exit(f"{name} {number} is in the log twice")
            found.add((name, int(number)))
    if lines - found:
        sys.exit(f"not in the log, and promised: {sorted(lines - found)[:5]}")
    print(turns)


globals()[sys.argv[1]](*sys.argv[2:])
