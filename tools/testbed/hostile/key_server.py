# SPDX-License-Identifier: GPL-2.0
"""A server that has the key of a session, written from Documentation/protocol.md.

The methods of `KeyServer` make its part of the exchange; lies replace some of them."""

import os
from dataclasses import dataclass, field

from .auth import AUTH1, AUTH2, CHOSEN_AT, HMAC_SHA256, NONCE_AT, X25519, mac, replace
from .server import Honest, Server
from .verbs import Connection
from .x25519 import BASE, x25519


@dataclass
class Exchange:
    """The messages on a path, as the server knows them, and the result."""

    request: bytes
    acceptance: bytes = b""
    auth1: bytes = b""
    path_key: bytes = b""
    own: bytes = field(default_factory=lambda: os.urandom(32))


class KeyServer(Honest):
    """A server that authenticates by one suite, whatever the client offers."""

    def __init__(self, key: bytes, suite: int = HMAC_SHA256):
        super().__init__()
        self.key, self.suite = key, suite
        self.exchanges: dict[Connection, Exchange] = {}
        # The latest one, to which further connections belong.
        self.now: Exchange | None = None

    def arrives(self, what: str, message: bytes) -> bytes:
        """The part of a message that arrives: all of it."""
        return message

    def connect(self, server: Server, connection: Connection, asked: dict) -> None:
        cid = asked["cid"]
        if cid == 0:
            self.now = self.exchanges[connection] = Exchange(self.arrives("request", server.asked))
            acceptance = self.now.acceptance = self.first(server)
        else:
            acceptance = self.further(server)
        connection.accept(self.arrives(f"acceptance {cid}", acceptance))

    def first(self, server: Server) -> bytes:
        """The acceptance of the service connection."""
        return replace(replace(server.acceptance(), CHOSEN_AT, bytes([self.suite])), NONCE_AT, os.urandom(12))

    def further(self, server: Server) -> bytes:
        """The acceptance of another connection."""
        acceptance = server.acceptance()
        proof = mac(self.now.path_key, "accept", server.asked[2:], acceptance[:NONCE_AT])
        return replace(acceptance, NONCE_AT, proof[:12])

    def info(self, server: Server, connection: Connection) -> None:
        if server.heard[0] != AUTH1:
            return super().info(server, connection)
        exchange = self.exchanges[connection]
        exchange.auth1 = self.arrives("AUTH1", server.heard)
        return self.prove(connection, self.arrives("AUTH2", self.auth2(exchange)))

    def prove(self, connection: Connection, auth2: bytes) -> None:
        connection.pair.send(auth2)

    def auth2(self, exchange: Exchange) -> bytes:
        """The message that ends an exchange."""
        share, secret = bytes(32), self.key
        if self.suite == X25519:
            share = x25519(exchange.own, BASE)
            secret = mac(self.key, "secret", x25519(exchange.own, exchange.auth1[328:360]))
        body = bytes([AUTH2, 0, self.suite]) + bytes(5) + os.urandom(32) + share
        said = exchange.request[2:], exchange.acceptance, exchange.auth1, body
        exchange.path_key = mac(secret, "path key", *said)
        return body + mac(secret, "server", *said)
