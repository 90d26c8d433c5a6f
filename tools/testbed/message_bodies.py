# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest, beside messages.py and message_memory.py: messages whose body stays with the program that sends it.

    python3 message_bodies.py CASE [ARGUMENT...]"""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import signal
import struct
import sys
import time

import messages
from message_memory import (MEM_BODY, MEM_GET, PAGE, PIECE, at, copy, get, hear, map_memory, pattern, pinned, tell, unmap, until)
from messages import F_BODY, F_NOWAIT, F_RECEIPT, GET, MSG, RECEIPT, RELEASE, REPLY, REQUEST

PLACE = struct.Struct("=3Q")
MOST = 64
# No more messages with bodies follow.
LAST = b"last"


def lend(fd: int, memory, start: int, length: int, rest: bytes = b"", flags=0, **how) -> int:
    """Sends a message whose body is this part of the memory; its handle."""
    address = at(memory) + start
    handle = map_memory(fd, address, length, flags=MEM_BODY, offset=address % PAGE)
    messages.write(fd, PLACE.pack(handle, address % PAGE, length) + rest, flags=F_BODY | flags, **how)
    return handle


def place_of(message) -> tuple[int, int, int]:
    assert message.kind in (MSG, REQUEST) and message.flags == F_BODY, message
    return PLACE.unpack_from(message.body)


def release(fd: int, handle: int, flags=0) -> None:
    assert fcntl.ioctl(fd, RELEASE, messages.sized(struct.pack("=IQ", flags, handle))) == 0


def receipt(fd: int) -> tuple[int, int, int]:
    """Tag and status of a receipt, and whether it is that of a body."""
    message = messages.wait_one(fd)
    assert message.kind == RECEIPT, message
    return message.tag, message.status, message.flags


def accepted(name: str, **terms) -> int:
    """A channel to a portal whose program takes messages with a body."""
    portal = messages.bind(name, flags=messages.UNAUTHENTICATED, options=messages.opts(events=messages.WANT_BODIES, **terms))
    print("bound", flush=True)
    messages.ready(portal, messages.select.POLLIN)
    (offer,) = messages.read(portal)
    return messages.accept(portal, offer.id)


# --- a stream of them ---

LENGTHS = (1, 100, PAGE - 1, PAGE, PAGE + 1, 70000, (1 << 20) + 1, PIECE + 4097)


def lender(session: str, name: str, seconds="5", depth="8") -> None:
    """Sends messages with bodies, several at a time, until the time is over. A body is changed when its receipt is there."""
    fd, end = messages.connect(name, session=session), time.monotonic() + float(seconds)
    choose, number, lent = random.Random(3), 0, {}
    # Receipts of messages, and replies: the receipt of a body is read before a reply that came before it.
    owed = set()
    spare, is_last = [mmap.mmap(-1, max(LENGTHS) + PAGE) for _ in range(int(depth))], False
    while lent or owed or time.monotonic() < end:
        while spare and time.monotonic() < end:
            memory, length, start = spare.pop(), choose.choice(LENGTHS), choose.randrange(PAGE)
            number += 1
            memory[start:start + length] = pattern(number, length)
            kind = choose.choice((MSG, REQUEST))
            flags = choose.choice((0, F_RECEIPT)) if kind == MSG else 0
            # A long one travels in pieces.
            lend(fd, memory, start, length, bytes(choose.choice((0, 7, 20000))), tag=number, kind=kind, flags=flags)
            lent[number] = (memory, start, length)
            if flags or kind == REQUEST:
                owed.add((RECEIPT if flags else REPLY, number))
        if time.monotonic() >= end and not is_last:
            is_last = True
            messages.write(fd, LAST)
        message = messages.wait_one(fd)
        assert message.kind in (RECEIPT, REPLY) and message.status == 0, message
        if message.flags & F_BODY:
            memory, start, length = lent.pop(message.tag)
            memory[start:start + length] = bytes(length)
            spare.append(memory)
        else:
            owed.remove((message.kind, message.tag))
    until(lambda: pinned() == 0)
    print(f"number={number} moves={messages.info(fd)['moves']}", flush=True)
    messages.write(fd)
    assert messages.wait_one(fd).event == messages.CLOSED


def release_some(fd: int, messages_held: list, keep: int) -> None:
    """Gets all of bodies, or a part of them, and releases them, in any order; some are kept for later."""
    while len(messages_held) > keep:
        held = messages_held.pop(random.randrange(len(messages_held)))
        handle, offset, length = place_of(held)
        first = random.choice((0, length // 3))
        found = get(fd, handle, offset + first, length - first)
        assert found == pattern(held.tag, length)[first:], (held.tag, first, length)
        if held.kind == REQUEST:
            messages.write(fd, kind=REPLY, id=held.id)
        release(fd, handle)
        with messages.fails(errno.ESTALE):
            release(fd, handle)


def borrower(name: str) -> None:
    """Takes messages with bodies, until one without content."""
    fd, choose, later, heard = accepted(name), random.Random(4), [], 0
    while True:
        message = messages.wait_one(fd)
        if not message.body:
            break
        if message.body == LAST:
            release_some(fd, later, 0)
            continue
        heard += 1
        assert message.tag == heard, (message, heard)
        later.append(message)
        release_some(fd, later, choose.randrange(4))
    print(f"heard={heard} moves={messages.info(fd)['moves']}", flush=True)


# --- what is refused, and how bodies end ---


def strict_borrower(name: str) -> None:
    """The other end of `strict_lender`."""
    fd = accepted(name, recv_msgs=4)
    # A handle of which no message has told is of no use; nor is that of a body for PUT.
    (handle,) = hear(fd)
    with messages.fails(errno.EACCES):
        get(fd, handle, 0, 1)
    with messages.fails(errno.ESTALE):
        release(fd, handle)
    tell(fd, 0)
    message = messages.wait_one(fd)
    handle, offset, length = place_of(message)
    assert (message.tag, message.body[PLACE.size:]) == (5, b"rest")
    buffer = mmap.mmap(-1, PAGE)
    with messages.fails(errno.EACCES):
        copy(fd, messages.PUT, handle, offset, at(buffer), 1)
    with messages.fails(errno.ERANGE):
        get(fd, handle, offset, length + 1)
    assert get(fd, handle, offset, length) == pattern(5, length)
    for wrong in (handle + 1, handle + (1 << 16), 1, 0):
        with messages.fails(errno.ESTALE):
            release(fd, wrong)
    release(fd, handle, F_NOWAIT)
    # One that is taken back: it has its place until it is released.
    handle, offset, length = place_of(messages.wait_one(fd))
    assert get(fd, handle, offset, length) == pattern(6, length)
    tell(fd, 6)
    hear(fd)
    with messages.fails(errno.ESTALE):
        get(fd, handle, offset, 1)
    release(fd, handle)
    tell(fd, 7)
    # As many as there may be.
    held = [place_of(messages.wait_one(fd))[0] for _ in range(MOST)]
    hear(fd)
    for handle in held:
        release(fd, handle)
    # Those that nobody takes: the last one has no credit.
    hear(fd)
    time.sleep(1)
    for tag in range(100, 104):
        message = messages.wait_one(fd)
        assert message.tag == tag, message
        release(fd, place_of(message)[0])
    # The end, with one that is not released, and one that was not taken.
    place_of(messages.wait_one(fd))
    tell(fd, 1)
    while messages.info(fd)["recv_queued"] == 0:
        time.sleep(0.01)
    os.close(fd)
    print("done", flush=True)


def strict_lender(session: str, name: str) -> None:
    fd, memory = messages.connect(name, session=session), mmap.mmap(-1, 32 * PAGE)
    where, length = at(memory), PAGE + 11
    with messages.fails(errno.EINVAL):
        map_memory(fd, where, PAGE, flags=MEM_BODY | MEM_GET)
    handle = map_memory(fd, where, PAGE, flags=MEM_BODY)
    tell(fd, handle)
    hear(fd)

    def wrong(number: int, content: bytes, **how) -> None:
        with messages.fails(number):
            messages.write(fd, content, flags=F_BODY, **how)

    wrong(errno.EINVAL, bytes(PLACE.size - 1))
    wrong(errno.EINVAL, PLACE.pack(handle, 0, 0))
    wrong(errno.EINVAL, PLACE.pack(handle, (1 << 64) - 1, 2))
    wrong(errno.EINVAL, PLACE.pack(5, 0, PAGE))
    wrong(errno.EINVAL, PLACE.pack(handle, 0, PAGE), kind=REPLY, id=1)
    wrong(errno.ESTALE, PLACE.pack(handle + (1 << 16), 0, PAGE))
    wrong(errno.ESTALE, PLACE.pack(handle | 0xffff, 0, PAGE))
    for place in ((1, PAGE - 1), (0, PAGE - 1), (0, PAGE + 1), (PAGE, PAGE)):
        wrong(errno.ERANGE, PLACE.pack(handle, *place))
    for_gets = map_memory(fd, where, PAGE, flags=MEM_GET)
    wrong(errno.EACCES, PLACE.pack(for_gets, 0, PAGE))
    unmap(fd, for_gets)
    unmap(fd, handle)
    wrong(errno.ESTALE, PLACE.pack(handle, 0, PAGE))
    # Errors leave nothing behind: what is queued next is what comes.
    memory[7:7 + length] = pattern(5, length)
    handle = lend(fd, memory, 7, length, b"rest", tag=5, flags=F_RECEIPT)
    wrong(errno.EACCES, PLACE.pack(handle, (where + 7) % PAGE, length))
    assert receipt(fd) == (5, 0, 0)
    assert receipt(fd) == (5, 0, F_BODY)
    with messages.fails(errno.ESTALE):
        unmap(fd, handle)
    # One is taken back.
    memory[:PAGE] = pattern(6, PAGE)
    handle = lend(fd, memory, 0, PAGE, tag=6)
    hear(fd)
    unmap(fd, handle)
    assert receipt(fd) == (6, errno.ESTALE, F_BODY)
    until(lambda: pinned() == 0)
    others = [map_memory(fd, where, PAGE, flags=MEM_BODY) for _ in range(MOST - 1)]
    with messages.fails(errno.ENOBUFS):
        map_memory(fd, where, PAGE, flags=MEM_BODY)
    tell(fd, 6)
    hear(fd)
    others.append(map_memory(fd, where, PAGE, flags=MEM_BODY))
    # As many as there may be, each of the same memory.
    for tag, handle in enumerate(others):
        messages.write(fd, PLACE.pack(handle, 0, PAGE), flags=F_BODY, tag=tag)
    with messages.fails(errno.ENOBUFS):
        map_memory(fd, where, PAGE, flags=MEM_BODY)
    tell(fd, 0)
    assert [receipt(fd) for _ in range(MOST)] == [(tag, 0, F_BODY) for tag in range(MOST)]
    # The other program takes four messages, and then none for a while.
    tell(fd, 0)
    until(lambda: messages.info(fd)["taken_msgs"] == messages.info(fd)["sent_msgs"])
    for tag in range(100, 105):
        lend(fd, memory, 0, PAGE, tag=tag, timeout=300)
    ends = sorted(receipt(fd) for _ in range(6))
    assert ends[-2:] == [(104, errno.ECANCELED, 0), (104, errno.ECANCELED, F_BODY)], ends
    assert ends[:4] == [(tag, 0, F_BODY) for tag in range(100, 104)], ends
    # The end of the channel comes after that of the bodies.
    lend(fd, memory, 0, PAGE, tag=200)
    hear(fd)
    lend(fd, memory, 0, PAGE, tag=201)
    ends = sorted(receipt(fd) for _ in range(2))
    assert ends[0] == (200, errno.ECONNRESET, F_BODY) and ends[1][0] == 201, ends
    assert ends[1][1] in (errno.ECANCELED, errno.ECONNRESET) and ends[1][2] == F_BODY, ends
    assert messages.wait_one(fd).event == messages.CLOSED
    until(lambda: pinned() == 0)
    print("done", flush=True)


def deaf_lender(session: str, name: str) -> None:
    """Reads no receipts: the kernel keeps as many as messages, and then takes no more bodies."""
    sends = 8
    fd, areas, is_full = messages.connect(name, session=session, options=messages.opts(send_msgs=sends)), [], False
    while not is_full:
        tag = len(areas) + 1
        assert tag <= 4 * MOST, "there is no end of receipts that are not read"
        areas.append(mmap.mmap(-1, PAGE))
        areas[-1][:] = pattern(tag, PAGE)
        handle, end = map_memory(fd, at(areas[-1]), PAGE, flags=MEM_BODY), time.monotonic() + 3
        while True:
            try:
                messages.write(fd, PLACE.pack(handle, 0, PAGE), flags=F_BODY | F_NOWAIT, tag=tag)
                break
            except BlockingIOError:
                # The queue may be full, too, but not for long.
                is_full = time.monotonic() > end
                if is_full:
                    break
                time.sleep(0.02)
    unmap(fd, handle)
    count = len(areas) - 1
    print(f"number={count}", flush=True)
    assert sends <= count <= sends + MOST, count
    assert not messages.poll(fd) & messages.select.POLLOUT
    # Other messages owe nothing.
    messages.write(fd, LAST)
    assert sorted(receipt(fd) for _ in range(count)) == [(tag, 0, F_BODY) for tag in range(1, count + 1)]
    areas[0][:] = pattern(count + 1, PAGE)
    lend(fd, areas[0], 0, PAGE, tag=count + 1)
    messages.write(fd, LAST)
    assert receipt(fd) == (count + 1, 0, F_BODY)
    until(lambda: pinned() == 0)
    messages.write(fd)
    assert messages.wait_one(fd).event == messages.CLOSED


def closer(name: str) -> None:
    """Gets a body, and closes its end; what it has written before must wait for the other program."""
    fd = accepted(name)
    handle, offset, length = place_of(messages.wait_one(fd))
    assert get(fd, handle, offset, length) == pattern(1, length)
    for _ in range(6):
        messages.write(fd, b"more")
    fcntl.ioctl(fd, messages.SHUTDOWN)
    assert messages.wait_one(fd).event == messages.CLOSED
    print("done", flush=True)


def late_unmapper(session: str, name: str) -> None:
    """Takes a body back that is out of reach already, as the other program takes no more, but has not been released."""
    fd, memory = messages.connect(name, session=session, options=messages.opts(recv_msgs=4)), mmap.mmap(-1, PAGE)
    memory[:] = pattern(1, PAGE)
    handle = lend(fd, memory, 0, PAGE, tag=1)
    until(lambda: messages.info(fd)["state"] == 3 and pinned() == 0)
    unmap(fd, handle)
    assert receipt(fd) == (1, errno.ESTALE, F_BODY)
    with messages.fails(errno.ESTALE):
        unmap(fd, handle)
    assert [messages.wait_one(fd).body for _ in range(6)] == [b"more"] * 6
    assert messages.wait_one(fd).event == messages.CLOSED
    print("done", flush=True)


def keeper(name: str) -> None:
    """Takes messages with bodies, and gets those for as long as it can; releases nothing."""
    fd, places, count = accepted(name), [], 0
    while len(places) < 4:
        places.append(place_of(messages.wait_one(fd)))
    with contextlib.suppress(OSError):
        while True:
            for handle, offset, length in places:
                buffer = mmap.mmap(-1, length)
                copy(fd, GET, handle, offset, at(buffer), length)
                assert buffer[:] == pattern(handle, length), handle
                count += 1
                if count == 8:
                    print("getting", flush=True)
    until(lambda: pinned() == 0)
    print(f"got={count}", flush=True)


def ender(session: str, name: str, how: str) -> None:
    """Sends messages with bodies, and ends in one of several ways: `kill`, `exec`, `close`, `shutdown`."""
    fd, length = messages.connect(name, session=session), PIECE
    areas = [mmap.mmap(-1, length) for _ in range(4)]
    for tag, area in enumerate(areas):
        handle = map_memory(fd, at(area), length, flags=MEM_BODY)
        area[:] = pattern(handle, length)
        messages.write(fd, PLACE.pack(handle, 0, length), flags=F_BODY, tag=tag)
    while not os.path.exists("/tmp/go"):
        time.sleep(0.01)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exec":
        os.execv("/bin/busybox", ["busybox", "sleep", "5"])
    if how == "close":
        os.close(fd)
        until(lambda: pinned() == 0)
    if how == "shutdown":
        fcntl.ioctl(fd, messages.SHUTDOWN)
        assert sorted(receipt(fd) for _ in areas) == [(tag, errno.ESTALE, F_BODY) for tag in range(len(areas))]
        assert messages.wait_one(fd).event == messages.CLOSED
    until(lambda: pinned() == 0)
    print("done", flush=True)


def plain(session: str, name: str) -> None:
    """The program at the portal takes no bodies."""
    fd, page = messages.connect(name, session=session), mmap.mmap(-1, PAGE)
    hear(fd)
    with messages.fails(errno.EOPNOTSUPP):
        map_memory(fd, at(page), PAGE, flags=MEM_BODY)
    with messages.fails(errno.EOPNOTSUPP):
        messages.write(fd, PLACE.pack(1 << 16, 0, PAGE), flags=F_BODY)
    with messages.fails(errno.ESTALE):
        release(fd, 1 << 16)
    handle = map_memory(fd, at(page), PAGE, flags=MEM_GET)
    with messages.fails(errno.EOPNOTSUPP):
        messages.write(fd, PLACE.pack(handle, 0, PAGE), flags=F_BODY)
    print("done", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
