# SPDX-License-Identifier: GPL-2.0
"""The RDMA devices that a bench may run over, and where each is counted.

Soft-RoCE is what everybody has. The card of tools/card does nearly nothing in instructions, as hardware: what is
left is what a card's user pays."""

from collections.abc import Callable
from dataclasses import dataclass

from testbed import card
from testbed.guest import Guest

Function = tuple[str, str]


def _of_rxe(guest: Guest, names: dict[str, str]) -> dict[str, int]:
    files = " ".join(f"/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}" for name in names.values())
    return dict(zip(names, map(int, guest.run(f"cat {files}").split())))


def _of_card(guest: Guest, names: dict[str, str]) -> dict[str, int]:
    counts = card.counts(guest)
    return {name: counts[counter] for name, counter in names.items()}


@dataclass(frozen=True)
class Device:
    # The kind that the testbed knows, and its module.
    name: str
    module: str
    # Each count, and the function of the module whose calls are counted.
    functions: dict[str, str]
    # Each count, and the counter of the device that has it.
    counters: dict[str, str]
    read: Callable[[Guest, dict[str, str]], dict[str, int]]
    kernel_arguments: str = ""
    # The first half of the processors is the client's, the other one the server's.
    halves: bool = False

    @property
    def calls(self) -> dict[str, Function]:
        return {name: (function, self.module) for name, function in self.functions.items()}

    def counted(self, guest: Guest) -> dict[str, int]:
        """What the device itself has counted."""
        return self.read(guest, self.counters)


RXE = Device(
    "rxe", "rdma_rxe",
    {"work requests": "do_complete", "registrations": "rxe_reg_fast_mr", "invalidations": "rxe_invalidate_mr",
     "doorbells": "rxe_post_send", "receives posted": "rxe_post_recv", "completions": "rxe_cq_post"},
    {"packets": "sent_pkts", "bytes": "sent_bytes"}, _of_rxe)
CARD = Device(
    "card", "rdma_card",
    {"registrations": "card_register", "invalidations": "card_invalidate", "doorbells": "card_post_send",
     "receives posted": "card_post_recv", "completions": "card_complete", "device interrupts": "card_interrupt"},
    {"work requests": "sends", "messages": "receives"}, _of_card,
    # Its checks are no work of a driver's.
    "rdma_card.track=0 rdma_card.halves=1", halves=True)
DEVICES = {device.name: device for device in (RXE, CARD)}
