# SPDX-License-Identifier: GPL-2.0
"""Paths whose setup stops halfway: they must not keep other clients out."""

from .. import wire
from ..client import Party
from .table import DISK, SLOW, attack, comes_in, opened


def sits(cid_num: int, count: int = 1):
    """Paths that have only the first of their connections."""
    def run():
        sitting = [Party(cid_num=cid_num) for _ in range(count)]
        try:
            for party in sitting:
                # Refused or taken, that is the server's choice.
                party.refused(0)
            comes_in()
        finally:
            for party in sitting:
                party.leave()
    return run


for cid_num in (740, wire.MAX_CONNECTIONS):
    attack(f"half-open with {cid_num} connections", sits(cid_num))
attack("half-open, thirty of two connections", sits(2, 30))
attack("half-open, eight of 740 connections", sits(740, 8))


def leaves_at(step: str, quietly: bool):
    """Goes at a step of the set-up, with and without a word."""
    def run():
        party = Party(cid_num=3)
        try:
            if step == "resolve":
                return party.resolve()
            if step == "request":
                return party.resolve().ask(party.request(0))
            party.connect(0)
            if step == "first connection":
                return None
            party.connect(1)
            party.connect(2)
            if step == "INFO":
                return party.service.pair.send(party.info_req())
            party.introduce()
            if step == "OPEN":
                return party.post_read(party.service, 0, wire.OPEN_REQ.pack(dev_name=DISK.encode(), access_mode=1), 56)
            if step == "write":
                device = opened(party, SLOW)
                for chunk in range(party.depth):
                    party.post_io(device, wire.WRITE, 8 * chunk, chunk=chunk)
        finally:
            party.leave(quietly)
        return None
    return run


for step in ("resolve", "request", "first connection", "all connections", "INFO", "OPEN", "write"):
    for quietly in (False, True):
        attack(f"{'gone' if quietly else 'disconnected'} after {step}", leaves_at(step, quietly))
