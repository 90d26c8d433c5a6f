# SPDX-License-Identifier: GPL-2.0
"""A client that authenticates, written from Documentation/protocol.md; it can omit or change any
part of the exchange."""

import errno
import hashlib
import hmac
import os
import time

from . import client, wire
from .client import ADDRESS, Party, refusal
from .verbs import Connection, Rejected
# Those who use a client choose its shares.
from .x25519 import BASE, LOW_ORDER, x25519  # noqa: F401

OFFERED_AT, CHOSEN_AT, NONCE_AT = 47, 21, 44
# Numbers of suites; a request offers a bit for each.
HMAC_SHA256, X25519 = 1, 2
ALL_SUITES = 3
AUTH1, AUTH2 = 5, 6


def mac(key: bytes, label: str, *parts: bytes) -> bytes:
    return hmac.new(key, b"ibtrs-1 " + label.ljust(8).encode() + b"".join(parts), hashlib.sha256).digest()


def replace(message: bytes, at: int, field: bytes) -> bytes:
    return message[:at] + field + message[at + len(field):]


class KeyHolder(Party):
    """A session with one path, whose client has a key."""

    def __init__(self, key: bytes, name: str = "raw", key_id: str = "default", address: str = ADDRESS, **options):
        super().__init__(address, name, **{"epoch": 1, **options})
        self.key, self.key_id = key, key_id
        self.path_key = b""
        # The secret of its share, and what both sides have seen of the exchange.
        self.own = os.urandom(32)
        self.said: tuple[bytes, ...] = ()

    def offered(self, suites: int = ALL_SUITES, **fields) -> bytes:
        """The request of the service connection."""
        return replace(self.request(0, **fields), OFFERED_AT, bytes([suites]))

    def offer(self, suites: int = ALL_SUITES, asked: bytes | None = None, **fields) -> None:
        """Asks for the service connection, with this request if there is one."""
        self.asked = self.offered(suites, **fields) if asked is None else asked
        connection = self.resolve()
        connection.ask(self.asked)
        self.acceptance = connection.answered()[:56]
        connection.establish()
        self.connections[0] = connection
        self.accepted = wire.CONN_RSP.unpack(self.acceptance)
        self.acceptances.append(self.accepted)

    @property
    def chosen(self) -> int:
        return self.acceptance[CHOSEN_AT]

    def auth1(self, **changes) -> bytes:
        """The message; `changes` are fields that are not as they should be, before the proof is made."""
        share = x25519(self.own, BASE) if self.chosen == X25519 else bytes(32)
        fields = {"type": AUTH1, "suite": self.chosen, "key_id": self.key_id.encode(), "name": self.name.encode(),
                  "nonce": os.urandom(32), "share": share, **changes}
        body = (fields["type"].to_bytes(2, "little") + bytes([fields["suite"]]) + bytes(5)
                + fields["key_id"].ljust(32, b"\0") + fields["name"].ljust(256, b"\0") + fields["nonce"]
                + fields["share"])
        return body + mac(self.key, "client", self.asked[2:], self.acceptance, body)

    def prove(self, message: bytes | None = None) -> int:
        """Sends AUTH1, and checks the answer; the errno with which the server refuses the path, or 0."""
        message = self.auth1() if message is None else message
        self.service.pair.send(message)
        answer = self._message(self.service).data
        assert len(answer) == 104 and answer[0] == AUTH2 and answer[2] == self.chosen, answer
        said = self.said = (self.asked[2:], self.acceptance, message, answer[:72])
        secret = self.key
        if self.chosen == X25519:
            secret = mac(self.key, "secret", x25519(self.own, answer[40:72]))
        assert answer[72:] == mac(secret, "server", *said), "the server's proof"
        self.path_key = mac(secret, "path key", *said)
        return int.from_bytes(answer[4:6], "little")

    def proved(self, cid: int, **fields) -> bytes:
        """The request of a further connection."""
        bare = self.request(cid, **fields, path=bytes(16))
        return self.request(cid, **fields, path=mac(self.path_key, "join", bare[2:])[:16])

    def join(self, cid: int) -> Connection:
        """Connects a further connection, and checks the acceptance."""
        asked = self.proved(cid)
        connection = self.resolve()
        connection.ask(asked)
        acceptance = connection.answered()[:56]
        connection.establish()
        self.connections[cid] = connection
        proof = mac(self.path_key, "accept", asked[2:], acceptance[:NONCE_AT])[:12]
        assert acceptance[NONCE_AT:] == proof, "the server's proof in an acceptance"
        return connection

    def connect_all(self) -> None:
        self.offer()
        if refused := self.prove():
            raise ConnectionError(refused, os.strerror(refused))
        for cid in range(1, self.cid_num):
            self.join(cid)

    def offer_until_allowed(self, seconds: float = 60) -> None:
        """As `offer`, also from an address that has failed too often of late."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.offer()
            except Rejected as rejected:
                if refusal(rejected.private) != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def is_disbelieved(self, message: bytes) -> bool:
        """Sends a message in place of AUTH1; whether the server ends the path without an answer."""
        self.service.pair.send(message)
        self.service.wait_closed()
        return not self.service.pair.messages


class Insider(KeyHolder):
    """A party of any name that has the key, and proves it wherever a party without one would only connect."""

    key = b""

    def __init__(self, name: str = "raw", epoch: int = 0, **options):
        super().__init__(self.key, name, epoch=epoch or 1, **options)

    def connect(self, cid: int, /, private: bytes | None = None, **fields) -> Connection:
        if private is not None or "path" in fields:
            return super().connect(cid, private, **fields)
        if cid:
            return super().connect(cid, self.proved(cid, **fields))
        self.offer(**fields)
        if refused := self.prove():
            # For attacks it is all one whether the connection is refused or, in AUTH2, the path.
            del self.connections[0]
            raise Rejected(wire.CONN_RSP.pack(errno=-refused % 65536))
        return self.connections[0]

    connect_all = Party.connect_all


def become_insiders(key: bytes) -> None:
    """Has the modules that are imported from now on find one who has the key where they name a party."""
    Insider.key = key
    client.Party = Insider
