"""What the programs on a mount say when something is not as it should be. Put before each of them."""

import errno
import sys


def same(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: found {found!r:.300}, expected {expected!r:.300}")


def fails(what, number, call, *args):
    try:
        call(*args)
    except OSError as error:
        return same(what, errno.errorcode.get(error.errno), errno.errorcode[number])
    sys.exit(f"{what}: succeeded")


