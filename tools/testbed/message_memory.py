# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest, beside messages.py: programs of two machines that use each other's memory.

    python3 message_memory.py CASE [ARGUMENT...]"""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback

import messages
from messages import GET, MAP, PUT, UNMAP

MEM_GET, MEM_PUT, MEM_BODY = 1, 2, 4
PAGE = mmap.PAGESIZE
PIECE = 2 << 20


def at(buffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def map_memory(fd: int, address: int, length: int, flags=MEM_GET | MEM_PUT, offset=0) -> int:
    args = messages.sized(struct.pack("=I4Q", flags, address, length, offset, 0))
    assert fcntl.ioctl(fd, MAP, args) == 0
    return struct.unpack_from("=Q", args, 32)[0]


def unmap(fd: int, handle: int, flags=0) -> None:
    assert fcntl.ioctl(fd, UNMAP, messages.sized(struct.pack("=IQ", flags, handle))) == 0


def copy(fd: int, how: int, handle: int, offset: int, address: int, length: int, flags=0, timeout=0) -> None:
    args = messages.sized(struct.pack("=I4Q2I", flags, handle, offset, address, length, timeout, 0))
    assert fcntl.ioctl(fd, how, args) == 0


def put(fd: int, handle: int, offset: int, data: bytes, **how) -> None:
    buffer = mmap.mmap(-1, len(data) + PAGE)
    shift = random.randrange(PAGE)
    buffer[shift:shift + len(data)] = data
    copy(fd, PUT, handle, offset, at(buffer) + shift, len(data), **how)


def get(fd: int, handle: int, offset: int, length: int, **how) -> bytes:
    buffer = mmap.mmap(-1, length + PAGE)
    shift = random.randrange(PAGE)
    copy(fd, GET, handle, offset, at(buffer) + shift, length, **how)
    return buffer[shift:shift + length]


def pinned() -> int:
    """KiB that this program has pinned."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmPin"))


def until(what, seconds=20) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def pattern(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def accepted(name: str, **how) -> int:
    portal = messages.bind(name, flags=messages.UNAUTHENTICATED)
    print("bound", flush=True)
    messages.ready(portal, messages.select.POLLIN)
    (offer,) = messages.read(portal)
    return messages.accept(portal, offer.id, **how)


def tell(fd: int, *numbers: int) -> None:
    messages.write(fd, struct.pack(f"={len(numbers)}Q", *numbers))


def hear(fd: int) -> tuple[int, ...]:
    message = messages.wait_one(fd)
    assert message.kind == messages.MSG, message
    return struct.unpack(f"={len(message.body) // 8}Q", message.body)


# --- the cases: one program serves, the other one asks ---


def serve(name: str, size=str(3 * PIECE), offset="0") -> None:
    """Publishes memory, and checks what is put there when it is told to: start, length and seed; nothing ends it."""
    size, offset = int(size), int(offset)
    fd = accepted(name)
    memory = mmap.mmap(-1, size)
    before = pinned()
    handle = map_memory(fd, at(memory), size, offset=offset)
    assert pinned() - before == size // 1024, (before, pinned())
    tell(fd, handle)
    while True:
        told = hear(fd)
        if not told:
            break
        start, length, seed = told
        found = memory[start:start + length]
        assert found == pattern(seed, length), f"{start} {length}: not there at {next(i for i, (a, b) in enumerate(zip(found, pattern(seed, length))) if a != b)}"
        tell(fd, 0)
    unmap(fd, handle)
    until(lambda: pinned() == before)
    with messages.fails(errno.ESTALE):
        unmap(fd, handle)
    tell(fd, 1)
    assert messages.wait_one(fd).event == messages.CLOSED
    print("done", flush=True)


LENGTHS = (1, 8, 100, PAGE - 1, PAGE, PAGE + 1, 70000, 1 << 20, (1 << 20) + 1, PIECE - 1, PIECE, PIECE + 4097)


def ask(session: str, name: str, size=str(3 * PIECE), offset="0", rounds="40") -> None:
    size, offset = int(size), int(offset)
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    choose = random.Random(1)
    for round in range(int(rounds)):
        length = choose.choice([length for length in LENGTHS if length <= size])
        start = choose.randrange(size - length + 1)
        data = pattern(round, length)
        put(fd, handle, offset + start, data)
        tell(fd, start, length, round)
        assert hear(fd) == (0,)
        got = get(fd, handle, offset + start, length)
        assert got == data, (start, length)
    for start, length in ((size, 1), (size - 1, 2), (0, size + 1), (1 << 60, 8)):
        with messages.fails(errno.ERANGE):
            put(fd, handle, offset + start, bytes(min(length, 1 << 23)))
        with messages.fails(errno.ERANGE):
            get(fd, handle, offset + start, min(length, 1 << 23))
    with messages.fails(errno.ESTALE):
        put(fd, handle + (1 << 16), 0, b"x")
    with messages.fails(errno.ESTALE):
        get(fd, handle + 1, 0, 1)
    messages.write(fd)
    assert hear(fd) == (1,)
    for what in (lambda: put(fd, handle, offset, b"x"), lambda: get(fd, handle, offset, 1)):
        with messages.fails(errno.ESTALE):
            what()
    until(lambda: pinned() == 0)
    print("done", flush=True)


def ask_by_ring(session: str, name: str, size=str(3 * PIECE)) -> None:
    """GET and PUT as commands of io_uring, many at a time."""
    size = int(size)
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    block = size // 32
    memory = mmap.mmap(-1, size)
    for flags, entry in ((0, 0), (0, messages.Ring.ASYNC), (messages.Ring.SINGLE_ISSUER | messages.Ring.DEFER_TASKRUN, 0)):
        ring = messages.Ring(flags)
        data = pattern(flags + entry, size)
        kept = []

        def submit(how: int, key: int, offset: int, length: int, which=handle) -> None:
            args = messages.sized(struct.pack("=I4Q2I", 0, which, offset, at(memory) + offset % size, length, 0, 0))
            kept.append(args)
            ring.submit(fd, how, at(args), key, entry)

        def results(count: int) -> set[int]:
            found = [ring.wait()[:2] for _ in range(count)]
            assert {key for key, _ in found} == set(range(count))
            return {result for _, result in found}

        memory[:] = data
        for key in range(32):
            submit(PUT, key, key * block, block)
        assert results(32) == {0}
        tell(fd, 0, size, flags + entry)
        assert hear(fd) == (0,)
        memory[:] = bytes(size)
        for key in range(32):
            submit(GET, key, key * block, block)
        assert results(32) == {0} and memory[:] == data
        # Refused ones.
        submit(PUT, 0, 0, 1, handle + (1 << 16))
        submit(GET, 1, size, 1)
        submit(PUT, 2, 0, 0)
        assert results(3) == {-errno.ESTALE, -errno.ERANGE, -errno.EINVAL}
        # The ring goes with operations that are under way.
        for key in range(32):
            submit(chance_of(key), key, key * block, block)
        ring.close()
        until(lambda: pinned() == 0)
        tell(fd, 0, size, flags + entry)
        assert hear(fd) == (0,)
        memory[:] = bytes(size)
    messages.write(fd)
    assert hear(fd) == (1,)
    print("done", flush=True)


def chance_of(key: int) -> int:
    """The same data is put again, or is read."""
    return PUT if key % 2 else GET


# --- paths are lost ---

BLOCK = 4096


def ledger(name: str, blocks="2048", readers="1") -> None:
    """Publishes blocks, of which the other program writes some, and says so in a message: each is as it says then, and
    later ones are no older."""
    blocks = int(blocks)
    fd = accepted(name)
    memory = mmap.mmap(-1, blocks * BLOCK)
    handle = map_memory(fd, at(memory), blocks * BLOCK)
    tell(fd, handle)
    heard = 0
    while told := hear(fd):
        first, count, number = told
        assert number == heard + 1, (number, heard)
        heard = number
        for block in range(first, first + count):
            found = memory[block * BLOCK:(block + 1) * BLOCK]
            assert found == struct.pack("=Q", number) * (BLOCK // 8), (block, number, found[:16], found[-16:])
        tell(fd, number)
    print(f"heard={heard} moves={messages.info(fd)['moves']} pinned={pinned()}", flush=True)
    os.close(fd)
    until(lambda: pinned() == 0)


def clerk(session: str, name: str, blocks="2048", seconds="20") -> None:
    """Puts blocks with rising numbers, gets some of them back, and tells; until the time is over."""
    blocks, end = int(blocks), time.monotonic() + float(seconds)
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    choose, number, expected = random.Random(7), 0, {}
    while time.monotonic() < end:
        number += 1
        count = choose.choice((1, 2, 16, 300, 700))
        first = choose.randrange(blocks - count + 1)
        put(fd, handle, first * BLOCK, struct.pack("=Q", number) * (count * BLOCK // 8))
        tell(fd, first, count, number)
        for block in range(first, first + count):
            expected[block] = number
        assert hear(fd) == (number,)
        if number % 4 == 0:
            count = choose.choice((1, 30, 600))
            first = choose.randrange(blocks - count + 1)
            found = get(fd, handle, first * BLOCK, count * BLOCK)
            for block in range(first, first + count):
                at_block = found[(block - first) * BLOCK:][:BLOCK]
                assert at_block == struct.pack("=Q", expected.get(block, 0)) * (BLOCK // 8), (block, at_block[:16])
    messages.write(fd)
    print(f"number={number} moves={messages.info(fd)['moves']}", flush=True)
    assert messages.wait_one(fd).event == messages.CLOSED


# --- what takes memory back ---


def many_copies(fd: int, how: int, handle: int, size: int, done: list) -> None:
    """Puts, or gets, until that is refused; the errno."""
    buffer = mmap.mmap(-1, size)
    try:
        while True:
            copy(fd, how, handle, 0, at(buffer), size)
            done[0] += 1
    except OSError as error:
        done.append(errno.errorcode[error.errno])


def besiege(session: str, name: str, size: str, threads="3") -> None:
    """Puts and gets from several threads until all are refused."""
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    done = [[0] for _ in range(int(threads))]
    ways = itertools.cycle((PUT, GET))
    workers = [threading.Thread(target=many_copies, args=(fd, how, handle, int(size), each))
               for each, how in zip(done, ways)]
    for worker in workers:
        worker.start()
    until(lambda: all(each[0] for each in done), 60)
    print("copying", flush=True)
    for worker in workers:
        worker.join()
    print(" ".join(f"{count}:{why}" for count, why in done), flush=True)
    until(lambda: pinned() == 0)


def shelf(name: str, size: str) -> None:
    """Publishes memory until the other program ends."""
    size = int(size)
    fd = accepted(name)
    memory = mmap.mmap(-1, size)
    tell(fd, map_memory(fd, at(memory), size))
    assert messages.wait_one(fd).event == messages.CLOSED
    until(lambda: pinned() == 0)
    print("done", flush=True)


def reader(session: str, name: str, size: str, how: str, threads="4") -> None:
    """Gets from several threads, and ends meanwhile: `kill`, or `shutdown` of the channel."""
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    done = [[0] for _ in range(int(threads))]
    workers = [threading.Thread(target=many_copies, args=(fd, GET, handle, int(size), each)) for each in done]
    for worker in workers:
        worker.start()
    until(lambda: all(each[0] for each in done), 60)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    fcntl.ioctl(fd, messages.SHUTDOWN)
    for worker in workers:
        worker.join()
    print(" ".join(f"{count}:{why}" for count, why in done), flush=True)
    until(lambda: pinned() == 0)


def besieged(name: str, size: str, how: str) -> None:
    """Publishes memory, and takes it back under PUTs: `unmap`, `exec`, `kill`, `close`, or `munmap`, which does not."""
    size = int(size)
    fd = accepted(name)
    memory = mmap.mmap(-1, size)
    address = at(memory)
    handle = map_memory(fd, address, size)
    tell(fd, handle)
    while not os.path.exists("/tmp/go"):
        time.sleep(0.01)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exec":
        os.execv("/bin/busybox", ["busybox", "sleep", "5"])
    if how == "close":
        os.close(fd)
    if how == "nowait":
        try:
            unmap(fd, handle, messages.F_NOWAIT)
        except OSError as error:
            assert error.errno == errno.EBUSY
    if how == "unmap":
        unmap(fd, handle)
        memory[:] = bytes(size)
        # Nothing is written there any more.
        time.sleep(1)
        assert memory[:] == bytes(size)
    until(lambda: pinned() == 0)
    print("free", flush=True)


# --- alone ---


def refusals(session: str, name: str) -> None:
    """What cannot be published."""
    fd = messages.connect(name, session=session)
    assert hear(fd)
    page = mmap.mmap(-1, 4 * PAGE)
    where = at(page)
    with messages.fails(errno.EINVAL):
        map_memory(fd, where, PAGE, flags=0)
    with messages.fails(errno.EINVAL):
        map_memory(fd, where, PAGE, flags=8)
    with messages.fails(errno.EINVAL):
        map_memory(fd, where, 0)
    with messages.fails(errno.EINVAL):
        map_memory(fd, where, PAGE, offset=1)
    with messages.fails(errno.EINVAL):
        map_memory(fd, where, 1 << 40, offset=(1 << 64) - PAGE)
    map_memory(fd, where + 1, PAGE, offset=(1 << 63) + 1)
    with messages.fails(errno.EFAULT):
        map_memory(fd, 1 << 46, PAGE)
    # Shared memory is as good as anonymous memory; pages of a file are not.
    memfd = os.memfd_create("memory")
    os.ftruncate(memfd, 4 * PAGE)
    shared = mmap.mmap(memfd, 4 * PAGE)
    handle = map_memory(fd, at(shared), 4 * PAGE)
    unmap(fd, handle)
    os.mkdir("/tmp/files")
    subprocess.run(["mount", "-t", "ramfs", "none", "/tmp/files"], check=True)
    with open("/tmp/files/file", "wb+") as file:
        file.truncate(PAGE)
        pages = mmap.mmap(file.fileno(), PAGE)
        # A copy that is the program's own.
        private = mmap.mmap(file.fileno(), PAGE, flags=mmap.MAP_PRIVATE)
    for flags in (MEM_GET, MEM_PUT):
        with messages.fails(errno.EOPNOTSUPP):
            map_memory(fd, at(pages), PAGE, flags=flags)
        unmap(fd, map_memory(fd, at(private), PAGE, flags=flags))
    # As many ranges as there may be: one is published.
    handles = []
    with messages.fails(errno.ENOBUFS):
        for _ in range(100):
            handles.append(map_memory(fd, where, PAGE))
    assert len(handles) == 63
    for handle in handles:
        unmap(fd, handle)
    # The limit of locked memory.
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (16 * PAGE, 16 * PAGE))
    os.setresuid(1000, 1000, 1000)
    large = mmap.mmap(-1, 32 * PAGE)
    with messages.fails(errno.ENOMEM):
        map_memory(fd, at(large), 32 * PAGE)
    unmap(fd, map_memory(fd, at(large), 8 * PAGE))
    until(lambda: pinned() == 8)
    print("done", flush=True)


def limited(session: str, name: str, folder: str) -> None:
    """Publishes as much as the operator allows on the channels of a rule."""
    def file(which: str) -> str:
        return f"{folder}/{which}"

    def allow(mib: int) -> None:
        with open(file("max_published_mib"), "w", encoding="ascii") as limit:
            limit.write(str(mib))

    def published() -> int:
        with open(file("published_bytes"), encoding="ascii") as count:
            return int(count.read())

    fd = messages.connect(name, session=session)
    memory = mmap.mmap(-1, PIECE)
    half = PIECE // 4
    allow(1)
    with messages.fails(errno.EDQUOT):
        map_memory(fd, at(memory), PIECE)
    first, second = map_memory(fd, at(memory), half), map_memory(fd, at(memory), half)
    assert published() == 2 * half
    with messages.fails(errno.EDQUOT):
        map_memory(fd, at(memory), PAGE)
    unmap(fd, first)
    until(lambda: published() == half)
    # A new limit is for what is published then.
    allow(2)
    third = map_memory(fd, at(memory), PIECE // 2)
    allow(1)
    assert published() == half + PIECE // 2
    for handle in (second, third):
        unmap(fd, handle)
    assert published() == 0
    # Pages count, not bytes: one byte takes as much, and two bytes may take two pages.
    one, two = map_memory(fd, at(memory) + 7, 1, offset=7), map_memory(fd, at(memory) + PAGE - 1, 2, offset=PAGE - 1)
    assert published() == 3 * PAGE
    most = (1 << 20) // PAGE
    dots = [map_memory(fd, at(memory), PAGE * (most // 2)), map_memory(fd, at(memory), PAGE * (most // 2 - 4))]
    last = map_memory(fd, at(memory), 1)
    with messages.fails(errno.EDQUOT):
        map_memory(fd, at(memory), 1)
    for handle in (one, two, last, *dots):
        unmap(fd, handle)
    assert published() == 0
    # A program that ends.
    allow(0)
    map_memory(fd, at(memory), PIECE)
    os.close(fd)
    until(lambda: published() == 0)
    print("done", flush=True)


def local() -> None:
    """Programs of one machine have shared memory."""
    _, client, _ = messages.pair()
    page = mmap.mmap(-1, PAGE)
    with messages.fails(errno.EOPNOTSUPP):
        map_memory(client, at(page), PAGE)
    with messages.fails(errno.EOPNOTSUPP):
        put(client, 1 << 16, 0, b"x")
    with messages.fails(errno.ESTALE):
        unmap(client, 1 << 16)
    with messages.fails(errno.ESTALE):
        get(client, 0, 0, 1)


# --- more channels than a connection has regions for ---


PIECES = 16


def roomy(name: str, count: str) -> None:
    """Publishes the same memory on each of some channels to a portal."""
    portal = messages.bind(name, flags=messages.UNAUTHENTICATED)
    print("bound", flush=True)
    memory = mmap.mmap(-1, PIECES * PIECE)
    fds = []
    while len(fds) < int(count):
        messages.ready(portal, messages.select.POLLIN)
        for offer in messages.read(portal):
            fds.append(messages.accept(portal, offer.id))
            tell(fds[-1], map_memory(fds[-1], at(memory), len(memory)))
    for fd in fds:
        (last,) = messages.read(fd)
        assert last.event == messages.CLOSED, last
    print("done", flush=True)


def crowd(session: str, name: str, count: str) -> None:
    """Puts to each piece on each channel: their kernel keeps the keys for later, until others need the room."""
    fds = [messages.connect(name, session=session) for _ in range(int(count))]
    handles = [hear(fd)[0] for fd in fds]
    for turn in range(2):
        for fd, handle in zip(fds, handles, strict=True):
            begun = time.monotonic()
            for piece in range(PIECES):
                put(fd, handle, piece * PIECE + turn, b"x")
            assert time.monotonic() - begun < 8, "a channel with many keys holds others up"
    # All at the same time, in different orders; memory of this side is registered for GETs as well.
    failed = []

    def puts(number: int, fd: int, handle: int) -> None:
        try:
            for piece in random.Random(number).sample(range(PIECES), PIECES):
                put(fd, handle, piece * PIECE + number, bytes([number]))
                assert get(fd, handle, piece * PIECE + number, 1) == bytes([number])
        except (OSError, AssertionError) as error:
            failed.append((number, error))

    threads = [threading.Thread(target=puts, args=(number, *pair)) for number, pair in enumerate(zip(fds, handles, strict=True))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert all(messages.info(fd)["moves"] == 0 for fd in fds)
    print("done", flush=True)


# --- a peer that does not keep to the protocol ---


PREY = PIECE + PAGE
GUARD = b"\xa5" * PAGE


def prey(name: str) -> None:
    """Publishes memory on each channel to a portal, and gets and puts as the other program says; ends if anything is
    damaged, or fails in another way than it may."""
    portal = messages.bind(name, flags=messages.UNAUTHENTICATED, options=messages.opts(events=messages.WANT_BODIES))
    print("bound", flush=True)
    while True:
        for offer in messages.read(portal):
            try:
                fd = messages.accept(portal, offer.id)
            except OSError as error:
                # It was withdrawn.
                print(f"accept: {errno.errorcode[error.errno]}", flush=True)
                continue
            threading.Thread(target=or_die, args=(is_hunted, fd), daemon=True).start()


def or_die(what, *args) -> None:
    try:
        what(*args)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


def is_hunted(fd: int) -> None:
    area, put_only, get_only = mmap.mmap(-1, PAGE + PREY + PAGE), mmap.mmap(-1, PAGE), mmap.mmap(-1, PAGE)
    lent = mmap.mmap(-1, PAGE)
    area[:PAGE] = area[-PAGE:] = GUARD

    def says(*numbers: int) -> None:
        try:
            tell(fd, *numbers)
        except OSError as error:
            assert error.errno in (errno.EPIPE, errno.ECONNABORTED), error

    def outcome(what) -> int:
        try:
            what()
        except OSError as error:
            return error.errno
        return 0

    def copies(what: int, handle: int, offset: int, length: int) -> None:
        buffer = mmap.mmap(-1, 3 * PAGE)
        buffer[:PAGE] = buffer[-PAGE:] = GUARD
        error = outcome(lambda: copy(fd, GET if what == 2 else PUT, handle, offset, at(buffer) + PAGE, length))
        before = buffer[PAGE:-PAGE]
        says(what, error)
        # What arrives when the buffer is the program's again is damage.
        time.sleep(1)
        assert buffer[:PAGE] == buffer[-PAGE:] == GUARD and buffer[PAGE:-PAGE] == before, "a buffer is damaged"

    def lends() -> None:
        handle = map_memory(fd, at(lent), PAGE, flags=MEM_BODY)
        messages.write(fd, struct.pack("=3Q", handle, 0, PAGE), flags=messages.F_BODY, tag=5)

    def lends_or_says() -> None:
        if error := outcome(lends):
            says(5, error)

    threads = []

    def runs(*args) -> None:
        threads.append(threading.Thread(target=or_die, args=args, daemon=True))
        threads[-1].start()

    if outcome(lambda: says(map_memory(fd, at(area) + PAGE, PREY, offset=PAGE), map_memory(fd, at(put_only), PAGE, flags=MEM_PUT),
                            map_memory(fd, at(get_only), PAGE, flags=MEM_GET))) not in (0, errno.EPIPE, errno.EOPNOTSUPP):
        raise AssertionError("memory cannot be published")
    is_open = True
    while is_open:
        for message in messages.read(fd):
            if message.kind == messages.RECEIPT and message.status == 0:
                says(message.tag, 0)
            if message.kind != messages.MSG:
                is_open = is_open and message.event != messages.CLOSED
                continue
            if message.flags & messages.F_BODY:
                # It is kept.
                continue
            if len(message.body) % 8 or len(message.body) < 16:
                continue
            what, *numbers = struct.unpack(f"={len(message.body) // 8}Q", message.body)
            if what == 1:
                runs(lambda handle=numbers[0]: says(1, outcome(lambda: unmap(fd, handle))))
            elif what in (2, 3) and len(numbers) == 3:
                runs(copies, what, *numbers)
            elif what == 5:
                lends_or_says()
            elif what == 4:
                says(4, int.from_bytes(area[numbers[0]:numbers[0] + 8], "little"))
    # The number of the file is theirs until they have what the end of the channel tells them.
    for thread in threads:
        thread.join()
    os.close(fd)
    time.sleep(1)
    assert area[:PAGE] == area[-PAGE:] == GUARD, "memory beside what was published is damaged"
    assert bytes(get_only) == bytes(lent) == bytes(PAGE), "memory for GET only is damaged"


# --- a device that does not see memory as it is ---


def bounced(session: str, name: str, rounds="300") -> None:
    """GETs are refused, as the device would use a copy of the buffer. What the program writes there meanwhile stays."""
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    page = mmap.mmap(-1, PAGE)
    address, words = at(page), memoryview(page).cast("Q")
    refused = []

    def ask_again() -> None:
        for _ in range(int(rounds)):
            try:
                copy(fd, GET, handle, 0, address, PAGE)
            except OSError as error:
                refused.append(error.errno)

    asker = threading.Thread(target=ask_again)
    asker.start()
    written = 0
    while asker.is_alive():
        assert words[0] == written, f"{words[0]} in place of {written}"
        written += 1
        words[0] = written
    asker.join()
    print(f"written={written}", flush=True)
    assert refused == [errno.EOPNOTSUPP] * int(rounds), set(refused)
    with messages.fails(errno.EOPNOTSUPP):
        put(fd, handle, 0, b"x")
    # Longer than what the device maps at a time. The path is none the worse for any of it.
    with messages.fails(errno.EOPNOTSUPP):
        put(fd, handle, 0, bytes(1 << 20))
    tell(fd, 0, 0, 0)
    assert hear(fd) == (0,) and messages.info(fd)["moves"] == 0


# --- calls fail ---


def starved(session: str, name: str, *functions: str) -> None:
    """Has each call of the kernel fail once, each time another one; a function is `name:error`."""
    fd = messages.connect(name, session=session)
    (handle,) = hear(fd)
    folder = "/sys/kernel/debug/ibtrs_faults"
    memory = mmap.mmap(-1, PIECE)

    def order(words: str) -> None:
        with open(f"{folder}/arm", "w", encoding="ascii") as file:
            file.write(words)

    def failures() -> int:
        with open(f"{folder}/functions", encoding="ascii") as file:
            return sum(int(line.split()[2]) for line in file)

    def deed(number: int) -> None:
        mine = map_memory(fd, at(memory), PIECE)
        try:
            unmap(fd, mine)
        except OSError as error:
            raise AssertionError("memory is taken back, whatever fails") from error
        put(fd, handle, PAGE, pattern(number, 70000))
        assert get(fd, handle, PAGE, 70000) == pattern(number, 70000)

    deed(0)
    struck = 0
    for function in functions:
        name, error = function.split(":")
        for number in range(1, 10):
            order(f"{name} {number} {error} 1")
            try:
                deed(number)
            except OSError as refused:
                assert refused.errno in (errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN), (function, number, refused)
            struck += failures()
            order("- 0 0 0")
            deed(number + 100)
    until(lambda: pinned() == 0)
    print(f"struck={struck}", flush=True)


# --- anything ---


def fuzz(session: str, name: str, seconds="20", seed="1") -> None:
    """Anything into the calls for memory, from several threads, under signals and with both ends of the channel. The other
    program does the same; `-` in place of a session stands for the one that binds the portal."""
    fd = accepted(name) if session == "-" else messages.connect(name, session=session)
    chance = random.Random(f"{seed} {session}")
    end = time.monotonic() + float(seconds)
    memory = mmap.mmap(-1, 4 * PIECE)
    where, handles, done = at(memory), [1 << 16], [0]

    def any_number() -> int:
        return chance.choice((0, 1, PAGE, PIECE, 3 * PIECE, 4 * PIECE, (1 << 64) - 1, chance.getrandbits(64), chance.randrange(4 * PIECE)))

    def any_address() -> int:
        return chance.choice((where, where, where + PAGE, where + chance.randrange(4 * PIECE), any_number()))

    def any_handle() -> int:
        return chance.choice((*handles[-4:], 1 << 16, 2 << 16, (1 << 16) + chance.randrange(4), any_number()))

    def step() -> None:
        what = chance.randrange(12)
        flags = chance.choice((0, 0, 1, 1, 2, 3, 3, 1 << chance.randrange(32)))
        if what < 2:
            handles.append(map_memory(fd, any_address(), any_number(), flags, chance.choice((0, where % PAGE, any_number()))))
            messages.write(fd, struct.pack("=Q", handles[-1]), flags=messages.F_NOWAIT)
        elif what < 4:
            unmap(fd, any_handle(), chance.choice((0, messages.F_NOWAIT, messages.F_NOWAIT)))
        elif what < 10:
            copy(fd, chance.choice((PUT, GET)), any_handle(), any_number(), any_address(), any_number(),
                 flags=chance.choice((0, 0, messages.F_NOWAIT)), timeout=chance.choice((0, 1, 20, 1000)))
        elif what == 10:
            data = bytearray(struct.pack("=I", chance.choice((16, 40, 48))) + chance.randbytes(44))
            fcntl.ioctl(fd, chance.choice((MAP, UNMAP, PUT, GET)), data)
        elif messages.poll(fd) & messages.select.POLLIN:
            for message in messages.read(fd):
                if len(message.body) == 8:
                    handles.append(*struct.unpack("=Q", message.body))

    def work() -> None:
        while time.monotonic() < end:
            done[0] += 1
            try:
                step()
            except OSError:
                pass

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    work()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    for worker in workers:
        worker.join()
    os.close(fd)
    until(lambda: pinned() == 0)
    print(done[0], flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
