"""What a program that means no harm does: `normal.py DIR SEED STOP`; each call timed.

Runs until the file STOP is there. Any error, and any byte that is not what was written, ends it with a message.
"""

import os
import random
import sys
import time

CALL_MAX = float(os.environ.get("CALL_MAX_SECONDS", "2"))
FILES = 40


class Normal:
    def __init__(self, top, seed):
        self.rng = random.Random(seed)
        self.top = top
        self.files = {}
        self.calls = 0
        self.longest = (0.0, "")
        self.slow = 0

    def timed(self, name, call, *args):
        began = time.monotonic()
        result = call(*args)
        took = time.monotonic() - began
        self.calls += 1
        self.longest = max(self.longest, (took, name))
        if took > CALL_MAX:
            self.slow += 1
            print(f"slow: {name} took {took:.2f} s", flush=True)
        return result

    def write(self, name):
        data = self.rng.randbytes(self.rng.randrange(1, 200_000))
        fd = self.timed("create", os.open, f"{self.top}/{name}", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        at = 0
        while at < len(data):
            at += self.timed("write", os.write, fd, data[at : at + 50_000])
        if self.rng.random() < 0.3:
            self.timed("fsync", os.fsync, fd)
        self.timed("close", os.close, fd)
        self.files[name] = data

    def read(self, name):
        fd = self.timed("open", os.open, f"{self.top}/{name}", os.O_RDONLY)
        parts = []
        while part := self.timed("read", os.read, fd, 65536):
            parts.append(part)
        self.timed("close", os.close, fd)
        if b"".join(parts) != self.files[name]:
            sys.exit(f"{name} does not hold what was written")

    def rename(self, name):
        other = f"file{self.rng.randrange(FILES)}"
        self.timed("rename", os.rename, f"{self.top}/{name}", f"{self.top}/{other}")
        self.files[other] = self.files.pop(name)

    def unlink(self, name):
        self.timed("unlink", os.unlink, f"{self.top}/{name}")
        del self.files[name]

    def listing(self, _):
        found = sorted(self.timed("list", os.listdir, self.top))
        if found != sorted(self.files):
            sys.exit(f"a listing has {found}, not {sorted(self.files)}")

    def stat(self, name):
        size = self.timed("stat", os.stat, f"{self.top}/{name}").st_size
        if size != len(self.files[name]):
            sys.exit(f"{name} has {size} bytes, not {len(self.files[name])}")

    def step(self):
        if not self.files or self.rng.random() < 0.3:
            return self.write(f"file{self.rng.randrange(FILES)}")
        kinds = [self.read, self.read, self.stat, self.stat, self.rename, self.unlink, self.listing]
        return self.rng.choice(kinds)(self.rng.choice(sorted(self.files)))


def main():
    top, seed, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.makedirs(top, exist_ok=True)
    normal = Normal(top, seed)
    while not os.path.exists(stop):
        normal.step()
        time.sleep(0.01)
    print(f"calls {normal.calls} longest {normal.longest[0]:.2f} s ({normal.longest[1]}), {normal.slow} slow")
    if normal.slow:
        sys.exit(f"{normal.slow} calls took longer than {CALL_MAX} s")


main()
