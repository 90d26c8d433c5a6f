# SPDX-License-Identifier: GPL-2.0
"""The table of lies, and the users of a lying server's disk."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..server import Honest, Server
from ..victim import Victim


@dataclass(frozen=True)
class Lie:
    name: str
    behaviour: type[Honest]
    victim: Callable[[Victim], None]
    # The server's actions on request; one that returns a text has failed.
    orders: tuple[Callable[[Server], str | None], ...] = ()


LIES: list[Lie] = []


def lie(name: str, behaviour: type[Honest], victim, *orders) -> None:
    LIES.append(Lie(name, behaviour, victim, orders))


def like(base: type[Honest] = Honest, **changes) -> type[Honest]:
    return type("Liar", (base,), changes)


def once(what) -> type[Honest]:
    """Does `what` with the first read of the user; the path that it breaks comes back to an
    honest server."""
    class Once(Honest):
        done = False

        def spot(self, server, request):
            if self.done or not request.is_io_read:
                return super().spot(server, request)
            self.done = True
            return what(server, request)
    return Once


# The actions of users.

# Errors of an I/O that its path does not survive, and of a connection.
ANY = ("OK", "EIO", "ETIMEDOUT")
REFUSED = ("ECONNRESET", "EPROTO", "EINVAL")


def expect(*wanted: str):
    """Maps the disk, with one of these outcomes; one that is mapped is read, too."""
    def victim(v: Victim) -> None:
        said = v.map()
        assert said in wanted, f"map_device: {said} for {' or '.join(wanted)}"
        if said == "OK":
            v.fail_fast()
            v.read()
    return victim


def reads(*wanted: str, length: int = 4096, times: int = 1):
    """Reads from the disk, with these outcomes."""
    def victim(v: Victim) -> None:
        v.must_map().fail_fast()
        for _ in range(times):
            said = v.read(length)
            assert said in wanted, f"read: {said} for {' or '.join(wanted)}"
    return victim


def writes_and_reads(v: Victim, *lengths: int) -> None:
    """What is written in each of these lengths, of whole multiples of 128 bytes, is read back, and the
    path goes on."""
    v.must_map().fail_fast()
    for length in lengths:
        v.page[:length] = bytes(range(1, 129)) * (length // 128)
        assert v.write(length) == "OK"
        v.fill()
        assert v.read(length) == "OK"
        assert v.page[:length] == bytes(range(1, 129)) * (length // 128), f"{length} bytes are others"
    assert v.tell("paths") == "1 path", "the client has connected again"


def goes_on(v: Victim) -> None:
    """The path has survived: the next read is an ordinary one."""
    said = v.read()
    assert said == "OK", f"read after that: {said}"


def reads_and_goes_on(*wanted: str):
    def victim(v: Victim) -> None:
        reads(*wanted)(v)
        assert v.tell("paths") == "1 path", "the client has connected again"
        goes_on(v)
    return victim


def comes_back(v: Victim) -> None:
    """the path fails, and connected again; reads go on."""
    deadline = time.monotonic() + 20
    while v.tell("paths") == "1 path":
        assert time.monotonic() < deadline, "the client has kept the path"
        time.sleep(0.2)
    goes_on(v)


def reads_and_recovers(*wanted: str):
    """the path fails, and comes back."""
    def victim(v: Victim) -> None:
        v.must_map()
        said = v.read()
        assert said in wanted, f"read: {said} for {' or '.join(wanted)}"
        comes_back(v)
    return victim


def not_mapped(v: Victim) -> None:
    said = v.map()
    assert said != "OK", "a connection that was refused makes a session"
