"""Clients of the NBD server: one that is no client, and writers that remember what was answered.

    volume.py garbage SOCKET NAME
    volume.py stamped URI STOP ROUNDS
    volume.py stolen OLD_URI NEW_URI
    volume.py stopped OLD_URI NEW_URI GO
    volume.py flags URI

Debian's libnbd is a module of its own Python.
"""

import os
import random
import socket
import struct
import sys
import threading
import time

import nbd

BLOCK = 4096
IHAVEOPT = b"IHAVEOPT"


def connected(uri, structured=True, contexts=True):
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    if contexts:
        handle.add_meta_context("base:allocation")
    handle.connect_uri(uri)
    return handle


# ---- what is no client


def raw(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(path)
    assert len(client.recv(18, socket.MSG_WAITALL)) == 18
    return client


def option(number, data=b""):
    return IHAVEOPT + struct.pack(">II", number, len(data)) + data


def ready(path, name):
    """A client that has come as far as requests, with simple replies."""
    client = raw(path)
    client.sendall(struct.pack(">I", 3) + option(1, name.encode()))
    assert len(client.recv(10, socket.MSG_WAITALL)) == 10
    return client


def request(command, offset, length, flags=0, cookie=7, magic=0x25609513):
    return struct.pack(">IHHQQI", magic, flags, command, cookie, offset, length)


def is_closed(client):
    try:
        while client.recv(65536):
            pass
        return True
    except ConnectionResetError:
        return True


def answer(client):
    head = client.recv(16, socket.MSG_WAITALL)
    magic, error, cookie = struct.unpack(">IIQ", head)
    assert (magic, cookie) == (0x67446698, 7), head
    return error


def garbage(path, name):
    size = 64 << 20
    rng = random.Random(1)
    # Before the options are agreed on.
    for words in [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(100),
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 3) + b"x" * 16,
        struct.pack(">I", 3) + IHAVEOPT + struct.pack(">II", 7, 0xFFFFFFFF),
        struct.pack(">I", 3) + option(1, b"no such export"),
        struct.pack(">I", 3) + option(5) * 100,
        bytes(rng.randrange(256) for _ in range(5000)),
    ]:
        client = raw(path)
        try:
            client.sendall(words)
        except BrokenPipeError:
            pass
        assert is_closed(client), words[:40]
    # An option that is refused is not the end.
    client = raw(path)
    refused = option(7, b"\0\0\0\xff") + option(6, b"\0\0\0\2xx\0\0")
    client.sendall(struct.pack(">I", 3) + refused + option(1))
    assert struct.unpack(">QIII", client.recv(20, socket.MSG_WAITALL))[2] == 0x80000003
    client.close()
    # Requests that make no sense are errors, and the connection goes on.
    client = ready(path, name)
    for words, error in [
        (request(0, size - 1, 2), 22),
        (request(0, 1 << 63, 1), 22),
        (request(0, (1 << 64) - 1, 0xFFFFFFFF), 22),
        (request(0, 0, (32 << 20) + 1), 22),
        (request(4, 0, 0xFFFFFFFF), 22),
        (request(6, 0, 0xFFFFFFFF), 28),
        (request(6, 0, 512, flags=2 | 16), 95),
        (request(7, 0, 512), 22),
        (request(5, 0, 512), 22),
        (request(99, 0, 0), 22),
        (request(0, 0, 512, flags=0x8000), 22),
        (request(1, size, 3) + b"abc", 28),
        (request(1, (1 << 64) - 3, 3) + b"abc", 28),
        (request(1, 5, 0), 0),
        (request(3, 0, 0), 0),
    ]:
        client.sendall(words)
        found = answer(client)
        assert found == error, (words, found, error)
    client.sendall(request(0, 0, 0))
    assert answer(client) == 0
    client.close()
    # What cannot be understood ends it.
    for words in [request(0, 0, 512, magic=1), request(1, 0, (32 << 20) + 1), b"\xff" * 28]:
        client = ready(path, name)
        client.sendall(words)
        assert is_closed(client), words
    # Clients that vanish: in a header, in a write, with reads that nobody takes, with many writes.
    for words in [
        request(0, 0, 512)[:13],
        request(1, 0, 1 << 20) + b"x" * 1000,
        request(0, 0, 8 << 20) * 8,
        (request(1, 1 << 20, 4096) + b"y" * 4096) * 200,
    ]:
        client = ready(path, name)
        client.sendall(words)
        client.close()
    # As many clients as there may be, all silent; the next is turned away.
    clients = []
    for _ in range(80):
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        clients.append(client)
    for client in clients:
        client.close()
    # A client that takes no answers for as much as it may ask for, and one beside it.
    deadline = time.time() + 60
    while True:
        try:
            greedy = ready(path, name)
            break
        except (AssertionError, OSError):
            assert time.time() < deadline, "no room after 80 clients have gone"
            time.sleep(0.1)
    greedy.setblocking(False)
    try:
        for _ in range(64):
            greedy.sendall(request(0, 0, 32 << 20))
    except BlockingIOError:
        pass
    while True:
        try:
            handle = connected(f"nbd+unix:///{name}?socket={path}")
            break
        except nbd.Error:
            assert time.time() < deadline, "a good client is not served"
            time.sleep(0.2)
    handle.pwrite(b"good" * 1024, 12288)
    assert handle.pread(4096, 12288) == b"good" * 1024
    handle.flush()
    # That one who vanished has not written into the next.
    assert handle.pread(4096, 1 << 20) in (b"y" * 4096, bytes(4096))
    handle.shutdown()
    greedy.close()


# ---- flags, zeros, extents, a second connection


def extents(handle, length, offset=0):
    found = []

    def add(context, at, entries, error):
        assert context == "base:allocation"
        found.extend(zip(entries[::2], entries[1::2]))
        return 0

    handle.block_status(length, offset, add)
    return found


def flags(uri):
    one, two = connected(uri), connected(uri)
    assert one.can_multi_conn() and one.can_fua() and one.can_df()
    assert one.can_zero() and one.can_fast_zero()
    one.pwrite(b"a" * BLOCK, 1 << 20, nbd.CMD_FLAG_FUA)
    two.pwrite(b"b" * BLOCK, (1 << 20) + BLOCK)
    one.flush()
    assert two.pread(2 * BLOCK, 1 << 20) == b"a" * BLOCK + b"b" * BLOCK
    assert one.pread_structured(BLOCK, 1 << 20, lambda *_: 0, nbd.CMD_FLAG_DF) == b"a" * BLOCK
    assert extents(one, 2 << 20) == [(1 << 20, 3), (2 * BLOCK, 0), ((1 << 20) - 2 * BLOCK, 3)]
    one.trim(BLOCK, 1 << 20)
    assert one.pread(BLOCK, 1 << 20) == bytes(BLOCK)
    assert extents(one, 2 << 20)[0] == ((1 << 20) + BLOCK, 3)
    one.zero(BLOCK, (1 << 20) + BLOCK, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    assert one.pread(BLOCK, (1 << 20) + BLOCK) == bytes(BLOCK)
    assert (BLOCK, 0) in extents(one, 2 << 20), "zeros that keep their space"
    one.zero(2 << 20, 0, nbd.CMD_FLAG_FAST_ZERO)
    assert extents(one, 2 << 20) == [(2 << 20, 3)]
    size = one.get_size()
    one.zero(min(size, (1 << 32) - BLOCK), 0)
    found = extents(one, min(size, (1 << 32) - BLOCK))
    assert all(entry[1] == 3 for entry in found), found
    # Not at a sector.
    one.pwrite(b"xyz", 777)
    assert two.pread(5, 776) == b"\0xyz\0"
    old = connected(uri, structured=False, contexts=False)
    assert old.pread(3, 777) == b"xyz"
    for handle in (one, two, old):
        handle.shutdown()


# ---- writers that remember


def stamp(block, version):
    return struct.pack("<QQ", block, version) * (BLOCK // 16)


class Writer(threading.Thread):
    """Writes blocks of its own, with a version in each, over a connection of its own."""

    def __init__(self, uri, number, stop):
        super().__init__()
        self.uri, self.number, self.stop = uri, number, stop
        self.rng = random.Random(number)
        self.blocks = range(number * 64, number * 64 + 64)
        # What a block may hold: the last version that was answered, and later ones that were not.
        self.allowed = {block: [0] for block in self.blocks}
        self.version = self.answered = self.flushed = self.losses = 0
        self.error = None

    def place(self, block):
        # Not at stripes of a pool of two data shards.
        return 512 + block * BLOCK

    def connect(self):
        deadline = time.time() + 90
        while True:
            try:
                return connected(self.uri)
            except nbd.Error as error:
                if time.time() > deadline:
                    raise AssertionError(f"no server for too long: {error}")
                time.sleep(0.1)

    def verify(self, handle):
        for block in self.blocks:
            data = handle.pread(BLOCK, self.place(block))
            held, version = struct.unpack_from("<QQ", data)
            if data == bytes(BLOCK):
                held, version = block, 0
            else:
                assert data == stamp(held, version), f"block {block} is torn"
            assert held == block and version in self.allowed[block], (
                f"block {block} holds version {version} of {held}, "
                f"answered or under way: {self.allowed[block]}"
            )
            self.allowed[block] = [version]

    def write(self, handle):
        block = self.rng.choice(self.blocks)
        self.version += 1
        self.allowed[block].append(self.version)
        flag = nbd.CMD_FLAG_FUA if self.rng.randrange(8) == 0 else 0
        handle.pwrite(stamp(block, self.version), self.place(block), flag)
        self.allowed[block] = [self.version]
        self.answered += 1
        if self.rng.randrange(10) == 0:
            handle.flush()
            self.flushed += 1

    def run(self):
        try:
            handle = self.connect()
            while not os.path.exists(self.stop):
                try:
                    self.write(handle)
                except nbd.Error:
                    self.losses += 1
                    while True:
                        handle = self.connect()
                        try:
                            self.verify(handle)
                            break
                        except nbd.Error:
                            self.losses += 1
            handle = self.connect()
            self.verify(handle)
            handle.shutdown()
        except BaseException as error:
            self.error = error


def stamped(uri, stop, rounds):
    writers = [Writer(uri, number, stop) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for writer in writers:
        if writer.error:
            raise writer.error
    answered = sum(writer.answered for writer in writers)
    flushed = sum(writer.flushed for writer in writers)
    losses = min(writer.losses for writer in writers)
    print(f"{answered} writes, {flushed} flushes, {losses} connections lost by each at least")
    assert losses >= int(rounds) and answered > 100 and flushed > 10, "this shows nothing"


# ---- taken away


def fails(call):
    try:
        call()
    except nbd.Error:
        return True
    return False


def stolen(old_uri, new_uri):
    """The volume of a server that runs is taken away by the next."""
    old = connected(old_uri)
    old.pwrite(b"o" * BLOCK, 0)
    print("connected", flush=True)
    new = None
    while new is None:
        try:
            new = connected(new_uri)
        except nbd.Error:
            time.sleep(0.1)
    assert new.pread(BLOCK, 0) == b"o" * BLOCK, "what was answered is there"
    new.pwrite(b"n" * BLOCK, 0)
    assert fails(lambda: old.pwrite(b"x" * BLOCK, 0)), "the old server still writes"
    assert fails(lambda: old.pread(BLOCK, 0)), "the old server still reads"
    assert new.pread(BLOCK, 0) == b"n" * BLOCK
    new.flush()
    new.shutdown()


def stopped(old_uri, new_uri, go):
    """The old server is stopped with writes in its hands, and wakes up when it is deposed."""
    old = connected(old_uri)
    old.pwrite(b"o" * BLOCK, 0)
    print("connected", flush=True)
    while not os.path.exists(go + ".stopped"):
        time.sleep(0.05)
    for _ in range(32):
        old.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"x" * BLOCK)), 0)
    new = None
    while new is None:
        try:
            new = connected(new_uri)
        except nbd.Error:
            time.sleep(0.1)
    new.pwrite(b"n" * BLOCK, 0)
    new.flush()
    print("written", flush=True)
    while not os.path.exists(go + ".over"):
        time.sleep(0.05)
        assert new.pread(BLOCK, 0) == b"n" * BLOCK, "something of the old server arrived late"
    assert new.pread(BLOCK, 0) == b"n" * BLOCK, "something of the old server arrived late"
    new.shutdown()


if __name__ == "__main__":
    {f.__name__: f for f in (garbage, flags, stamped, stolen, stopped)}[sys.argv[1]](*sys.argv[2:])
