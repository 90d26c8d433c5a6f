# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest beside messages.py: messages that wait for others, and tasks that poll before they sleep.

    python3 message_gather.py CASE [ARGUMENT...]"""

import errno
import fcntl
import os
import random
import select
import signal
import sys
import time

from messages import (CALL, CLOSED, EVENT, F_MORE, F_RECEIPT, FLUSH, INFO, MSG, RECEIPT, REPLY, REQUEST, SHUTDOWN, body_of,
                      call, child, ends, fails, info, opts, pair, poll, read, ready, tune, wait_one, write)

# Long enough that nothing is sent because its time is over.
NEVER = 1_000_000


def arrived(fd: int) -> int:
    """How many messages have arrived, when no more do for a while."""
    seen = -1
    while seen != (seen := info(fd)["recv_queued"]):
        time.sleep(0.05)
    return seen


def waits_for_arrival(fd: int, count: int, limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while info(fd)["recv_queued"] < count:
        assert time.monotonic() < deadline, (info(fd), count)
        time.sleep(0.001)


def releases() -> None:
    """What sends the messages that wait."""
    _, client, server = pair()
    tune(client, more_us=NEVER)
    for tag in range(3):
        write(client, body_of(tag, 64), tag=tag, flags=F_MORE)
    assert arrived(server) == 0 and info(client)["send_queued"] == 3
    write(client, body_of(3, 64), tag=3)
    waits_for_arrival(server, 4)
    got = read(server)
    assert [(message.tag, message.body) for message in got] == [(tag, body_of(tag, 64)) for tag in range(4)], got
    # FLUSH.
    write(client, b"x", flags=F_MORE)
    fcntl.ioctl(client, FLUSH)
    waits_for_arrival(server, 1)
    fcntl.ioctl(client, FLUSH)
    # What would not fit the watermark: messages of 128 bytes with their header.
    tune(client, more_bytes=512, more_us=NEVER)
    for _ in range(5):
        write(client, bytes(64), flags=F_MORE)
    waits_for_arrival(server, 5)
    assert arrived(server) == 5
    # One that exceeds it alone takes the others along.
    write(client, bytes(512), flags=F_MORE)
    waits_for_arrival(server, 7)
    # The program ends its side.
    write(client, b"last", flags=F_MORE)
    fcntl.ioctl(client, SHUTDOWN)
    waits_for_arrival(server, 8)
    got = read(server)
    assert got[7].body == b"last" and len(got) >= 8, got


def times() -> None:
    """A message waits for as long as is said, and no longer."""
    _, client, server = pair()
    for us in (100, 1000, 300_000):
        tune(client, more_us=us)
        begin = time.monotonic()
        write(client, b"x", flags=F_MORE)
        ready(server, select.POLLIN)
        passed = time.monotonic() - begin
        assert us / 1e6 <= passed < us / 1e6 + 5, (us, passed)
        assert wait_one(server).body == b"x"
    # Many channels, of which the last one is first.
    ends_of = [pair(name=f"t{number}")[1:] for number in range(20)]
    for number, (near, _) in enumerate(ends_of):
        tune(near, more_us=400_000 - 10_000 * number)
        write(near, body_of(number, 8), flags=F_MORE)
    for number, (_, far) in enumerate(ends_of):
        assert wait_one(far).body == body_of(number, 8)
    # None waits for more than half of its own time, so that it does not expire for that.
    tune(client, more_us=NEVER)
    begin = time.monotonic()
    write(client, b"early", flags=F_MORE, timeout=1200)
    assert wait_one(server).body == b"early"
    assert time.monotonic() - begin >= 0.6


def room() -> None:
    """Nobody waits for room that messages have which wait for others."""
    _, client, server = pair(options=opts(send_msgs=4))
    tune(client, more_us=NEVER)
    for number in range(40):
        write(client, body_of(number, 8), flags=F_MORE)
        if number % 4 == 3:
            waits_for_arrival(server, number + 1)
    got = read(server)
    assert [message.body for message in got] == [body_of(number, 8) for number in range(40)]
    # Requests, of which two may be unanswered.
    _, client, server = pair(portal_options=opts(calls=2), name="calls")
    tune(client, more_us=NEVER)

    def asks() -> None:
        for tag in range(6):
            write(client, kind=REQUEST, tag=tag, flags=F_MORE)

    pid = child(asks)
    for _ in range(3):
        waits_for_arrival(server, 2)
        for request in read(server):
            write(server, b"answer", kind=REPLY, id=request.id)
    ends(pid)
    tags = []
    while len(tags) < 6:
        tags += [message.tag for message in read(client)]
    assert tags == list(range(6)), tags


def wrong() -> None:
    """What the kernel refuses."""
    portal, client, server = pair()
    for how in ({"more_bytes": 255}, {"more_bytes": 65537}, {"more_us": 99}, {"more_us": 1_000_001},
                {"busy_poll_us": 1_000_001}, {"reserved": 1}, {"reserved": 1 << 32}):
        with fails(errno.EINVAL):
            tune(client, **how)
    # It has no argument: a call with two has anything in the place of the third.
    fcntl.ioctl(client, FLUSH, 1)
    with fails(errno.EINVAL):
        call(client, b"x", flags=F_MORE)
    for fd in (portal, os.open("/dev/ibmsg", os.O_RDWR)):
        with fails(errno.ENOTTY):
            tune(fd)
        with fails(errno.ENOTTY):
            fcntl.ioctl(fd, FLUSH)
    os.close(server)
    assert wait_one(client).event == CLOSED
    tune(client)
    fcntl.ioctl(client, FLUSH)
    with fails(errno.EPIPE):
        write(client, b"x", flags=F_MORE)


def dies() -> None:
    """A program dies while its messages wait: they are sent."""
    _, client, server = pair()
    tune(client, more_us=NEVER)
    (said, says) = os.pipe()

    def writes() -> None:
        for number in range(5):
            write(client, body_of(number, 16), flags=F_MORE)
        os.write(says, b"x")
        time.sleep(100)

    pid = child(writes)
    os.close(client)
    os.read(said, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    got = []
    while len(got) < 6:
        got += read(server)
    assert [message.body for message in got[:5]] == [body_of(number, 16) for number in range(5)], got
    assert (got[5].kind, got[5].event) == (EVENT, CLOSED), got


def in_order(seed: str, count: str) -> None:
    """Messages that may wait, and others, each once and in order; prints how often the channel has moved."""
    chance = random.Random(seed)
    _, client, server = pair(options=opts(send_msgs=200))
    pid = child(writes_all, client, chance, int(count))
    os.close(client)
    number = 0
    while number < int(count):
        for message in read(server):
            assert message.kind == MSG and message.tag == number, (message, number)
            assert message.body == body_of(number, len(message.body))
            number += 1
    print(info(server)["moves"])
    os.close(server)
    ends(pid)


def writes_all(client: int, chance: random.Random, count: int) -> None:
    receipts = 0
    for number in range(count):
        if not chance.randrange(20):
            tune(client, more_bytes=chance.choice((256, 2048, 0)), more_us=chance.choice((100, 1000, 20_000)))
        flags = chance.choice((F_MORE, F_MORE, F_MORE, 0)) | chance.choice((0, 0, 0, F_RECEIPT))
        receipts += bool(flags & F_RECEIPT)
        write(client, body_of(number, chance.choice((0, 64, 64, 500, 5000))), tag=number, flags=flags)
        if not chance.randrange(50):
            fcntl.ioctl(client, FLUSH)
        while poll(client) & select.POLLIN:
            receipts -= sum(message.kind == RECEIPT for message in read(client))
    deadline = time.monotonic() + 60
    while receipts:
        assert time.monotonic() < deadline, receipts
        ready(client, select.POLLIN)
        for message in read(client):
            assert (message.kind, message.status) == (RECEIPT, 0), message
            receipts -= 1


def switches() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


def polls(us: int, make_call: bool) -> bool:
    """Whether a task that waits for a message, or for a reply, sleeps meanwhile."""
    _, client, server = pair(name=f"busy{us}{make_call}")
    tune(client, busy_poll_us=us)

    def answers() -> None:
        if make_call:
            request = wait_one(server)
        time.sleep(0.05)
        if make_call:
            write(server, b"answer", kind=REPLY, id=request.id)
        else:
            write(server, b"answer")
        time.sleep(0.5)

    pid = child(answers)
    before = switches()
    if make_call:
        assert call(client, b"question") == (0, b"answer")
    else:
        assert [message.body for message in read(client)] == [b"answer"]
    slept = switches() != before
    ends(pid)
    os.close(client)
    os.close(server)
    return slept


def busy() -> None:
    """Tasks poll before they sleep, if another one does not need the processor."""
    for make_call in (False, True):
        assert polls(0, make_call)
        # Too short.
        assert polls(100, make_call)
        assert not all(polls(1_000_000, make_call) for _ in range(10))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
