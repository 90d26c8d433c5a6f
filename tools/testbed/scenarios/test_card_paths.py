# SPDX-License-Identifier: GPL-2.0
"""A session over two cards that do DMA (Documentation/card.md), of which one is lost in each way that the card can
make, under I/O that is compared."""

import pytest

from testbed import blockdev, card
from testbed.load import Load
from testbed.stack import STACKS

OURS = STACKS["ibtrs"]
SEEDED = "rdma_card.timing=1"
FORCED = "swiotlb=131072,force"

pytestmark = [pytest.mark.rdma("card"), pytest.mark.links(2)]

SECOND = f"{card.FOLDER}/card1"
# What is done to the second card, and what undoes it.
LOSSES = {
    "its port is down": (f"echo 1 > {SECOND}/port_down", f"echo 0 > {SECOND}/port_down"),
    "its interface is down": ("ip link set dummy1 down", "ip link set dummy1 up"),
    "it fails": (f"echo 1 > {SECOND}/fatal", "true"),
    "it is removed": ("rdma link del card1", "rdma link add card1 type card netdev dummy1"),
    "it is removed when its port is down": (f"echo 1 > {SECOND}/port_down && rdma link del card1",
                                            "rdma link add card1 type card netdev dummy1"),
    "it is slow, and then fast": (f"echo 60000 > {SECOND}/hold_us", f"echo 0 > {SECOND}/hold_us"),
    "the last acknowledgements are lost": (f"echo 20 > {SECOND}/lose_acks", f"echo 0 > {SECOND}/lose_acks"),
    "no queue pair can be made at first": (f"echo create_qp 1 > {SECOND}/fail && echo 1 > {SECOND}/fatal", "true"),
    "no memory can be registered at first": (f"echo alloc_mr 1 > {SECOND}/fail && echo 1 > {SECOND}/fatal", "true"),
}
# These leave the path as it is, or it comes back at once.
STAYS = {"it fails", "it is slow, and then fast", "the last acknowledgements are lost",
         "no queue pair can be made at first", "no memory can be registered at first"}


def both_connected(solo) -> None:
    solo.wait_until("[ $(cat /sys/class/ibtrs-client/demo/paths/*/state 2> /dev/null | grep -c '^connected') = 2 ]", 60)


def reconnects(solo) -> int:
    """How often a path has come back."""
    return sum(int(line.split()[0]) for line in
               solo.run("cat /sys/class/ibtrs-client/demo/paths/*/stats/reconnects").splitlines())


def lose_in_each_way(solo, losses) -> None:
    blockdev.map_two_paths(Both(solo), OURS)
    # Requests go over both.
    solo.run("echo round-robin > /sys/class/ibtrs-client/demo/mp_policy")
    load = Load(solo, OURS)
    for name, (lose, restore) in losses.items():
        print(name, flush=True)
        before = reconnects(solo)
        solo.run(lose)
        if name not in STAYS:
            solo.wait_until("[ $(cat /sys/class/ibtrs-client/demo/paths/*/state | grep -c '^connected') = 1 ]", 30)
        load.goes_on()
        solo.run(restore)
        both_connected(solo)
        assert name == "it is slow, and then fast" or reconnects(solo) > before, f"no path was lost: {name}"
        load.goes_on()
    load.end()
    assert card.reports(solo) == {}


class Both:
    """The one guest, where a server and a client are expected."""

    def __init__(self, guest):
        self.server = self.client = guest


def test_one_of_two_cards_is_lost(solo):
    lose_in_each_way(solo, LOSSES)


@pytest.mark.fast
@pytest.mark.kernel_arguments(f"{FORCED} {SEEDED}")
def test_one_of_two_cards_is_lost_in_bounce_buffers(solo):
    lose_in_each_way(solo, LOSSES)


def test_the_driver_of_the_cards_is_unloaded(solo):
    """Both paths are lost, and requests wait until the cards are back; nothing of ours keeps the driver."""
    blockdev.map_two_paths(Both(solo), OURS)
    load = Load(solo, OURS)
    solo.run("busybox rmmod rdma_card")
    solo.wait_until("! grep -q '^connected' /sys/class/ibtrs-client/demo/paths/*/state", 30)
    assert solo.run("rdma link") == ""
    solo.run("modprobe rdma_card && for n in 0 1; do rdma link add card$n type card netdev dummy$n || exit 1; done")
    both_connected(solo)
    load.goes_on()
    load.end()
    assert card.reports(solo) == {}


def test_our_modules_are_unloaded(solo):
    """Under I/O, at once: the client's disk is unmapped by force, and both sides go; the card has nothing left."""
    before = [card.counts(solo, f"card{number}")["mappings"] for number in (0, 1)]
    blockdev.map_two_paths(Both(solo), OURS)
    load = Load(solo, OURS)
    solo.run(OURS.unmap(how="force"))
    load.fio.wait(60, check=False)
    load.watch.kill()
    solo.run(f"busybox rmmod {OURS.client_module} {OURS.server_module} ibtrs_client ibtrs_server ibtrs_core")
    assert [card.counts(solo, f"card{number}")["mappings"] for number in (0, 1)] == before
    assert card.reports(solo) == {}
