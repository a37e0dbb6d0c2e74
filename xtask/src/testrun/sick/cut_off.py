"""A reader on a mount that is cut off from its cluster, while another mount writes the file. Run by sick.rs:
`cut_off.py WAY FILE`. What it has read it prints; it goes on when `$GO-STEP` is there.

It opens the file once: what an open drops does not count here.
"""

import mmap
import os
import sys
import time

# In the middle of the file, behind the page for which `waits` waits.
AT = 512 << 10


def wait_for(step):
    while not os.path.exists(f"{os.environ['GO']}-{step}"):
        time.sleep(0.02)


def say(*words):
    print(*words, flush=True)


way, path = sys.argv[1:3]
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

if way == "waits":
    say("held")
    wait_for("cut")
    try:
        os.pread(fd, 4, 0)
    except OSError as error:
        say("failed", error)
    sys.exit()

if way == "read":
    def look():
        return os.pread(fd, 4, AT)
else:
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)

    def look():
        return mapped[AT:AT + 4]

say("saw", look().decode())
say("held")
wait_for("written")
end = time.monotonic() + 90
while time.monotonic() < end:
    try:
        found = look().decode()
        say("saw", found)
        if found == "new!":
            sys.exit()
    except OSError as error:
        say("failed", error)
    time.sleep(0.2)
sys.exit("never saw what was written")
