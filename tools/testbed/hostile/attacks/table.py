# SPDX-License-Identifier: GPL-2.0
"""The table of attacks, and the steps that many of them share."""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import wire
from ..client import Party, refusal
from ..verbs import Closed, Rejected

# The disks that the scenario exports: memory; memory whose requests take a while; others.
DISK, SLOW, OTHER, COMMON = "hostile", "slow", "other", "common"
# Another address of the hostile client.
ELSEWHERE = "10.0.1.99"
SLOW_SECONDS = 0.5


@dataclass(frozen=True)
class Attack:
    name: str
    run: Callable[[], None]


ATTACKS: list[Attack] = []


def attack(name: str, run) -> None:
    ATTACKS.append(Attack(name, run))


def named(name: str):
    def register(run):
        attack(name, run)
        return run
    return register


def opened(party: Party, name: str, mode: int = wire.RW, flags: int = 0) -> int:
    """Opens a disk, as soon as the session that had it before has gone."""
    if name == COMMON and party is not Shared.party:
        # One session at a time writes to it, and the server would notice after 30 s only that nobody
        # uses the shared one any more.
        Shared.drop()
    deadline = time.monotonic() + 30
    while True:
        error, answer = party.try_open(name, mode, flags)
        if error != errno.EPERM or time.monotonic() > deadline:
            assert error == 0, f"open: {code(error)}"
            return answer["device_id"]
        time.sleep(0.05)


class Shared:
    """A session for attacks that are answered, as long as it lives."""

    party: Party | None = None
    device = 0

    @classmethod
    def take(cls) -> tuple[Party, int]:
        if cls.party is not None:
            try:
                # It was left alone for longer than the server may have waited.
                cls.party.heartbeat()
            except (Closed, TimeoutError):
                cls.drop()
        if cls.party is None:
            cls.party = Party(name="shared").set_up()
            cls.device = opened(cls.party, COMMON)
        return cls.party, cls.device

    @classmethod
    def drop(cls) -> None:
        if cls.party is not None:
            cls.party.leave()
            cls.party = None


def in_session(run):
    """Has run(party, device) use the session, which is to go on after that."""
    def whole():
        try:
            party, device = Shared.take()
            run(party, device)
            assert party.submit(device, wire.READ) == "OK"
        except BaseException:
            Shared.drop()
            raise
    return whole


def code(number: int) -> str:
    return errno.errorcode.get(number, str(number)) if number else "OK"


def comes_in(seconds: float = 15) -> None:
    """An honest client gets its session; what earlier ones had may take a while to be free."""
    deadline = time.monotonic() + seconds
    while True:
        with Party(name="honest") as honest:
            try:
                honest.set_up()
                assert honest.sess_info()[0] == 0
                return
            except Rejected as rejected:
                if time.monotonic() > deadline:
                    why = code(refusal(rejected.private))
                    raise AssertionError(f"an honest client is refused: {why}") from rejected
        time.sleep(1)
