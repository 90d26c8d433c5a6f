# SPDX-License-Identifier: GPL-2.0
"""Valid exchanges with random changes.

`Tampered` is a server whose answers are changed.  As a program this is a client that changes its
requests, for a given time.  The other side may react in any way, but its kernel must not
complain, and an honest peer beside must go on."""

import argparse
import random
import time

from pyverbs.pyverbs_error import PyverbsError

from . import report, wire
from .auth import KeyHolder
from .client import Party
from .mutate import Mutator
from .server import Honest, Server
from .verbs import Closed, Failed, Pause, Rejected

# The reactions of a peer to nonsense.
ENDS = (Rejected, Closed, Failed, TimeoutError, PyverbsError, OSError)
# How long an answer is waited for, which to many requests never comes.
BRIEFLY = 0.15


class Tampered(Server):
    """An honest server, whose messages are changed on their way."""

    def __init__(self, address: str, port: int, seed: str):
        chance = random.Random(seed)
        behaviour = Honest()
        behaviour.flags = chance.choice((0, wire.NEW_RKEY))
        behaviour.extensions = chance.random() < 0.8
        # Where the key of a read goes with the answer.
        self.in_one = behaviour.extensions and chance.random() < 0.5
        # Most often it is changed after the set-up, or nothing else would ever happen.
        self.set_up = Mutator(seed + " set-up", chance.choice((0, 0, 0, 0.3)))
        self.mutator = Mutator(seed + " later", chance.choice((0.03, 0.1, 0.3)))
        super().__init__(address, port, behaviour)

    @property
    def now(self) -> Mutator:
        served = any(request.at_spot for request in self.requests)
        return self.mutator if served else self.set_up

    def tamper(self, message: bytes) -> bytes:
        return self.now.message(message, fixed=len(message) > 4096)

    def tamper_imm(self, imm: int) -> int:
        return self.now.number(imm)

    def end_by_invalidation(self, request, error: int) -> None:
        """Answers in the message that invalidates the key."""
        key = self.rkey(request.chunk)
        kind = wire.IMM_ANSWER_INV if key else wire.IMM_ANSWER_SAME_KEY
        number = self.tamper_imm(wire.answer_imm(request.chunk, error, kind))
        message = self.tamper(number.to_bytes(4, "little") + key)
        request.by.pair.send_inv(self.now.number(request.desc[1]), message)

    def _guarded(self, what, *arguments) -> None:
        """A client that believes what was changed sends requests that make no sense to the rest of the
        server, which answers none of these."""
        try:
            what(*arguments)
        except Exception as error:  # noqa: BLE001: whatever its own nonsense leads to
            print(f"not answered: {type(error).__name__}: {error}", flush=True)

    def answer(self, request, data: bytes = b"", error: int = 0) -> None:
        """The parts of an answer come in another order, twice, or not at all."""
        parts = [lambda: self.invalidate(request), lambda: self.end(request, error)]
        if self.in_one and request.wants_invalidation:
            parts = [lambda: self.end_by_invalidation(request, error)]
        if request.desc and not error:
            parts.insert(0, lambda: self.put_data(request, data))
        for part in self.now.order(parts):
            part()
        if self.now.hits():
            self.later(self.mutator.random.random() / 10, lambda: self.end(request))


class Fuzzer:
    """A client, session after session; each has a seed of its own."""

    def __init__(self, seed: str, device: str):
        self.seed, self.device = seed, device
        self.sessions = self.requests = self.complete = 0

    def session(self) -> None:
        self.sessions += 1
        seed = f"{self.seed}-{self.sessions}"
        chance = random.Random(seed)
        self.mutator = Mutator(seed, 0)
        party = self.party(chance)
        set_up = chance.random() < 0.2
        try:
            self.mutator.rate = 0.3 if set_up else 0
            for step in self.mutator.order([lambda cid=cid: self.connect(party, cid) for cid in (0, 1)]
                                           + [lambda: self.introduce(party)]):
                step()
            self.complete += 1
            self.mutator.rate = chance.choice((0.05, 0.3, 0.6))
            self.use(party, chance)
        except ENDS:
            pass
        except (AssertionError, KeyError, IndexError, ValueError):
            # The steps that the changed order has left out.
            pass
        finally:
            party.leave(quietly=chance.random() < 0.3)

    def party(self, chance: random.Random) -> Party:
        party = Party(name=f"fuzz{self.sessions % 100}", epoch=chance.choice((0, 1, 1)))
        if party.extensions and chance.random() < 0.5:
            party.extensions["ext_flags"] = wire.EXT_SAME_KEY | wire.EXT_CAPSULES
        return party

    def connect(self, party: Party, cid: int) -> None:
        private = self.mutator.message(party.request(cid), fixed=True)
        party.connect(cid, private)

    def introduce(self, party: Party) -> None:
        party.introduce(self.mutator.message(party.info_req()))

    def use(self, party: Party, chance: random.Random) -> None:
        party.sess_info()
        self.id = party.try_open(self.device)[1].get("device_id", 0)
        for _ in range(chance.randrange(10, 60)):
            self.requests += 1
            for step in self.mutator.order([self.some(party, chance) for _ in range(chance.randrange(1, 4))]):
                step()
            self.drain(party)

    def some(self, party: Party, chance: random.Random):
        """A valid request of some kind, to be made."""
        io = party.io_header
        size, sector = chance.choice((512, 4096, 20480)), 8 * chance.randrange(64)
        requests = [
            (0, wire.SESS_INFO_REQ.pack(), 36, b""),
            (0, wire.OPEN_REQ.pack(dev_name=self.device.encode(), access_mode=wire.RW), 56, b""),
            (1, io(self.id, wire.READ, sector, size), size, b""),
            (1, io(self.id, wire.WRITE, sector, size), 0, b"\xA5" * size),
            (1, io(self.id, wire.FLUSH, 0, 0), 0, None),
            (1, io(self.id, wire.WRITE_ZEROES, sector, 4096), 0, b""),
            (1, io(self.id, wire.DISCARD, sector, 4096), 0, b""),
            (0, wire.DISCOVER_REQ.pack(), wire.DISCOVER_ROOM, b""),
        ]
        if chance.random() < 0.03:
            # Most of them end the path.
            kind = chance.randrange(16)
            return lambda: self.imm(party, chance, wire.imm(kind, chance.getrandbits(28)))
        choice = requests[chance.choice((0, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6, 7))]
        chunk = chance.randrange(party.depth)
        return lambda: self.request(party, chunk, *choice)

    def imm(self, party: Party, chance: random.Random, number: int) -> None:
        connection = chance.choice(list(party.connections.values()))
        if chance.random() < 0.5:
            connection.pair.write_imm(b"", number)
        else:
            connection.pair.send_imm(b"", number)

    def request(self, party: Party, chunk: int, cid: int, user: bytes, want: int, data: bytes | None) -> None:
        change = self.mutator
        is_read = want > 0 or data is None
        header = party.read_header(want, user) if is_read else wire.WRITE_REQUEST.pack(usr_len=len(user))
        message = (data or b"") + change.message(user) + change.message(header)
        at = want if is_read else 0
        number = change.number(wire.request_imm(party.depth, chunk, (want or len(data or b"")) + len(user)))
        addr, key = party.chunks[chunk]
        by = party.connections[cid]
        if cid and party.window and chunk % 2:
            # In a capsule.
            headers = change.message(user) + change.message(header)
            if data:
                headers = headers.ljust(wire.CAPSULE_HEADERS, b"\0") + data
            by.pair.send_imm(headers[:1 << 16], change.number(wire.request_imm(party.depth, chunk, len(user))))
            return
        by.pair.write_imm(message[:party.chunk_size - at], number, addr + at, change.number(key))

    def drain(self, party: Party) -> None:
        """Waits for an answer, a while."""
        deadline, pause = time.monotonic() + BRIEFLY, Pause()
        while time.monotonic() < deadline:
            for connection in party.connections.values():
                connection.pair.poll()
                connection.pair.check()
                if connection.pair.messages:
                    connection.pair.messages.clear()
                    return
                if connection.is_ended():
                    raise Closed("by the server")
            pause.take()


class KeyHolders(Fuzzer):
    """A client that has the key of some sessions; its part of the authentication is changed like everything else."""

    # fuzz0 and so on: one that was left without a word keeps its name for a while.
    NAMES = 24

    def __init__(self, seed: str, device: str, key: bytes):
        super().__init__(seed, device)
        self.key = key

    def party(self, chance: random.Random) -> KeyHolder:
        return KeyHolder(self.key, f"fuzz{self.sessions % self.NAMES}")

    def connect(self, party: KeyHolder, cid: int) -> None:
        if cid:
            party.connect(cid, self.mutator.message(party.proved(cid), fixed=True))
            return
        party.offer(asked=self.mutator.message(party.offered(), fixed=True))
        for message in self.mutator.order([party.auth1()]):
            party.prove(self.mutator.message(message))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed")
    parser.add_argument("seconds", type=float)
    parser.add_argument("device")
    parser.add_argument("--key", type=bytes.fromhex)
    chosen = parser.parse_args()
    fuzzer = KeyHolders(chosen.seed, chosen.device, chosen.key) if chosen.key else Fuzzer(chosen.seed, chosen.device)
    print("ready", flush=True)
    for _ in report.rounds(chosen.seconds):
        fuzzer.session()
    print(report.line(report.Result("fuzz", fuzzer.complete > 0,
                                    f"seed {chosen.seed}, {fuzzer.sessions} sessions, {fuzzer.complete} set up, "
                                    f"{fuzzer.requests} requests")), flush=True)


if __name__ == "__main__":
    main()
