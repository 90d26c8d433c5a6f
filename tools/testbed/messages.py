# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest: programs that pass messages, with nothing but the calls of the kernel.

    python3 messages.py CASE [ARGUMENT...]"""

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time

DEVICE = "/dev/ibmsg"
BIND, CONNECT, ACCEPT, INFO, SHUTDOWN, CALL, FLUSH, TUNE = (0xB900 + number for number in range(8))
SUBSCRIBE, UNSUBSCRIBE, LOG = (0xB910 + number for number in range(3))
MAP, UNMAP, PUT, GET, RELEASE = (0xB908 + number for number in range(5))
MSG, REQUEST, REPLY, RECEIPT, EVENT, OFFER = range(1, 7)
PUBLISHED = 8
CONNECTED, CLOSED, PATH_LOST, PATH_BACK, DRAINING, KEY_REVOKED = range(1, 7)
SUBSCRIBED, LOST, UNSUBSCRIBED = range(16, 19)
F_RECEIPT, F_NOWAIT, F_MORE, F_BODY, F_AUTHENTICATED, F_KERNEL = 1, 2, 4, 8, 0x40, 0x80
NONBLOCK, REJECT, UNAUTHENTICATED = 1, 2, 4
WANT_PATHS = 1
WANT_DRAIN = 2
WANT_KEY = 4
WANT_BODIES = 8
MAX = 65536
HEADER = struct.Struct("=BBHIQQiI")
OPTS = struct.Struct("=8I")
INFO_FIELDS = struct.Struct("=4I 8I 6I 6Q 64s 64s")
BOTH = select.POLLIN | select.POLLOUT


class Message:
    def __init__(self, header: bytes, body: bytes):
        self.kind, self.flags, self.event, length, self.id, self.tag, self.status, zero = HEADER.unpack(header)
        assert length == len(body) and zero == 0
        self.body = body

    def __repr__(self) -> str:
        return f"<{self.kind} {self.flags} {self.event} {self.id} {self.tag} {self.status} {self.body[:40]!r}>"


def head(kind=MSG, length=0, flags=0, id=0, tag=0, status=0, timeout=0, event=0) -> bytes:
    return HEADER.pack(kind, flags, event, length, id, tag, status, timeout)


def opts(recv_msgs=0, recv_bytes=0, max_message=0, calls=0, send_msgs=0, send_bytes=0, timeout=0, events=0) -> bytes:
    return OPTS.pack(recv_msgs, recv_bytes, max_message, calls, send_msgs, send_bytes, timeout, events)


def device() -> int:
    return os.open(DEVICE, os.O_RDWR)


def sized(fields: bytes) -> bytearray:
    return bytearray(struct.pack("=I", len(fields) + 4) + fields)


def bind(name: str, flags=0, backlog=0, options=b"") -> int:
    context = device()
    try:
        return fcntl.ioctl(context, BIND, sized(struct.pack("=3I32s64s", flags, backlog, 0, options or opts(), name.encode())))
    finally:
        os.close(context)


def connect_args(name: str, flags=0, timeout=0, options=b"", data=b"", session="local") -> bytearray:
    return sized(struct.pack("=IIiII32s64s64s256s", flags, timeout, 0, len(data), 0, options or opts(),
                             session.encode(), name.encode(), data))


def connect(*args, **kwargs) -> int:
    context = device()
    try:
        return fcntl.ioctl(context, CONNECT, connect_args(*args, **kwargs))
    finally:
        os.close(context)


def accept(portal: int, offer: int, flags=0, reason=0, data=b"") -> int:
    return fcntl.ioctl(portal, ACCEPT, sized(struct.pack("=IQII256s", flags, offer, reason, len(data), data)))


def info(fd: int) -> dict:
    raw = sized(bytes(INFO_FIELDS.size - 4))
    fcntl.ioctl(fd, INFO, raw)
    values = INFO_FIELDS.unpack(raw)
    names = ("size kind state channel recv_msgs recv_bytes max_message recv_calls send_msgs send_bytes timeout_ms events "
             "peer_max_message peer_recv_msgs next_len recv_queued send_queued moves sent_msgs sent_bytes queued_msgs "
             "taken_msgs received_msgs received_bytes session portal")
    return dict(zip(names.split(), values, strict=True))


def split(data: bytes) -> list[Message]:
    found, at = [], 0
    while at < len(data):
        length = HEADER.unpack_from(data, at)[3]
        end = at + HEADER.size + length
        assert end <= len(data), (at, length, len(data))
        found.append(Message(data[at:at + HEADER.size], data[at + HEADER.size:end]))
        at = (end + 7) & ~7
    return found


def read(fd: int, size=1 << 20) -> list[Message]:
    return split(os.read(fd, size))


def one(fd: int) -> Message:
    """The next message alone."""
    (message,) = read(fd, max(info(fd)["next_len"], HEADER.size)) if info(fd)["next_len"] else [wait_one(fd)]
    return message


def wait_one(fd: int) -> Message:
    ready(fd, select.POLLIN)
    (message,) = read(fd, info(fd)["next_len"])
    return message


def write(fd: int, body=b"", **kwargs) -> None:
    data = head(length=len(body), **kwargs) + body
    assert os.write(fd, data) == len(data)


def tune(fd: int, more_bytes=0, more_us=0, busy_poll_us=0, reserved=0) -> None:
    fcntl.ioctl(fd, TUNE, sized(struct.pack("=3IQ", more_bytes, more_us, busy_poll_us, reserved)))


def call_args(request, reply, length: int, room: int, timeout=0, flags=0, tag=0) -> bytearray:
    return sized(struct.pack("=I2Q3IiQ", flags, request, reply, length, room, timeout, 0, tag))


def call(fd: int, body=b"", room=1 << 16, **how) -> tuple[int, bytes]:
    """Status and content of the reply."""
    request, reply = ctypes.create_string_buffer(body, len(body) + 1), ctypes.create_string_buffer(max(room, 1))
    args = call_args(ctypes.addressof(request), ctypes.addressof(reply), len(body), room, **how)
    assert fcntl.ioctl(fd, CALL, args) == 0
    length, _, status = struct.unpack_from("=2Ii", args, 28)
    return status, reply.raw[:length]


def poll(fd: int, timeout=0) -> int:
    poller = select.poll()
    poller.register(fd, BOTH | select.POLLPRI)
    found = poller.poll(timeout)
    return found[0][1] if found else 0


def ready(fd: int, what: int, seconds=60) -> None:
    end = time.monotonic() + seconds
    poller = select.poll()
    poller.register(fd, what)
    while not poller.poll(1000):
        assert time.monotonic() < end, "not ready"


@contextlib.contextmanager
def fails(number: int):
    try:
        yield
    except OSError as e:
        assert e.errno == number, (errno.errorcode[e.errno], errno.errorcode[number])
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")


def pair(options=b"", portal_options=b"", name="test", flags=0) -> tuple[int, int, int]:
    """Portal and both ends of a channel."""
    portal = bind(name, options=portal_options)
    client = connect(name, flags=NONBLOCK, options=options)
    (offer,) = read(portal)
    server = accept(portal, offer.id, flags=flags)
    assert one(client).event == CONNECTED
    fcntl.fcntl(client, fcntl.F_SETFL, os.O_NONBLOCK if flags & NONBLOCK else 0)
    return portal, client, server


def body_of(number: int, length: int) -> bytes:
    return (struct.pack("=Q", number) * (length // 8 + 1))[:length]


def child(function, *args) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function(*args)
        status = 0
    finally:
        os._exit(status)


def ends(pid: int) -> None:
    assert os.waitpid(pid, 0)[1] == 0, "a child has failed"


# --- the cases ---

def begin() -> None:
    """A channel is offered, with data both ways, and accepted."""
    portal = bind("kv", options=opts(max_message=1000))
    with fails(errno.EADDRINUSE):
        bind("kv")

    def opener() -> None:
        context = device()
        args = connect_args("kv", data=b"hello", options=opts(max_message=3000))
        client = fcntl.ioctl(context, CONNECT, args)
        status, length = struct.unpack_from("=iI", args, 12)
        assert (status, bytes(args[184:184 + length])) == (0, b"welcome")
        assert fcntl.fcntl(client, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert info(client)["peer_max_message"] == 1000 and info(client)["state"] == 2
        with fails(errno.EMSGSIZE):
            write(client, bytes(1001))
        write(client, bytes(1000), tag=5)
        assert one(client).body == bytes(3000)
        last = one(client)
        assert (last.kind, last.event, last.status, last.tag) == (EVENT, CLOSED, 0, 1), last
        assert os.read(client, 100) == b"" and poll(client) & select.POLLHUP

    pid = child(opener)
    (offer,) = read(portal)
    assert offer.kind == OFFER
    length, data_len, max_message = struct.unpack_from("=HHI", offer.body)
    assert offer.body[8:8 + 64].rstrip(b"\0") == b"local" and max_message == 3000
    assert (offer.body[length:], data_len) == (b"hello", 5)
    server = accept(portal, offer.id, data=b"welcome")
    with fails(errno.ENOENT):
        accept(portal, offer.id)
    message = one(server)
    assert (message.kind, message.tag, len(message.body)) == (MSG, 5, 1000)
    write(server, bytes(3000))
    os.close(server)
    ends(pid)
    os.close(portal)
    with fails(errno.ECONNREFUSED):
        connect("kv")


def refused() -> None:
    """A portal refuses, is missing, or goes."""
    context = device()
    args = connect_args("none")
    with fails(errno.ECONNREFUSED):
        fcntl.ioctl(context, CONNECT, args)
    assert struct.unpack_from("=i", args, 12)[0] == errno.ENOENT
    portal = bind("no", backlog=2)
    asking = [connect("no", flags=NONBLOCK) for _ in range(3)]
    # The third finds the portal's list full.
    assert [(m.event, m.status) for m in [one(asking[2])]] == [(CLOSED, errno.EAGAIN)]
    offers = read(portal)
    assert len(offers) == 2
    for flags, reason in ((REJECT, 0), (REJECT, 4096), (REJECT | NONBLOCK, 1), (0, 1), (4, 0)):
        with fails(errno.EINVAL):
            accept(portal, offers[0].id, flags=flags, reason=reason)
    assert accept(portal, offers[0].id, flags=REJECT, reason=errno.EPERM, data=b"not you") == 0
    last = one(asking[0])
    assert (last.event, last.status, last.body) == (CLOSED, errno.EPERM, b"not you")
    assert os.read(asking[0], 100) == b""
    with fails(errno.EPIPE):
        write(asking[0], b"x")
    # One asks no longer; the last one is left when the portal goes.
    os.close(asking[1])
    with fails(errno.ENOENT):
        deadline = time.monotonic() + 20
        while info(portal)["state"] and time.monotonic() < deadline:
            time.sleep(0.01)
        accept(portal, offers[1].id)
    left = connect("no", flags=NONBLOCK)
    ready(portal, select.POLLIN)
    os.close(portal)
    assert one(left).status == errno.ENOENT
    # A program that waits gets the reason, and where to go instead.
    portal = bind("no")
    pid = child(lambda: refusing(portal))
    args = connect_args("no")
    with fails(errno.ECONNREFUSED):
        fcntl.ioctl(context, CONNECT, args)
    status, length = struct.unpack_from("=iI", args, 12)
    assert (status, bytes(args[184:184 + length])) == (errno.EREMCHG, b"storage2 kv")
    ends(pid)
    # Nobody answers.
    with fails(errno.ETIMEDOUT):
        connect("no", timeout=100)
    with fails(errno.ENODEV):
        connect("no", session="elsewhere")


def refusing(portal: int) -> None:
    (offer,) = read(portal)
    accept(portal, offer.id, flags=REJECT, reason=errno.EREMCHG, data=b"storage2 kv")


LENGTHS = (0, 1, 8, 100, 4000, 4096, 5000, 20000, MAX)


def lengths(seed: str, count: int):
    """Of messages, of which one in 16 may be long."""
    any_of = random.Random(seed)
    return (any_of.choice(LENGTHS) if number % 16 == 0 else number % 300 for number in range(count))


def speak(fd: int, seed: str, count: int, pause: float = 0) -> None:
    """Sends messages of all lengths."""
    for number, length in enumerate(lengths(seed, count)):
        write(fd, body_of(number, length), tag=number)
        if pause:
            time.sleep(pause)


def hear(fd: int, seed: str, count: int) -> None:
    """Takes them, each once and in order."""
    expected = enumerate(lengths(seed, count))
    taken = 0
    while taken < count:
        for message in read(fd):
            assert message.kind == MSG, message
            number, length = next(expected)
            assert message.tag == number and message.body == body_of(number, length), (number, message)
            taken += 1


def in_order(seed="1", count="2000") -> None:
    """Messages of all lengths in both directions, each once and in order."""
    portal, client, server = pair()
    count = int(count)
    pids = [child(speak, client, f"{seed}0", count), child(hear, server, f"{seed}0", count),
            child(speak, server, f"{seed}1", count), child(hear, client, f"{seed}1", count)]
    for pid in pids:
        ends(pid)
    # The last acknowledgement may be on its way, or lost with the link.
    deadline = time.monotonic() + 20
    while (told := info(client))["queued_msgs"] < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told["sent_msgs"] == told["queued_msgs"] == count, told
    for fd in (portal, client, server):
        os.close(fd)
    print(told["moves"])


# --- between two machines ---

def answer(name: str, channels="1", count="100", pause="0", flags="4") -> None:
    """Accepts channels, and speaks and hears on each."""
    portal = bind(name, flags=int(flags))
    pids = []
    for _ in range(int(channels)):
        (offer,) = read(portal, 1024)
        seed = offer.body[offer.body[0] + 256 * offer.body[1]:].decode()
        server = accept(portal, offer.id)
        print(f"authenticated={bool(offer.flags & F_AUTHENTICATED)}", flush=True)
        pids.append(child(on_both_sides, server, f"{seed}1", f"{seed}0", int(count), float(pause)))
        os.close(server)
    for pid in pids:
        ends(pid)


def ask(session: str, name: str, channels="1", count="100", pause="0") -> None:
    """Opens channels, and speaks and hears on each."""
    pids = []
    for number in range(int(channels)):
        client = connect(name, session=session, data=str(number).encode(), timeout=60000)
        pids.append(child(on_both_sides, client, f"{number}0", f"{number}1", int(count), float(pause)))
        os.close(client)
    for pid in pids:
        ends(pid)


def echo_all(name: str, deaf: str) -> None:
    """Accepts all channels to two portals. At the first one, what is read is written; at the second one, nothing is
    read."""
    options = opts(recv_msgs=4, recv_bytes=8192, max_message=4096, calls=4)
    portals = [bind(portal, flags=UNAUTHENTICATED, options=options) for portal in (name, deaf)]
    poller = select.epoll()
    for portal in portals:
        poller.register(portal, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            try:
                for message in read(fd):
                    if message.kind == OFFER:
                        channel = accept(fd, message.id, flags=NONBLOCK)
                        poller.register(channel, select.POLLIN if fd == portals[0] else select.POLLHUP)
                    elif message.kind == MSG:
                        write(fd, message.body)
                    elif message.kind == REQUEST:
                        write(fd, message.body, kind=REPLY, id=message.id)
                    elif message.kind == EVENT and message.event == CLOSED:
                        os.close(fd)
            except OSError as error:
                # The client is gone, or has withdrawn, or does not read.
                if error.errno not in (errno.EPIPE, errno.EAGAIN, errno.ENOENT):
                    raise


def write_and_go(name: str, count: str) -> None:
    """Accepts a channel, writes when it is told to, and ends."""
    portal = bind(name, flags=UNAUTHENTICATED)
    (offer,) = read(portal, 1024)
    fd = accept(portal, offer.id)
    print("open", flush=True)
    while not os.path.exists("/tmp/go"):
        time.sleep(0.1)
    for number in range(int(count)):
        write(fd, body_of(number, 5000), tag=number)


def closed(fd: int, count: str) -> None:
    """Prints what `count` was before the channel ended, and why it did."""
    message = wait_one(fd)
    assert (message.kind, message.event) == (EVENT, CLOSED), message
    print(count.format(queued=message.id), errno.errorcode.get(message.status, message.status), flush=True)


def write_and_hold(session: str, name: str, count: str) -> None:
    """Opens a channel, writes, and waits until it ends."""
    fd = connect(name, session=session, timeout=60000, options=opts(send_msgs=int(count)))
    for number in range(int(count)):
        write(fd, body_of(number, 100), tag=number)
    print("written", flush=True)
    closed(fd, "queued={queued}")


def read_late(name: str, count: str) -> None:
    """Accepts a channel, and reads messages when it is told to."""
    portal = bind(name, flags=UNAUTHENTICATED)
    (offer,) = read(portal, 1024)
    fd = accept(portal, offer.id)
    print("open", flush=True)
    while not os.path.exists("/tmp/go"):
        time.sleep(0.1)
    for number in range(int(count)):
        message = wait_one(fd)
        assert (message.tag, message.body) == (number, body_of(number, 100)), message
    closed(fd, f"read={count}")


def hear_to_the_end(session: str, name: str) -> None:
    """Prints how many messages came, in order, and how the channel ended."""
    fd = connect(name, session=session, timeout=60000)
    print("open", flush=True)
    heard = 0
    while True:
        for message in read(fd):
            if message.kind == EVENT:
                print(f"heard={heard} status={message.status}", flush=True)
                return
            assert (message.tag, message.body) == (heard, body_of(heard, 5000)), message
            heard += 1


def try_to_connect(session: str, name: str, seconds="60") -> None:
    """Prints the errno of CONNECT, and the reason of a refusal."""
    context = device()
    args = connect_args(name, session=session, timeout=int(float(seconds) * 1000))
    try:
        fcntl.ioctl(context, CONNECT, args)
        print("connected")
    except OSError as error:
        status = struct.unpack_from("=i", args, 12)[0]
        print(errno.errorcode[error.errno], errno.errorcode.get(status, ""))


def try_to_bind(name: str) -> None:
    """Prints the errno of BIND."""
    try:
        os.close(bind(name))
        print("bound")
    except OSError as error:
        print(errno.errorcode[error.errno])


def as_user(ids: str, case: str, *arguments: str) -> None:
    """Runs a case as a user, given as UID:GID, or UID:GID:GROUP of a supplementary group."""
    uid, gid, *groups = map(int, ids.split(":"))
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    globals()[case](*arguments)


def wait_for_end(fd: int) -> None:
    """Prints what happens to a channel until it ends."""
    print("open", flush=True)
    while True:
        message = wait_one(fd)
        if message.kind == EVENT and message.event == CLOSED:
            print("closed", errno.errorcode.get(message.status, message.status), flush=True)
            return
        word = {PATH_LOST: "lost", PATH_BACK: "back", DRAINING: f"draining {message.tag}",
                KEY_REVOKED: f"revoked {errno.errorcode.get(message.status, message.status)}"}
        print(word.get(message.event, message), flush=True)


def hold(session: str, name: str) -> None:
    """Opens a channel and waits until it ends."""
    wait_for_end(connect(name, session=session, timeout=60000, options=opts(events=WANT_PATHS | WANT_DRAIN | WANT_KEY)))


def hold_accepted(name: str) -> None:
    """Accepts a channel and waits until it ends."""
    portal = bind(name, flags=UNAUTHENTICATED, options=opts(events=WANT_DRAIN | WANT_KEY))
    (offer,) = read(portal, 1024)
    wait_for_end(accept(portal, offer.id))


def take_one(name: str) -> None:
    """Accepts a channel, takes a message, and dies."""
    portal = bind(name)
    (offer,) = read(portal, 1024)
    wait_one(accept(portal, offer.id))
    os.kill(os.getpid(), signal.SIGKILL)


def accept_all(name: str, flags="0") -> None:
    """Accepts channels for ever, and closes those that have ended."""
    portal = bind(name, flags=int(flags))
    poller = select.poll()
    poller.register(portal, select.POLLIN)
    print("bound", flush=True)
    while True:
        for fd, what in poller.poll():
            if fd != portal:
                poller.unregister(fd)
                os.close(fd)
                continue
            for offer in read(portal, 1 << 16):
                with contextlib.suppress(FileNotFoundError):
                    poller.register(accept(portal, offer.id), 0)


def open_many(session: str, name: str, count: str, size="0") -> None:
    """Opens channels that may have `size` bytes waiting, and prints how many there are, and why there are no more."""
    channels, why = [], ""
    options = opts(recv_bytes=int(size), send_bytes=int(size))
    for _ in range(int(count)):
        context = device()
        args = connect_args(name, session=session, timeout=60000, options=options)
        try:
            channels.append(fcntl.ioctl(context, CONNECT, args))
        except OSError as error:
            status = struct.unpack_from("=i", args, 12)[0]
            why = f" {errno.errorcode[error.errno]} {errno.errorcode.get(status, '')}"
            break
    print(f"{len(channels)}{why}", flush=True)
    signal.pause()


def bind_and_wait(name: str) -> None:
    """Reads an offer, and accepts it when its session has ended."""
    portal = bind(name, flags=UNAUTHENTICATED)
    (offer,) = read(portal, 1024)
    print("offered", flush=True)
    deadline = time.monotonic() + 120
    while info(portal)["state"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with fails(errno.ENOENT):
        accept(portal, offer.id)
    print("gone")


SMALL = {"recv_bytes": 4160, "max_message": 4096, "recv_msgs": 4, "send_bytes": 4160, "send_msgs": 4, "calls": 1}


def kernel_memory() -> int:
    """Bytes that the kernel has allocated for itself. MemAvailable would count the page cache, this program, and the
    free pages that each CPU keeps."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return sum(int(fields[name].split()[0]) for name in ("Slab", "VmallocUsed", "Percpu")) * 1024


def crowd(count: str) -> int:
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(count) + 100,) * 2)
    return int(count)


def answer_crowd(name: str, count: str) -> None:
    """Accepts many channels; each echoes once."""
    number = crowd(count)
    portal = bind(name, flags=UNAUTHENTICATED, backlog=4096, options=opts(**SMALL))
    before = kernel_memory()
    ours = []
    while len(ours) < number:
        ours += [accept(portal, offer.id, flags=NONBLOCK) for offer in read(portal)]
    print(f"bytes={(kernel_memory() - before) // number}", flush=True)
    for fd in ours:
        write(fd, wait_one(fd).body)
    for fd in ours:
        assert wait_one(fd).event == CLOSED
        os.close(fd)


def ask_crowd(session: str, name: str, count: str) -> None:
    """Opens many channels, and sends one message on each."""
    number = crowd(count)
    before, began, ours = kernel_memory(), time.monotonic(), []
    while len(ours) < number:
        # No more at a time than the portal has room for.
        some = [connect(name, flags=NONBLOCK, options=opts(**SMALL), session=session) for _ in range(min(1000, number - len(ours)))]
        for fd in some:
            assert wait_one(fd).event == CONNECTED
        ours += some
    print(f"ms={(time.monotonic() - began) * 1000 / number:.2f} bytes={(kernel_memory() - before) // number}", flush=True)
    for at, fd in enumerate(ours):
        write(fd, body_of(at, at % 4096))
    for at, fd in enumerate(ours):
        assert wait_one(fd).body == body_of(at, at % 4096)
        os.close(fd)


def on_both_sides(fd: int, ours: str, theirs: str, count: int, pause: float) -> None:
    pid = child(speak, fd, ours, count, pause)
    hear(fd, theirs, count)
    ends(pid)
    # All of ours are there when the other program has them, too.
    deadline = time.monotonic() + 600
    while info(fd)["taken_msgs"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    print(f"moves={info(fd)['moves']}", flush=True)
    os.close(fd)


def bounds() -> None:
    """Several messages for one read, none cut, none lost."""
    _, client, server = pair(flags=NONBLOCK)
    for length in (5, 8, 0):
        write(client, bytes(length), tag=length)
    ready(server, select.POLLIN)
    while info(server)["recv_queued"] < 3:
        time.sleep(0.01)
    assert info(server)["next_len"] == 37
    for size in (1, 31, 32, 36):
        with fails(errno.EMSGSIZE):
            os.read(server, size)
    data = os.read(server, 1000)
    assert len(data) == 40 + 40 + 32 and data[37:40] == b"\0\0\0"
    assert [message.tag for message in split(data)] == [5, 8, 0]
    with fails(errno.EAGAIN):
        os.read(server, 1000)
    # What does not fit any more waits for the next call.
    for length in (5, 8):
        write(client, bytes(length), tag=length)
    while info(server)["recv_queued"] < 2:
        time.sleep(0.01)
    assert len(os.read(server, 79)) == 37 and len(os.read(server, 40)) == 40
    with open(f"/proc/self/fdinfo/{server}") as file:
        assert {"portal:\ttest\n", "waiting:\t0\n", "received:\t5\n"} <= set(file)
    # readv and writev.
    assert os.writev(client, [head(length=6)[:7], head(length=6)[7:], b"abc", b"", b"def"]) == 38
    ready(server, select.POLLIN)
    parts = [bytearray(10), bytearray(22), bytearray(4), bytearray(100)]
    assert os.readv(server, parts) == 38 and parts[2] + parts[3][:2] == b"abcdef"
    # What cannot be copied stays: the page behind the end of a file.
    write(client, b"last")
    ready(server, select.POLLIN)
    with open("/tmp/short", "w+b") as file:
        file.truncate(4096)
        hole = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        for _ in range(2):
            with fails(errno.EFAULT):
                os.readv(server, [hole])
            with fails(errno.EFAULT):
                os.writev(client, [head(length=4096), hole])
    assert one(server).body == b"last"
    # What is no message.
    for data in (b"", bytes(31), bytes(32), head(length=1), head() + b"x", head(kind=7), head(kind=RECEIPT), head(kind=OFFER),
                 head(flags=0x20), head(flags=F_KERNEL), head(event=1), head(id=1), head(status=1), head(kind=REQUEST, id=1),
                 head(kind=REQUEST, flags=F_RECEIPT), head(kind=REPLY, id=1, status=4096)):
        with fails(errno.EINVAL):
            os.write(client, data)
    with fails(errno.EMSGSIZE):
        os.write(client, head(length=MAX + 1) + bytes(MAX + 1))
    with fails(errno.ESPIPE):
        os.lseek(client, 0, os.SEEK_SET)
    with fails(errno.ESPIPE):
        os.pread(client, 100, 0)


def flow() -> None:
    """A program that does not read: its peer gets EAGAIN, and nobody else is held up."""
    _, client, server = pair(options=opts(send_msgs=4), portal_options=opts(recv_msgs=8), flags=NONBLOCK)
    sent = 0
    deadline = time.monotonic() + 60
    while (told := info(client))["send_queued"] < 4 or told["queued_msgs"] < 8:
        assert time.monotonic() < deadline
        try:
            write(client, b"x", tag=sent)
            sent += 1
        except BlockingIOError:
            time.sleep(0.01)
    with fails(errno.EAGAIN):
        write(client, b"x")
    assert sent == 12 and not poll(client) & select.POLLOUT and poll(server) & select.POLLIN
    with fails(errno.EAGAIN):
        write(client, b"x", flags=F_NOWAIT)
    # Another channel of the same link.
    _, other, its = pair(name="other")
    for number in range(1000):
        write(other, bytes(1000), tag=number)
        assert one(its).tag == number
    # Reading makes room.
    tags = []
    while len(tags) < 12:
        ready(server, select.POLLIN)
        tags += [message.tag for message in read(server)]
    assert tags == list(range(12))
    ready(client, select.POLLOUT)
    # Bytes as well: a window of one large message.
    _, client, server = pair(name="bytes", options=opts(send_bytes=64), portal_options=opts(recv_bytes=MAX + 64), flags=NONBLOCK)
    write(client, bytes(MAX))
    ready(client, select.POLLOUT)
    write(client, bytes(MAX))
    with fails(errno.EAGAIN):
        write(client, b"")
    assert len(wait_one(server).body) == MAX and len(wait_one(server).body) == MAX


def small() -> None:
    """A writer waits for as much room as its message needs, not for that of the longest one."""
    _, client, server = pair(options=opts(send_bytes=130_000), portal_options=opts(recv_bytes=MAX + 64))
    for length in (60_000, 60_000, 60_000, 9000):
        write(client, bytes(length))
    while info(client)["queued_msgs"] < 1:
        time.sleep(0.01)
    pid = child(write, client, bytes(9000))
    time.sleep(0.3)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert len(wait_one(server).body) == 60_000
    deadline = time.monotonic() + 20
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline, "a writer was not woken"
        time.sleep(0.01)
    assert found[1] == 0 and info(client)["queued_msgs"] == 2


def edge() -> None:
    """epoll, edge-triggered: each change wakes once more."""
    _, client, server = pair(options=opts(send_msgs=2), portal_options=opts(recv_msgs=2), flags=NONBLOCK)
    count = 500

    def writer() -> None:
        poller = select.epoll()
        poller.register(client, select.EPOLLOUT | select.EPOLLET)
        number = 0
        while number < count:
            try:
                write(client, bytes(number), tag=number)
                number += 1
            except BlockingIOError:
                assert poller.poll(60), "a writer was not woken"

    pid = child(writer)
    poller = select.epoll()
    poller.register(server, select.EPOLLIN | select.EPOLLET)
    expected = 0
    while expected < count:
        assert poller.poll(60), "a reader was not woken"
        with contextlib.suppress(BlockingIOError):
            while True:
                for message in read(server, 700):
                    assert message.tag == expected
                    expected += 1
    ends(pid)


def receipts() -> None:
    """What becomes of messages."""
    _, client, server = pair(portal_options=opts(recv_msgs=2))
    for tag in range(2):
        write(client, b"x", tag=tag, flags=F_RECEIPT)
    told = []
    while len(told) < 2:
        ready(client, select.POLLPRI)
        told += read(client)
    assert [(m.kind, m.tag, m.status) for m in told] == [(RECEIPT, 0, 0), (RECEIPT, 1, 0)]
    # No credits: their time is over before they are sent.
    write(client, b"x", tag=2, flags=F_RECEIPT, timeout=50)
    write(client, b"x", tag=3, timeout=50)
    told = [wait_one(client), wait_one(client)]
    assert [(m.kind, m.tag, m.status) for m in told] == [(RECEIPT, 2, errno.ECANCELED), (RECEIPT, 3, errno.ECANCELED)], told
    assert [wait_one(server).tag for _ in range(2)] == [0, 1]
    write(client, b"x", tag=4)
    assert wait_one(server).tag == 4
    # The program that has not taken everything closes.
    for tag in (5, 6):
        write(client, b"x", tag=tag)
    assert wait_one(server).tag == 5
    write(client, b"x", tag=7, flags=F_RECEIPT)
    assert wait_one(client).status == 0
    write(client, b"x", tag=8, flags=F_RECEIPT)
    os.close(server)
    told = [wait_one(client), wait_one(client)]
    assert (told[0].kind, told[0].tag, told[0].status) == (RECEIPT, 8, errno.ECANCELED)
    assert (told[1].event, told[1].tag, told[1].id) == (CLOSED, 4, 6), told
    assert poll(client) & select.POLLHUP and os.read(client, 1000) == b""
    with fails(errno.EPIPE):
        write(client, b"x")
    # Receipts that nobody reads use up the room.
    _, client, server = pair(name="unread", options=opts(send_msgs=4), flags=NONBLOCK)
    for _ in range(4):
        write(client, b"x", flags=F_RECEIPT)
        wait_one(server)
    with fails(errno.EAGAIN):
        write(client, b"x", flags=F_RECEIPT)
    ready(client, select.POLLPRI)


def calls() -> None:
    """Requests and replies from both sides."""
    _, client, server = pair(options=opts(calls=2), portal_options=opts(calls=2))
    for caller, callee in ((client, server), (server, client)):
        for tag in (10, 11):
            write(caller, b"q%d" % tag, kind=REQUEST, tag=tag)
        requests = [wait_one(callee), wait_one(callee)]
        assert [(m.kind, m.tag, m.body) for m in requests] == [(REQUEST, 10, b"q10"), (REQUEST, 11, b"q11")]
        with fails(errno.EAGAIN):
            write(caller, b"", kind=REQUEST, flags=F_NOWAIT)
        for request in reversed(requests):
            write(callee, b"a%d" % request.tag, kind=REPLY, id=request.id, status=request.tag)
            with fails(errno.ENOENT):
                write(callee, b"again", kind=REPLY, id=request.id)
        replies = [wait_one(caller), wait_one(caller)]
        assert [(m.kind, m.tag, m.status, m.flags, m.body) for m in replies] == [
            (REPLY, 11, 11, 0, b"a11"), (REPLY, 10, 10, 0, b"a10")]
    # Nobody answers in time; the late answer is dropped, and the slot is free again.
    write(client, b"", kind=REQUEST, tag=20, timeout=100)
    request = wait_one(server)
    late = wait_one(client)
    assert (late.kind, late.flags, late.tag, late.status) == (REPLY, F_KERNEL, 20, errno.ETIMEDOUT)
    write(server, b"late", kind=REPLY, id=request.id)
    write(server, b"next", tag=1)
    assert wait_one(client).tag == 1
    for tag in (30, 31, 32):
        write(client, b"", kind=REQUEST, tag=tag)
        if tag == 30:
            wait_one(server)
        if tag == 31:
            os.close(server)
            break
    told = [wait_one(client) for _ in range(3)]
    assert [(m.kind, m.flags, m.tag) for m in told[:2]] == [(REPLY, F_KERNEL, 30), (REPLY, F_KERNEL, 31)] or (
        [(m.kind, m.flags, m.tag) for m in told[:2]] == [(REPLY, F_KERNEL, 31), (REPLY, F_KERNEL, 30)]), told
    assert {m.tag: m.status for m in told[:2]} == {30: errno.ECONNRESET, 31: errno.ECANCELED}, told
    assert told[2].event == CLOSED
    _, client, server = pair(name="none", portal_options=opts())
    assert info(client)["recv_calls"] == 64


def answers(fd: int, count: int) -> None:
    """Answers requests in any order."""
    left = []
    while count:
        if not left or poll(fd) & select.POLLIN:
            left += [message for message in read(fd) if message.kind == REQUEST]
        random.shuffle(left)
        for request in left[:random.randrange(1, len(left) + 1)]:
            write(fd, request.body[::-1], kind=REPLY, id=request.id, status=request.tag % 4096)
            left.remove(request)
            count -= 1


def answers_again(client: int, server: int, count: int) -> None:
    """Calls are answered, beside the requests that others have left."""
    helper = child(answers, server, 1000)
    for number in range(count):
        assert call(client, b"%d" % number) == (0, str(number)[::-1].encode())
    os.kill(helper, signal.SIGKILL)
    os.waitpid(helper, 0)


def waiting_calls() -> None:
    """Calls whose replies go to the threads that have made them."""
    _, client, server = pair(options=opts(recv_msgs=4, calls=4), portal_options=opts(calls=4))
    for caller, callee in ((client, server), (server, client)):
        helper = child(answers, callee, 300)
        for number in range(300):
            body = body_of(number, number * 7 % 3000)
            assert call(caller, body, tag=number) == (number, body[::-1])
        ends(helper)
    # Of many threads, while another one reads; more than there are slots.
    helper = child(answers, server, 400)
    failures = []

    def caller(seed: int) -> None:
        for number in range(50):
            body = body_of(seed * 1000 + number, 5 + number)
            if call(client, body, tag=seed) != (seed, body[::-1]):
                failures.append((seed, number))

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for tag in range(20):
        write(server, b"beside", tag=tag)
        assert wait_one(client).tag == tag
    for thread in threads:
        thread.join()
    ends(helper)
    assert not failures, failures
    # The reply is longer than the room for it.
    helper = child(answers, server, 3)
    with fails(errno.EMSGSIZE):
        call(client, b"too long", room=7)
    assert call(client, b"fits", room=4) == (0, b"stif") and call(client, b"", room=0) == (0, b"")
    ends(helper)
    # Nobody answers in time. The late answer is dropped, and its slot is free after that.
    late = []
    for _ in range(4):
        with fails(errno.ETIMEDOUT):
            # Long enough for the request to arrive, although the link is lost meanwhile.
            call(client, b"slow", timeout=1500)
        late.append(wait_one(server))
    with fails(errno.EAGAIN):
        call(client, b"no slot", flags=F_NOWAIT)
    os.set_blocking(client, False)
    with fails(errno.EAGAIN):
        call(client, b"no slot")
    os.set_blocking(client, True)
    for request in late:
        write(server, b"late", kind=REPLY, id=request.id)
    write(server, b"next", tag=77)
    assert wait_one(client).tag == 77
    helper = child(answers, server, 1)
    assert call(client, b"again") == (0, b"niaga")
    ends(helper)
    wrong_calls(client, server)
    interrupted_calls(client, server)
    # The other end closes: one request was read, the other one was not.
    read_one = child(expect_error, errno.ECONNRESET, client, b"read", server)
    wait_one(server)
    unread = child(expect_error, errno.ECANCELED, client, b"not read", server)
    ready(server, select.POLLIN)
    os.close(server)
    ends(read_one)
    ends(unread)
    with fails(errno.EPIPE):
        call(client, b"closed")
    # This end closes: no reply can come any more.
    _, client, server = pair(name="shuts")
    waits = child(expect_error, errno.ECONNABORTED, client, b"waits", server)
    request = wait_one(server)
    with fails(errno.EINVAL):
        write(server, b"", kind=REPLY, id=request.id, timeout=1000)
    fcntl.ioctl(client, SHUTDOWN)
    ends(waits)
    # A reply that a command has got and not copied counts as taken, the messages around it do not.
    _, client, server = pair(name="held", portal_options=opts(calls=4))
    ring = Ring(Ring.SINGLE_ISSUER | Ring.DEFER_TASKRUN)
    ring.ask(client, 1, b"held")
    request = wait_one(server)
    write(server, b"before", tag=1, flags=F_RECEIPT)
    write(server, b"reply", kind=REPLY, id=request.id)
    write(server, b"after", tag=2)
    waiting = [wait_one(server)]
    assert (waiting[0].kind, waiting[0].status) == (RECEIPT, 0)
    while info(server)["send_queued"]:
        time.sleep(0.01)
    fcntl.ioctl(client, SHUTDOWN)
    closed = wait_one(server)
    assert (closed.event, closed.tag, closed.id) == (CLOSED, 0, 3), closed
    assert ring.wait() == (1, 0, 0, b"reply")
    ring.close()


def expect_error(number: int, fd: int, body: bytes, other: int) -> None:
    os.close(other)
    with fails(number):
        call(fd, body)


def wrong_calls(client: int, server: int) -> None:
    """What is no call, and programs that give wrong addresses."""
    room = ctypes.create_string_buffer(64)
    good = ctypes.addressof(room)
    for number, how in ((errno.EINVAL, {"flags": 1}), (errno.EMSGSIZE, {"length": MAX + 1}), (errno.EFAULT, {"request": 8}),
                        (errno.EFAULT, {"request": (1 << 64) - 8})):
        with fails(number):
            fcntl.ioctl(client, CALL, call_args(**{"request": good, "reply": good, "length": 9, "room": 64, **how}))
    short = call_args(good, good, 9, 64)
    short[0] = 44
    with fails(errno.EINVAL):
        fcntl.ioctl(client, CALL, short)
    helper = child(answers, server, 2)
    with fails(errno.EFAULT):
        fcntl.ioctl(client, CALL, call_args(good, 8, 9, 64))
    assert call(client, b"abc") == (0, b"cba")
    ends(helper)
    context = device()
    with fails(errno.ENOTTY):
        fcntl.ioctl(context, CALL, call_args(good, good, 9, 64))
    os.close(context)


def interrupted_calls(client: int, server: int) -> None:
    """A signal, and SIGKILL, end a call at once; it is not made again, and its answer is dropped."""
    def interrupted() -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        # SA_RESTART changes nothing.
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        # Python makes a system call again that says EINTR; the C library does not.
        libc = ctypes.CDLL(None, use_errno=True)
        request = ctypes.create_string_buffer(b"wait")
        args = call_args(ctypes.addressof(request), ctypes.addressof(request), 4, 4)
        found = libc.ioctl(client, ctypes.c_ulong(CALL), (ctypes.c_char * len(args)).from_buffer(args))
        assert (found, ctypes.get_errno()) == (-1, errno.EINTR)

    ends(child(interrupted))
    request = wait_one(server)
    write(server, b"nobody waits", kind=REPLY, id=request.id)
    killed_one = child(call, client, b"killed")
    request = wait_one(server)
    os.kill(killed_one, signal.SIGKILL)
    assert os.waitpid(killed_one, 0)[1] == signal.SIGKILL
    write(server, b"nobody waits", kind=REPLY, id=request.id)
    answers_again(client, server, 40)
    assert info(client)["next_len"] == 0, "no reply is left for readers"


class Ring:
    """An io_uring, as small as can be: one entry is submitted at a time."""
    SETUP, ENTER, URING_CMD, ENTRIES = 425, 426, 46, 128
    SQPOLL, SINGLE_ISSUER, DEFER_TASKRUN, ASYNC = 1 << 1, 1 << 12, 1 << 13, 1 << 4
    GETEVENTS, SQ_WAKEUP = 1, 2

    def __init__(self, flags=0):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.flags = flags
        params = (ctypes.c_uint32 * 30)()
        params[2], params[4] = flags, 1000
        self.fd = self.call(self.SETUP, self.ENTRIES, params)
        self.sq, self.cq = list(params[10:17]), list(params[20:26])
        rings = max(self.sq[6] + 4 * params[0], self.cq[5] + 16 * params[1])
        self.ring = mmap.mmap(self.fd, rings, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self.entries = mmap.mmap(self.fd, 64 * params[0], mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0x10000000)
        # In one access each, as the kernel looks at them at any time.
        self.words = memoryview(self.ring).cast("I")
        self.calls = {}

    def call(self, number: int, *args) -> int:
        found = self.libc.syscall(number, *args)
        if found < 0:
            raise OSError(ctypes.get_errno(), "io_uring")
        return found

    def word(self, at: int) -> int:
        return self.words[at // 4]

    def submit(self, fd: int, op: int, address: int, key: int, flags=0) -> None:
        tail = self.word(self.sq[1])
        at = tail & self.word(self.sq[2])
        self.entries[64 * at:64 * at + 64] = struct.pack("=BBHiIIQIIQHHI16x", self.URING_CMD, flags, 0, fd, op, 0, address, 0, 0,
                                                         key, 0, 0, 0)
        self.words[self.sq[6] // 4 + at] = at
        self.words[self.sq[1] // 4] = (tail + 1) & 0xFFFFFFFF
        self.call(self.ENTER, self.fd, 1, 0, self.SQ_WAKEUP if self.flags & self.SQPOLL else 0, 0, 0)

    def ask(self, fd: int, key: int, body=b"", room=1 << 12, entry=0, **how) -> None:
        """Makes a call."""
        request, reply = ctypes.create_string_buffer(body, len(body) + 1), ctypes.create_string_buffer(max(room, 1))
        args = call_args(ctypes.addressof(request), ctypes.addressof(reply), len(body), room, **how)
        place = (ctypes.c_char * len(args)).from_buffer(args)
        self.calls[key] = (request, reply, args, place)
        self.submit(fd, CALL, ctypes.addressof(place), key, entry)

    def wait(self) -> tuple[int, int, int, bytes]:
        """Key and result of the next one that is complete, and status and content of the reply."""
        head = self.word(self.cq[0])
        while head == self.word(self.cq[1]):
            self.call(self.ENTER, self.fd, 0, 1, self.GETEVENTS, 0, 0)
        key, result = struct.unpack_from("=Qi", self.ring, self.cq[5] + 16 * (head & self.word(self.cq[2])))
        self.words[self.cq[0] // 4] = (head + 1) & 0xFFFFFFFF
        if key not in self.calls:
            return key, result, 0, b""
        _, reply, args, _ = self.calls.pop(key)
        length, _, status = struct.unpack_from("=2Ii", args, 28)
        return key, result, status, reply.raw[:length]

    def is_empty(self) -> bool:
        return self.word(self.cq[0]) == self.word(self.cq[1])

    def close(self) -> None:
        self.words.release()
        self.ring.close()
        self.entries.close()
        os.close(self.fd)


def ring_calls() -> None:
    """Calls as commands of io_uring."""
    _, client, server = pair(options=opts(recv_msgs=64), portal_options=opts(calls=8))
    for flags, entry in ((0, 0), (0, Ring.ASYNC), (Ring.SQPOLL, 0), (Ring.SINGLE_ISSUER | Ring.DEFER_TASKRUN, 0)):
        ring = Ring(flags)
        helper = child(answers, server, 250)
        for number in range(50):
            body = body_of(number, number * 30)
            ring.ask(client, number, body, tag=number, entry=entry)
            assert ring.wait() == (number, 0, number, body[::-1])
        # Many at a time, more than the other program takes.
        waiting = set()
        for number in range(200):
            ring.ask(client, number, body_of(number, 16), tag=number, entry=entry)
            waiting.add(number)
            while len(waiting) > 40 or (number == 199 and waiting):
                key, result, status, content = ring.wait()
                assert (result, status, content) == (0, key, body_of(key, 16)[::-1]), (key, result, status, content)
                waiting.remove(key)
        ends(helper)
        ring.close()
    ring = Ring()
    wrong_commands(ring, client, server)
    # Nobody answers in time.
    ring.ask(client, 1, b"slow", timeout=1500)
    assert ring.wait()[:2] == (1, -errno.ETIMEDOUT)
    write(server, b"", kind=REPLY, id=wait_one(server).id)
    # The ring goes with calls that wait, and with some that wait for room.
    for number in range(20):
        ring.ask(client, number, b"left")
    ring.close()
    left = 0
    while poll(server, 300) & select.POLLIN:
        for request in read(server):
            left += 1
            write(server, b"nobody", kind=REPLY, id=request.id)
    # Those that were not sent yet are not sent any more.
    assert left <= 20, left
    # So does the program, by SIGKILL and by itself.
    for how in (lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(0), lambda: None):
        pid = child(leave_calls, client, how)
        time.sleep(1)
        began = time.monotonic()
        os.waitpid(pid, 0)
        assert time.monotonic() - began < 20
    # What they have left is answered as well.
    answers_again(client, server, 20)
    # The file is closed while a call waits: the command keeps it.
    _, client, server = pair(name="kept", portal_options=opts(calls=8))
    ring = Ring()
    ring.ask(client, 7, b"kept")
    os.close(client)
    request = wait_one(server)
    assert request.body == b"kept" and not poll(server) & select.POLLHUP
    write(server, b"answer", kind=REPLY, id=request.id)
    assert ring.wait() == (7, 0, 0, b"answer")
    ring.close()
    assert wait_one(server).event == CLOSED
    # The other end closes: one request was read, the other one was not.
    _, client, server = pair(name="closes", portal_options=opts(calls=8))
    ring = Ring()
    ring.ask(client, 1, b"read")
    wait_one(server)
    ring.ask(client, 2, b"not read")
    ready(server, select.POLLIN)
    os.close(server)
    assert dict(ring.wait()[:2] for _ in range(2)) == {1: -errno.ECONNRESET, 2: -errno.ECANCELED}
    ring.ask(client, 3)
    assert ring.wait()[:2] == (3, -errno.EPIPE)


def wrong_commands(ring: Ring, client: int, server: int) -> None:
    """What is no command, and programs that give wrong addresses."""
    for op, address, number in ((CALL, 8, errno.EFAULT), (CALL, (1 << 64) - 8, errno.EFAULT), (INFO, 0, errno.ENOTTY), (7, 0, errno.ENOTTY)):
        ring.submit(client, op, address, 1)
        assert ring.wait()[:2] == (1, -number)
    context = device()
    ring.submit(context, CALL, 0, 1)
    assert ring.wait()[:2] == (1, -errno.EOPNOTSUPP)
    os.close(context)
    for how in ({"flags": 1}, {"flags": 0x80}):
        ring.ask(client, 2, b"", **how)
        assert ring.wait()[:2] == (2, -errno.EINVAL)
    helper = child(answers, server, 2)
    ring.ask(client, 3, b"long", room=2)
    assert ring.wait()[:2] == (3, -errno.EMSGSIZE)
    # The structure has gone when the reply arrives.
    room = mmap.mmap(-1, mmap.PAGESIZE)
    place = (ctypes.c_char * mmap.PAGESIZE).from_buffer(room)
    address = ctypes.addressof(place)
    room[:48] = bytes(call_args(address + 100, address + 200, 5, 100))
    ring.submit(client, CALL, address, 4)
    del place
    room.close()
    assert ring.wait()[:2] in ((4, -errno.EFAULT), (4, 0))
    ends(helper)
    for number in range(8):
        ring.ask(client, number, b"all slots")
    requests = [wait_one(server) for _ in range(8)]
    ring.ask(client, 9, b"no slot", flags=F_NOWAIT)
    assert ring.wait()[:2] == (9, -errno.EAGAIN)
    os.set_blocking(client, False)
    ring.ask(client, 9, b"no slot")
    assert ring.wait()[:2] == (9, -errno.EAGAIN)
    os.set_blocking(client, True)
    for request in requests:
        write(server, b"ok", kind=REPLY, id=request.id)
    assert sorted(ring.wait()[0] for _ in requests) == list(range(8)) and ring.is_empty()


def leave_calls(client: int, how) -> None:
    ring = Ring()
    for number in range(4):
        ring.ask(client, number, b"left")
    time.sleep(0.2)
    how()


def shutdown() -> None:
    """A program closes its end and waits until all is queued."""
    _, client, server = pair()
    for tag in range(100):
        write(client, bytes(1000), tag=tag)
    write(server, b"never read")
    # As a call with two arguments, which has anything in the place of the third.
    fcntl.ioctl(client, SHUTDOWN, 1)
    with fails(errno.EPIPE):
        write(client, b"x")
    last = wait_one(client)
    assert (last.event, last.status, last.id) == (CLOSED, 0, 100), last
    assert os.read(client, 1000) == b""
    tags = []
    while len(tags) < 101:
        tags += [message.tag if message.kind == MSG else -1 for message in read(server)]
    assert tags == [*range(100), -1], tags
    with fails(errno.EPIPE):
        write(server, b"x")


def shared() -> None:
    """Two processes have one end; files are passed on; execve closes them."""
    portal, client, server = pair()
    results = [os.pipe() for _ in range(2)]

    def reader(out: int) -> None:
        os.close(client)
        while messages := read(server, 100):
            for message in messages:
                if message.kind == MSG:
                    os.write(out, struct.pack("=Q", message.tag))

    pids = [child(reader, out) for _, out in results]
    os.close(server)
    for tag in range(500):
        write(client, b"x", tag=tag)
    time.sleep(1)
    os.close(client)
    # One of them reads the end; the other one sees it by its result of 0.
    for pid in pids:
        deadline = time.monotonic() + 60
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline, "a reader waits for ever"
            time.sleep(0.05)
    tags = []
    for source, out in results:
        os.close(out)
        with open(source, "rb") as file:
            tags += struct.iter_unpack("=Q", file.read())
    assert sorted(tag for (tag,) in tags) == list(range(500))
    # A file is passed on; the channel lives as long as anybody has it.
    _, client, server = pair(name="passed")
    left, right = socket.socketpair()
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [server]))])
    os.close(server)
    write(client, b"still there")
    _, ancillary, _, _ = right.recvmsg(1, socket.CMSG_SPACE(4))
    passed = array.array("i", ancillary[0][2])[0]
    assert wait_one(passed).body == b"still there"
    os.close(passed)
    assert wait_one(client).event == CLOSED
    # One that is never received.
    _, client, server = pair(name="flight")
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [server]))])
    os.close(server)
    left.close()
    right.close()
    assert wait_one(client).event == CLOSED
    # execve.
    _, client, server = pair(name="exec")

    def becomes() -> None:
        # The files are closed then; this process keeps the other end.
        os.execvp("sleep", ["sleep", "30"])

    pid = child(becomes)
    os.close(server)
    assert wait_one(client).event == CLOSED
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(portal)


def waiting() -> None:
    """Calls that wait end by signals, and when there is something."""
    _, client, server = pair(options=opts(send_msgs=1), portal_options=opts(recv_msgs=1))

    class Alarm(Exception):
        pass

    def alarm(*_) -> None:
        raise Alarm

    signal.signal(signal.SIGALRM, alarm)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with contextlib.suppress(Alarm):
        os.read(client, 100)
        raise AssertionError
    write(client, b"1")
    write(client, b"2")
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with contextlib.suppress(Alarm):
        write(client, b"3")
        raise AssertionError
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    bind_only = bind("silent")
    with contextlib.suppress(Alarm):
        connect("silent")
        raise AssertionError
    deadline = time.monotonic() + 20
    while info(bind_only)["state"]:
        assert time.monotonic() < deadline, "the offer was not withdrawn"
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with contextlib.suppress(Alarm):
        os.read(bind_only, 1000)
        raise AssertionError
    pid = child(write, client, b"3")
    assert [wait_one(server).body for _ in range(3)] == [b"1", b"2", b"3"]
    ends(pid)


def long_read() -> None:
    """A read that always finds another message: tasks behind it, and a signal."""
    _, client, server = pair()

    def writer() -> None:
        os.close(server)
        with contextlib.suppress(BrokenPipeError):
            while True:
                write(client, b"x")

    def reader() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        # MAP_NORESERVE: a small guest has less memory, and only a part is used.
        room = mmap.mmap(-1, 1 << 28, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        assert os.readv(server, [room]) > 0

    class Alarm(Exception):
        pass

    def alarm(*_) -> None:
        raise Alarm

    pids = [child(writer), child(reader)]
    time.sleep(0.5)
    # The reader is inside of its read, whatever the file's flags are now.
    begin = time.monotonic()
    fcntl.fcntl(server, fcntl.F_SETFL, os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        os.read(server, 100)
    fcntl.fcntl(server, fcntl.F_SETFL, 0)
    assert time.monotonic() - begin < 5, "a read that must not wait has waited"
    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with contextlib.suppress(Alarm):
        while time.monotonic() - begin < 10:
            os.read(server, 100)
        raise AssertionError("a signal did not end a read")
    os.kill(pids[1], signal.SIGUSR1)
    deadline = time.monotonic() + 10
    while (found := os.waitpid(pids[1], os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline, "a signal did not end a long read"
        time.sleep(0.05)
    assert found[1] == 0
    os.close(client)
    os.close(server)
    ends(pids[0])


def counted(rounds="60") -> None:
    """One task shuts down while another one reads: the peer is told exactly what was read."""
    chance = random.Random(7)
    for _ in range(int(rounds)):
        portal, client, server = pair(options=opts(send_bytes=1 << 22), portal_options=opts(recv_bytes=1 << 22))
        for tag in range(32):
            write(client, bytes(MAX), tag=tag)
        source, out = os.pipe()

        def reader() -> None:
            os.close(client)
            tags = []
            while messages := read(server, MAX + 32):
                tags += [message.tag for message in messages if message.kind == MSG]
            os.write(out, struct.pack("=Q", len(tags)))

        pid = child(reader)
        time.sleep(chance.random() * 0.02)
        fcntl.ioctl(server, SHUTDOWN)
        while (last := wait_one(client)).event != CLOSED:
            pass
        os.close(client)
        ends(pid)
        (count,) = struct.unpack("=Q", os.read(source, 8))
        assert last.tag == count, (last, count)
        for fd in (portal, server, source, out):
            os.close(fd)


def given_back() -> None:
    """An offer that a process has read and not answered, when it dies: another one reads it."""
    portal = bind("given")
    asking = connect("given", flags=NONBLOCK)
    source, out = os.pipe()

    def taker() -> None:
        (offer,) = read(portal)
        os.write(out, struct.pack("=Q", offer.id))
        os.kill(os.getpid(), signal.SIGKILL)

    pid = child(taker)
    os.waitpid(pid, 0)
    (number,) = struct.unpack("=Q", os.read(source, 8))
    ready(portal, select.POLLIN, 20)
    (offer,) = read(portal)
    assert offer.id == number and not poll(portal) & select.POLLIN
    # Closing one's own descriptor does the same.
    other = os.dup(portal)
    os.close(other)
    assert poll(portal) & select.POLLIN
    assert [again.id for again in read(portal)] == [number]
    server = accept(portal, offer.id)
    assert one(asking).event == CONNECTED
    write(server, b"x")
    assert wait_one(asking).body == b"x"


def killed(rounds="40") -> None:
    """kill -9 at any step: the other one learns, and nothing is left."""
    chance = random.Random(5)
    portal = bind("killed")
    for turn in range(int(rounds)):
        def victim() -> None:
            fd = connect("killed", data=b"x")
            number = 0
            while True:
                write(fd, bytes(number % 5000), tag=number, kind=REQUEST if number % 7 == 0 else MSG,
                      flags=F_RECEIPT if number % 7 == 1 else 0)
                number += 1
                if number % 10 == 0:
                    read(fd)

        pid = child(victim)
        if turn % 4 == 0:
            time.sleep(chance.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            continue
        poller = select.poll()
        poller.register(portal, select.POLLIN)
        poller.poll(10_000)
        fds = []
        for offer in read(portal):
            with contextlib.suppress(FileNotFoundError):
                fds.append(accept(portal, offer.id))
        time.sleep(chance.random() * 0.2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in fds:
            expected = 0
            while data := os.read(fd, 1 << 17):
                for message in split(data):
                    if message.kind in (MSG, REQUEST):
                        assert message.tag == expected, (message, expected)
                        expected += 1
                    else:
                        assert message.event == CLOSED, message
            os.close(fd)
    os.close(portal)


def limits() -> None:
    """What a user may have is bounded."""
    portal = bind("limits")
    with fails(errno.EDQUOT):
        connect("limits", flags=NONBLOCK, options=opts(recv_bytes=1 << 30, send_bytes=1 << 26))
    for options in (opts(recv_msgs=65537), opts(recv_bytes=(1 << 30) + 1), opts(recv_bytes=100), opts(max_message=MAX + 1),
                    opts(calls=4097), opts(send_msgs=4097), opts(send_bytes=(1 << 30) + 1), opts(events=8)):
        with fails(errno.EINVAL):
            connect("limits", flags=NONBLOCK, options=options)
    for name in ("", "-x", ".x", "a b", "a/b", "\x01"):
        with fails(errno.EINVAL):
            bind(name)
    os.close(bind("x" * 64))
    context = device()
    for size, number in ((0, errno.EINVAL), (111, errno.EINVAL), (5000, errno.E2BIG)):
        data = bytearray(struct.pack("=4I32s64s", size, 0, 0, 0, opts(), b"size"))
        with fails(number):
            fcntl.ioctl(context, BIND, data)
    data = bytearray(struct.pack("=4I32s64s", 120, 0, 0, 0, opts(), b"size") + bytes(8))
    os.close(fcntl.ioctl(context, BIND, data))
    data[-1] = 1
    with fails(errno.E2BIG):
        fcntl.ioctl(context, BIND, data)
    with fails(errno.ENOTTY):
        fcntl.ioctl(context, ACCEPT, data)
    with fails(errno.ENOTTY):
        fcntl.ioctl(portal, CONNECT, data)
    for file in (context, portal):
        with fails(errno.EINVAL):
            os.write(file, b"x" * 100)
    assert info(context)["kind"] == 1 and info(portal)["kind"] == 2
    os.close(portal)
    _, client, server = pair(name="limits")
    write(client, b"x")
    assert wait_one(server).body == b"x"


def many(count="1000") -> None:
    """Many channels at once."""
    small = opts(recv_bytes=4160, max_message=4096, recv_msgs=4, send_bytes=4160, send_msgs=4)
    portal = bind("many", backlog=4096, options=small)
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * int(count) + 100,) * 2)
    clients = [connect("many", flags=NONBLOCK, options=small) for _ in range(int(count))]
    servers = {}
    while len(servers) < len(clients):
        for offer in read(portal):
            fd = accept(portal, offer.id, flags=NONBLOCK)
            servers[info(fd)["channel"]] = fd
    for fd in clients:
        assert wait_one(fd).event == CONNECTED
    for number, fd in enumerate(clients):
        write(fd, body_of(number, number % 4096), tag=number)
    for number, fd in enumerate(clients):
        message = wait_one(servers[info(fd)["channel"]])
        assert message.tag == number and message.body == body_of(number, number % 4096)
    for fd in clients:
        os.close(fd)
    for fd in servers.values():
        assert wait_one(fd).event == CLOSED
        os.close(fd)


def paths() -> None:
    """With a link that is lost again and again: events, and calls that are executed once."""
    _, client, server = pair(options=opts(events=1))
    events, done = [], 0
    for tag in range(400):
        write(client, bytes(tag * 10), kind=REQUEST, tag=tag)
        request = wait_one(server)
        assert (request.kind, request.tag) == (REQUEST, tag), request
        write(server, b"", kind=REPLY, id=request.id)
        while done <= tag:
            message = wait_one(client)
            if message.kind == EVENT:
                events.append(message.event)
            else:
                assert (message.kind, message.tag, message.flags) == (REPLY, tag, 0), message
                done += 1
    assert events and all(event == (PATH_LOST, PATH_BACK)[at % 2] for at, event in enumerate(events)), events
    assert info(client)["moves"] >= len(events) // 2


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
