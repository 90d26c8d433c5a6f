# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest beside messages.py: programs that publish, and that subscribe.

    python3 message_publish.py CASE [ARGUMENT...]"""

import errno
import fcntl
import itertools
import os
import random
import resource
import select
import signal
import struct
import sys
import time

from messages import (CLOSED, CONNECTED, EVENT, F_MORE, F_NOWAIT, F_RECEIPT, LOG, MAX, MSG, NONBLOCK, PUBLISHED, REQUEST, SUBSCRIBE,
                      UNAUTHENTICATED, UNSUBSCRIBE, SUBSCRIBED, LOST, UNSUBSCRIBED, accept, bind, body_of, child, connect, ends, fails, info, one,
                      opts, poll, read, ready, sized, wait_one, write)

FIRST, NEXT, POSITION = range(3)
WAIT, DROP, CLOSE = range(3)
EXACT, NOWAIT = 1, 2
SET, DEFAULT = 1, 2
LOG_FIELDS = struct.Struct("=IIQIIQQQQQII")


def subscribe(fd: int, tag: int, begin=FIRST, log=0, position=0, flags=0, reserved=0) -> None:
    fcntl.ioctl(fd, SUBSCRIBE, sized(struct.pack("=IQIIQQ", flags, tag, begin, reserved, log, position)))


def unsubscribe(fd: int, tag: int, flags=0) -> None:
    fcntl.ioctl(fd, UNSUBSCRIBE, sized(struct.pack("=IQ", flags, tag)))


def log(portal: int, tag=0, flags=0, entries=0, policy=WAIT, size=0) -> dict:
    raw = sized(LOG_FIELDS.pack(0, flags, tag, entries, policy, size, *[0] * 6)[4:])
    fcntl.ioctl(portal, LOG, raw)
    names = "size flags tag entries policy bytes log first next slowest subscribers reserved"
    return dict(zip(names.split(), LOG_FIELDS.unpack(raw), strict=True))


def join(portal: int, name: str, options=b"") -> tuple[int, int]:
    """Both ends of a channel."""
    client = connect(name, flags=NONBLOCK, options=options)
    ready(portal, select.POLLIN)
    (offer,) = read(portal)
    server = accept(portal, offer.id)
    assert wait_one(client).event == CONNECTED
    fcntl.fcntl(client, fcntl.F_SETFL, 0)
    return client, server


def number(body: bytes) -> int:
    (value,) = struct.unpack("<Q", body)
    return value


class Reader:
    """What a program reads of a log: each entry once and in order, or how many are lost."""

    def __init__(self, fd: int):
        self.fd, self.log, self.next, self.lost, self.got, self.ended, self.closed = fd, 0, None, 0, [], None, False

    def take(self, message) -> None:
        if message.kind == PUBLISHED:
            assert message.id == self.next, (message, self.next)
            self.next += 1
            self.got.append(message)
        elif message.event == SUBSCRIBED:
            self.log, self.next = number(message.body), message.id
        elif message.event == LOST:
            assert message.id == self.next and number(message.body) > 0, (message, self.next)
            self.next += number(message.body)
            self.lost += number(message.body)
        elif message.event == UNSUBSCRIBED:
            assert self.next in (None, message.id), (message, self.next)
            self.ended = message.status
        elif message.event == CLOSED:
            self.closed = True
        else:
            raise AssertionError(message)

    def until(self, done, limit: float = 60) -> "Reader":
        end = time.monotonic() + limit
        while not done(self):
            assert time.monotonic() < end, (self.next, self.lost, self.ended)
            ready(self.fd, select.POLLIN)
            for message in read(self.fd):
                self.take(message)
        return self

    def to(self, position: int) -> "Reader":
        return self.until(lambda reader: reader.next is not None and reader.next >= position)

    def end(self) -> int:
        return self.until(lambda reader: reader.ended is not None).ended


def begin() -> None:
    """What is published arrives, wherever a subscription begins, until it ends."""
    portal = bind("news")
    client, server = join(portal, "news")
    with fails(errno.ENOENT):
        log(portal, tag=7)
    sizes = (0, 1, 8, 4096, 5000, MAX, 100)
    for at, size in enumerate(sizes[:4]):
        write(portal, body_of(at, size), tag=7)
    write(portal, b"other", tag=8)
    subscribe(client, 7)
    reader = Reader(client).to(4)
    for at, size in enumerate(sizes[4:], 4):
        write(portal, body_of(at, size), tag=7)
    reader.to(len(sizes))
    assert [(m.tag, m.body) for m in reader.got] == [(7, body_of(at, size)) for at, size in enumerate(sizes)]
    assert reader.lost == 0
    state = log(portal, tag=7)
    assert (state["first"], state["next"], state["slowest"], state["subscribers"]) == (0, 7, 7, 1), state
    assert state["log"] == struct.unpack("=Q", struct.pack("<Q", reader.log))[0]
    # Another program's channel, with what comes next; the server's own messages go their way.
    late, _ = join(portal, "news")
    subscribe(late, 7, NEXT)
    other = Reader(late).until(lambda it: it.next is not None)
    assert other.next == 7
    with fails(errno.EEXIST):
        subscribe(late, 7)
    write(server, b"between", tag=3)
    write(portal, b"last", tag=7)
    assert [(m.kind, m.body) for m in (wait_one(client), wait_one(client))] == [(MSG, b"between"), (PUBLISHED, b"last")]
    assert other.to(8).got[0].body == b"last"
    # UNSUBSCRIBE, and on from there by another channel.
    unsubscribe(client, 7)
    last = wait_one(client)
    assert (last.kind, last.event, last.id, last.status, last.tag) == (EVENT, UNSUBSCRIBED, 8, 0, 7), last
    with fails(errno.ENOENT):
        unsubscribe(client, 7)
    write(portal, b"missed", tag=7)
    subscribe(client, 7, POSITION, reader.log, 8, flags=EXACT)
    again = Reader(client).to(9)
    assert [m.body for m in again.got] == [b"missed"] and again.log == reader.log
    # The channel ends with everything that was on its way.
    write(portal, b"end", tag=7)
    os.close(server)
    again.to(10).until(lambda it: it.closed)
    assert log(portal, tag=7)["subscribers"] == 1
    with open(f"/proc/self/fdinfo/{portal}") as lines:
        fields = dict(line.rstrip().split(":\t") for line in lines)
    assert [fields[name] for name in ("logs", "subscriptions", "published")] == ["2", "1", "11"], fields


def places() -> None:
    """A log keeps what it may; who asks for more is told."""
    portal = bind("news")
    log(portal, 1, SET, entries=4, policy=CLOSE)
    for at in range(10):
        write(portal, body_of(at, 16), tag=1)
    state = log(portal, 1)
    assert (state["entries"], state["first"], state["next"]) == (4, 6, 10), state
    (client, _), (second, _) = join(portal, "news"), join(portal, "news")
    subscribe(client, 1, FIRST)
    reader = Reader(client).to(10)
    assert [m.id for m in reader.got] == [6, 7, 8, 9] and reader.lost == 0
    # What was dropped before counts as lost, not as slow.
    subscribe(second, 1, POSITION, reader.log, 2)
    reader = Reader(second).to(10)
    assert (reader.lost, len(reader.got), reader.ended) == (4, 4, None)
    unsubscribe(second, 1)
    assert reader.end() == 0
    for position, id, status in ((2, reader.log, errno.ESTALE), (11, reader.log, errno.ERANGE), (3, reader.log ^ 1, errno.ESTALE)):
        subscribe(second, 1, POSITION, id, position, flags=EXACT)
        assert Reader(second).end() == status, (position, id)
    # By bytes; and shorter terms count with the next entry.
    log(portal, 2, SET, size=1000, policy=DROP)
    with fails(errno.EMSGSIZE):
        write(portal, bytes(1001), tag=2)
    for size in (400, 400, 400, 1000):
        write(portal, bytes(size), tag=2)
    assert (log(portal, 2)["first"], log(portal, 2)["next"]) == (3, 4)
    log(portal, 1, SET, entries=1, policy=DROP)
    assert log(portal, 1)["first"] == 6
    write(portal, b"x", tag=1)
    assert log(portal, 1)["first"] == 10
    # A subscription to what nobody has published yet.
    subscribe(second, 99)
    waits = Reader(second).until(lambda it: it.next == 0)
    write(portal, b"first", tag=99)
    assert waits.to(1).got[0].body == b"first" and log(portal, 99)["entries"] == 256
    log(portal, flags=DEFAULT, entries=3)
    write(portal, b"x", tag=100)
    assert log(portal, 100)["entries"] == 3 and log(portal, 99)["entries"] == 256


def has_subscribers(portal: int, tag: int, count: int) -> None:
    """Waits until that many programs have subscribed."""
    end = time.monotonic() + 20
    while (log_or_none(portal, tag) or {"subscribers": 0})["subscribers"] != count:
        assert time.monotonic() < end, log_or_none(portal, tag)
        time.sleep(0.01)


def log_or_none(portal: int, tag: int) -> dict | None:
    try:
        return log(portal, tag)
    except FileNotFoundError:
        return None


def slow_wait() -> None:
    """With WAIT, the publisher waits, and nothing is lost."""
    portal = bind("news")
    log(portal, 5, SET, entries=4)
    (slow, _), (fast, _) = join(portal, "news", opts(recv_msgs=2)), join(portal, "news")
    subscribe(slow, 5)
    subscribe(fast, 5)
    has_subscribers(portal, 5, 2)
    # The slow one has room for SUBSCRIBED and an entry, and four stay in the log.
    count = fill(portal, 5)
    assert count == 5 and log(portal, 5)["slowest"] == 1, log(portal, 5)
    reader = Reader(fast).to(count)
    # Other logs go on.
    write(portal, b"x", tag=6, flags=F_NOWAIT)

    def publishes() -> None:
        for at in range(count, 50):
            write(portal, body_of(at, 16), tag=5)

    pid = child(publishes)
    time.sleep(0.2)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0) and log(portal, 5)["next"] == count
    behind = Reader(slow).to(50)
    ends(pid)
    reader.to(50)
    for it in (behind, reader):
        assert it.lost == 0 and [m.body for m in it.got] == [body_of(at, 16) for at in range(50)]
    assert poll(portal) & select.POLLOUT
    # Nobody waits for one that has gone, or wants no more.
    for goes in (os.close, lambda client: unsubscribe(client, 5)):
        client, _ = join(portal, "news", opts(recv_msgs=2))
        subscribe(client, 5, NEXT)
        has_subscribers(portal, 5, 3)
        position = fill(portal, 5)
        for it in (behind, reader):
            it.to(position)
        assert not poll(portal) & select.POLLOUT
        goes(client)
        ready(portal, select.POLLOUT)
        write(portal, b"on", tag=5, flags=F_NOWAIT)
        for it in (behind, reader):
            it.to(position + 1)


def fill(portal: int, tag: int) -> int:
    """Publishes until the publisher would have to wait for some time. Returns the position that comes next."""
    refused = 0
    while refused < 30:
        try:
            write(portal, body_of(log(portal, tag)["next"], 16), tag=tag, flags=F_NOWAIT)
            refused = 0
        except BlockingIOError:
            refused += 1
            time.sleep(0.01)
    return log(portal, tag)["next"]


def slow_and_fast(policy: int) -> tuple[int, Reader]:
    """Publishes 100 entries without waiting: a channel that has read none of them, and what a fast one has read."""
    portal = bind("news")
    log(portal, 5, SET, entries=4, policy=policy)
    (slow, _), (fast, _) = join(portal, "news", opts(recv_msgs=3)), join(portal, "news")
    subscribe(slow, 5)
    subscribe(fast, 5)
    has_subscribers(portal, 5, 2)
    reader = Reader(fast)
    for at in range(100):
        write(portal, body_of(at, 16), tag=5, flags=F_NOWAIT)
        reader.to(at + 1)
    return slow, reader


def slow_drop() -> None:
    """With DROP, the publisher never waits, and the subscriber is told what it has lost."""
    slow, reader = slow_and_fast(DROP)
    assert len(reader.got) == 100 and reader.lost == 0
    behind = Reader(slow).to(100)
    assert behind.lost + len(behind.got) == 100 and behind.lost > 80, (behind.lost, len(behind.got))
    assert [m.body for m in behind.got] == [body_of(m.id, 16) for m in behind.got]


def slow_close() -> None:
    """With CLOSE, its subscription ends, and it may go on."""
    slow, _ = slow_and_fast(CLOSE)
    behind = Reader(slow)
    assert behind.end() == errno.ENOBUFS and behind.lost == 0 and behind.next < 10, behind.next
    subscribe(slow, 5, POSITION, behind.log, behind.next)
    behind.to(100)
    assert behind.lost + len(behind.got) == 100 and len(behind.got) >= 4


def restart() -> None:
    """The publisher goes, and comes back with other logs."""
    portal = bind("news")
    client, server = join(portal, "news")
    write(portal, b"old", tag=1)
    subscribe(client, 1)
    subscribe(client, 2)
    old = Reader(client)
    while old.next != 1:
        message = wait_one(client)
        if message.tag == 1:
            old.take(message)
    os.close(portal)
    seen = {}
    while len(seen) < 2:
        message = wait_one(client)
        if message.event == UNSUBSCRIBED:
            seen[message.tag] = (message.status, message.id)
    assert seen == {1: (errno.ESHUTDOWN, 1), 2: (errno.ESHUTDOWN, 0)}, seen
    # The channel itself stays; a subscription to what is gone does not.
    write(server, b"still here")
    assert wait_one(client).body == b"still here"
    subscribe(client, 1)
    assert Reader(client).end() == errno.ESHUTDOWN
    portal = bind("news")
    write(portal, b"new", tag=1)
    client, server = join(portal, "news")
    subscribe(client, 1, POSITION, old.log, 1)
    reader = Reader(client).to(1)
    assert reader.log != old.log and [m.body for m in reader.got] == [b"new"] and reader.lost == 0


def dies() -> None:
    """Programs are killed."""
    portal = bind("news")
    log(portal, 1, SET, entries=2)
    client, _ = join(portal, "news", opts(recv_msgs=1))
    subscribe(client, 1)
    pid = child(time.sleep, 1000)
    os.close(client)
    has_subscribers(portal, 1, 1)
    fill(portal, 1)

    def waits() -> None:
        while True:
            write(portal, b"y", tag=1)

    publisher = child(waits)
    time.sleep(0.1)
    before = log(portal, 1)["next"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    end = time.monotonic() + 20
    while log(portal, 1)["next"] == before:
        assert time.monotonic() < end
        time.sleep(0.01)
    # The publisher, while it waits.
    client, server = join(portal, "news", opts(recv_msgs=1))
    subscribe(client, 1)
    time.sleep(0.1)
    os.kill(publisher, signal.SIGKILL)
    os.waitpid(publisher, 0)
    os.close(portal)
    assert Reader(client).end() == errno.ESHUTDOWN
    os.close(server)


def exits() -> None:
    """A publisher exits right after it has published, with all of its files: however far behind a subscriber is, it is told
    where each of its subscriptions has ended, before the channel does."""
    for kills in (False, True):
        portal = bind("news")
        client, server = join(portal, "news", opts(recv_msgs=4))
        for tag in (1, 2):
            subscribe(client, tag)
        has_subscribers(portal, 1, 1)
        has_subscribers(portal, 2, 1)

        def publishes(kills=kills, portal=portal, client=client) -> None:
            os.close(client)
            for at in range(10):
                write(portal, body_of(at, 8), tag=1)
            if kills:
                os.kill(os.getpid(), signal.SIGKILL)

        pid = child(publishes)
        os.close(portal)
        os.close(server)
        os.waitpid(pid, 0)
        readers, message = {1: Reader(client), 2: Reader(client)}, None
        while message is None or message.event != CLOSED:
            message = wait_one(client)
            if message.event != CLOSED:
                assert readers[message.tag].ended is None, message
                readers[message.tag].take(message)
        assert message.status == 0 and os.read(client, 1000) == b""
        assert [reader.ended for reader in readers.values()] == [errno.ESHUTDOWN] * 2, readers
        assert readers[2].next == 0 and len(readers[1].got) < 10, len(readers[1].got)
        os.close(client)


def wrong() -> None:
    """What the kernel refuses."""
    portal = bind("news")
    client, server = join(portal, "news")
    for how in ({"flags": 4}, {"begin": 3}, {"reserved": 1}, {"log": 1}, {"position": 1}, {"begin": NEXT, "log": 1},
                {"begin": POSITION}, {"begin": POSITION, "position": 1}):
        with fails(errno.EINVAL):
            subscribe(client, 1, **how)
    with fails(errno.EINVAL):
        unsubscribe(client, 1, flags=1)
    # The portal's side, and other files.
    with fails(errno.EOPNOTSUPP):
        subscribe(server, 1)
    for fd in (portal, os.open("/dev/ibmsg", os.O_RDWR)):
        with fails(errno.ENOTTY):
            subscribe(fd, 1)
    for fd in (client, server):
        with fails(errno.ENOTTY):
            log(fd, 1)
    for how in ({"flags": 4}, {"flags": SET | DEFAULT}, {"flags": DEFAULT, "tag": 1}, {"flags": SET, "policy": 3},
                {"flags": SET, "entries": (1 << 20) + 1}, {"flags": SET, "size": (1 << 30) + 1}):
        with fails(errno.EINVAL):
            log(portal, **how)
    for how in ({"kind": REQUEST}, {"flags": F_RECEIPT}, {"flags": F_MORE}, {"timeout": 5}, {"id": 1}, {"status": 1}):
        with fails(errno.EINVAL):
            write(portal, b"x", **how)
    with fails(errno.EMSGSIZE):
        os.write(portal, bytes(32 + MAX + 1))
    # Too many subscriptions; one that is ending.
    for tag in range(64):
        subscribe(client, tag)
    with fails(errno.ENOSPC):
        subscribe(client, 64)
    for _ in range(64):
        assert wait_one(client).event == SUBSCRIBED
    unsubscribe(client, 3)
    # The first one may have ended by now.
    try:
        unsubscribe(client, 3)
    except OSError as e:
        assert e.errno in (errno.EALREADY, errno.ENOENT), e
    else:
        raise AssertionError("ended twice")
    assert wait_one(client).event == UNSUBSCRIBED
    subscribe(client, 64)
    # Logs longer than the memory of the user, or of all.
    try:
        for tag in range(1000, 5000):
            log(portal, tag, SET, size=1 << 24)
    except OSError as e:
        assert e.errno in (errno.EDQUOT, errno.ENOBUFS), e
    else:
        raise AssertionError("no limit")
    with fails(errno.ENOENT):
        log(portal, tag)
    # A subscriber that takes shorter messages.
    short, _ = join(portal, "news", opts(max_message=100, recv_bytes=200))
    subscribe(short, 5000)
    assert wait_one(short).event == SUBSCRIBED
    log(portal, 5000, SET, entries=4, size=1000)
    write(portal, bytes(101), tag=5000)
    last = wait_one(short)
    assert (last.event, last.status, last.id) == (UNSUBSCRIBED, errno.EMSGSIZE, 0), last
    os.close(server)
    while wait_one(client).event != CLOSED:
        pass
    with fails(errno.EPIPE):
        subscribe(client, 70)


def many(count: str) -> None:
    """Many subscribers each get everything."""
    limit = int(count) * 3 + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    portal = bind("news", options=opts(recv_msgs=4, recv_bytes=8192, max_message=4096, calls=1, send_msgs=16, send_bytes=16384))
    small = opts(recv_msgs=16, recv_bytes=16384, max_message=4096, calls=1, send_msgs=4, send_bytes=8192)
    pairs = [join(portal, "news", small) for _ in range(int(count))]
    log(portal, 1, SET, entries=8, size=8 * 4096)
    readers = [Reader(client) for client, _ in pairs]
    for reader in readers:
        subscribe(reader.fd, 1)
    has_subscribers(portal, 1, int(count))

    def publishes() -> None:
        for at in range(40):
            write(portal, body_of(at, at * 100), tag=1)

    pid = child(publishes)
    # Each may be ahead of the slowest one by the log and what it has unread.
    for position in range(4, 44, 4):
        for reader in readers:
            reader.to(position)
    ends(pid)
    for reader in readers:
        assert reader.lost == 0 and [m.body for m in reader.got] == [body_of(at, at * 100) for at in range(40)]
    assert log(portal, 1)["subscribers"] == int(count)


def in_order(seed: str, count: str) -> None:
    """Three tags, each with another policy, and subscribers that come, go, sleep and come back; prints how often their
    channels have moved."""
    chance = random.Random(seed)
    portal = bind("news")
    for tag in range(3):
        log(portal, tag, SET, entries=20, policy=tag)
    total = int(count)

    def publishes() -> None:
        # A channel is closed when nobody has it any more.
        for fd in itertools.chain(*pairs):
            os.close(fd)
        for at in range(total):
            for tag in range(3):
                write(portal, body_of(at, 8 + at % 700), tag=tag)

    pairs = [join(portal, "news", opts(recv_msgs=chance.choice((4, 16, 64)))) for _ in range(4)]
    state = [[Reader(client) for _ in range(3)] for client, _ in pairs]
    for client, _ in pairs:
        for tag in range(3):
            subscribe(client, tag)
    pid = child(publishes)
    end = time.monotonic() + 150
    moves, reopened = 0, set()
    while any(reader.next is None or reader.next < total for readers in state for reader in readers):
        assert time.monotonic() < end, [[reader.next for reader in readers] for readers in state]
        for at, (client, server) in enumerate(pairs):
            if not chance.randrange(4):
                continue
            if not chance.randrange(60) and all(reader.next is not None for reader in state[at]):
                # Another channel goes on where this one was, with what the log has by then. Before it is known where that
                # was, it would begin later, and nobody would count the entries before.
                reopened.add(at)
                moves += info(client)["moves"]
                while poll(client) & select.POLLIN:
                    for message in read(client):
                        state[at][message.tag].take(message)
                os.close(client)
                os.close(server)
                pairs[at] = client, server = join(portal, "news", opts(recv_msgs=8))
                for tag, reader in enumerate(state[at]):
                    subscribe(client, tag, POSITION, reader.log, reader.next)
                    reader.ended = None
            if not poll(client) & select.POLLIN:
                continue
            for message in read(client):
                reader = state[at][message.tag]
                if message.event == SUBSCRIBED:
                    assert reader.next in (None, message.id) and reader.log in (0, number(message.body)), message
                reader.take(message)
                if message.event == UNSUBSCRIBED:
                    assert message.status == errno.ENOBUFS and message.tag == CLOSE, message
                    subscribe(client, message.tag, POSITION, reader.log, reader.next)
                    reader.ended = None
    ends(pid)
    for at, readers in enumerate(state):
        for tag, reader in enumerate(readers):
            assert reader.lost + len(reader.got) == total, (tag, reader.lost)
            assert reader.lost == 0 or tag != WAIT or at in reopened, (at, reader.lost)
            assert all(m.body == body_of(m.id, 8 + m.id % 700) for m in reader.got)
    print(moves + sum(info(client)["moves"] for client, _ in pairs))



def press(name: str, count: str, subscribers: str, pause: str) -> None:
    """Publishes some entries once it has subscribers, and waits until they have them."""
    portal = bind(name, flags=UNAUTHENTICATED)
    # Nothing is lost if one is away for a while.
    log(portal, 1, SET, entries=10000, size=1 << 25)
    served = []

    def goes_on() -> dict:
        while poll(portal) & select.POLLIN:
            served.extend(accept(portal, offer.id) for offer in read(portal))
        return log(portal, 1)

    while goes_on()["subscribers"] < int(subscribers):
        time.sleep(0.02)
    print("publishing", flush=True)
    for at in range(int(count)):
        write(portal, body_of(at, 8 + at * 7 % 5000), tag=1)
        goes_on()
        time.sleep(float(pause))
    print("published", flush=True)
    while True:
        goes_on()
        time.sleep(0.02)


def follow(session: str, name: str, count: str) -> None:
    """Reads some entries, by one channel after the other."""
    reader, opened, others, moves = Reader(-1), 0, 0, 0
    end = time.monotonic() + 200
    while reader.next is None or reader.next < int(count):
        assert time.monotonic() < end, reader.next
        try:
            client = connect(name, session=session, timeout=10_000)
        except OSError as e:
            assert e.errno in (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENODEV), e
            time.sleep(0.2)
            continue
        opened += 1
        where, reader.fd, reader.closed, reader.ended = reader.log, client, False, None
        if reader.next is None:
            subscribe(client, 1)
        else:
            subscribe(client, 1, POSITION, reader.log, reader.next)
        reader.until(lambda it: it.closed or it.ended is not None or (it.next or 0) >= int(count), limit=200)
        others += where not in (0, reader.log)
        moves += info(client)["moves"]
        os.close(client)
    for message in reader.got:
        assert message.body == body_of(message.id, 8 + message.id * 7 % 5000), message
    print(f"got={len(reader.got)} lost={reader.lost} opened={opened} others={others} moves={moves}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
