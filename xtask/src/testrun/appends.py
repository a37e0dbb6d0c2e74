"""Appends numbers of 8 bytes, one write each, and checks what is there. Run by kills.rs:
`appends.py write FILE MANIFEST STOP` until STOP exists, `appends.py verify FILE MANIFEST LEAST`.

The manifest, which is on another file system, says how many numbers an fsync has promised; at the end of a writer that was not
disturbed, how many were written.
"""

import os
import struct
import sys

NUMBER = struct.Struct("<Q")
SYNC_AFTER = 700


def promised(manifest):
    if not os.path.exists(manifest):
        return 0
    with open(manifest) as lines:
        return max([0] + [int(line) for line in lines.read().split("\n")[:-1]])


def content(path):
    with open(path, "rb") as file:
        return file.read()


def verify(path, manifest, least):
    data = content(path)
    count, rest = divmod(len(data), NUMBER.size)
    if rest:
        sys.exit(f"{path} ends within a number: {len(data)} bytes")
    for at, (number,) in enumerate(NUMBER.iter_unpack(data)):
        if number != at:
            sys.exit(f"{path} has {number} at place {at} of {count}")
    least = max(int(least), promised(manifest))
    if count < least:
        sys.exit(f"{path} has {count} numbers, promised were {least}")
    return count


def write(path, manifest, stop):
    number = verify(path, manifest, 0) if os.path.exists(path) else 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with open(manifest, "a", buffering=1) as promises:
        while not os.path.exists(stop):
            for _ in range(SYNC_AFTER):
                if os.write(fd, NUMBER.pack(number)) != NUMBER.size:
                    sys.exit("a short write")
                number += 1
            os.fsync(fd)
            promises.write(f"{number}\n")
            # These are not promised before the next round.
            for _ in range(SYNC_AFTER // 2):
                os.write(fd, NUMBER.pack(number))
                number += 1
        os.close(fd)
        promises.write(f"{number}\n")


{"write": write, "verify": verify}[sys.argv[1]](*sys.argv[2:])
