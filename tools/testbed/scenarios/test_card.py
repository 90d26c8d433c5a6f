# SPDX-License-Identifier: GPL-2.0
"""The strict RDMA device in software: it reports each planted misuse, and the kernel's own drivers and ours
run over it without a report."""

from contextlib import contextmanager

import pytest

from testbed import card, fio, message_programs, nvmeof
from testbed.lab import SERVER_ADDRESS
from testbed.stack import STACKS

ADDRESS = SERVER_ADDRESS.format(link=1)
FORCED = "swiotlb=131072,force"
SEEDED = "rdma_card.timing=1"

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]

pytestmark = [pytest.mark.rdma("card"), pytest.mark.fast]
bounced = pytest.mark.kernel_arguments(f"{FORCED} {SEEDED}")

# What the card must say of each case of tools/card/tests/card_misuse.c.
MISUSES = {
    "good": None,
    "good_rdma": None,
    "unmapped": "unmapped",
    "unmapped_too_early": "unmapped",
    "past_end": "past_end",
    "reads_from_device": "direction",
    "writes_to_device": "direction",
    "not_synced": "not_synced",
    "bad_lkey": "bad_lkey",
    "registers_for_other_pd": "wrong_pd",
    "invalidates_in_other_pd": "wrong_pd",
    "peer_invalidates_other_pd": "wrong_pd",
    "dead_key": "bad_rkey",
    "stale_key": "bad_rkey",
    "invalidates_twice": "bad_rkey",
    "registers_twice": "mr_not_free",
    "out_of_bounds": "out_of_bounds",
    "region_read_only": "no_right",
    "queue_pair_read_only": "no_right",
    "receives_read_only": "no_right",
    "sq_full": "sq_full",
    "rq_full": "rq_full",
    "cq_full": "cq_full",
    "no_receive": "no_receive",
    "receive_too_short": "receive_too_short",
    "not_connected": "wrong_state",
    "too_many_elements": "too_many_sges",
    "inline_too_long": "too_long",
    "atomic": "bad_opcode",
    "page_list_changes": "page_list_busy",
    "deregisters_too_early": "mr_busy",
    "connected_for_no_reads": "too_many_reads",
    "peer_takes_no_reads": "too_many_reads",
    "unmaps_half": "bad_unmap",
    "unmaps_in_other_direction": "bad_unmap",
    "unmaps_twice": "bad_unmap",
    "peer_is_gone": None,
    "ack_is_lost": None,
    "flushes_in_order": None,
}
# Faults that the card makes meanwhile.
FAULTS = {"unmapped_too_early": "hold_us=20000", "page_list_changes": "hold_us=20000",
          "deregisters_too_early": "hold_us=20000", "ack_is_lost": "lose_acks=1"}


def misuse(solo, case: str) -> tuple[bool, set[str]]:
    """Whether the queue pairs of a case saw what they should, and the kinds of reports."""
    card.forget(solo)
    name, _, value = FAULTS.get(case, "lose_acks=0").partition("=")
    fault = f"{card.FOLDER}/card0/{name}"
    as_it_should = solo.ok(f"echo {value} > {fault}; modprobe card_misuse case={case}; "
                           f"status=$?; modprobe -r card_misuse; echo 0 > {fault}; exit $status")
    return as_it_should, set(card.reports(solo, ordinary=True))


def test_each_misuse_is_reported(solo):
    """Each case alone, on queue pairs of its own."""
    wrong = []
    # The debug kernel warns of a wrong unmapping itself, and a warning fails the scenario.
    kernel_checks = solo.ok("test -d /sys/kernel/debug/dma-api")
    for case, kind in MISUSES.items():
        if kind == "bad_unmap" and kernel_checks:
            continue
        as_it_should, kinds = misuse(solo, case)
        if not as_it_should or kinds != ({kind} if kind else set()):
            wrong.append(f"{case}: {'as it should' if as_it_should else 'not as it should'}, reported {kinds or 'nothing'}")
    card.forgive(solo)
    assert not wrong, "\n".join(wrong)
    assert card.counts(solo)["mappings"] > 0, "the card knows of no mapping, not even those of its datagrams"


def test_an_interface_has_one_card(solo):
    """A second card is refused, and the first goes with its interface."""
    solo.run("ip link add dummy7 type dummy && ip link set dummy7 up && rdma link add card7 type card netdev dummy7")
    assert not solo.ok("rdma link add card8 type card netdev dummy7")
    assert solo.ok("rdma link show card7/1 && ! rdma link show card8/1")
    solo.run("ip link del dummy7")
    assert solo.ok("for i in $(seq 50); do rdma link show card7/1 || exit 0; sleep 0.1; done; exit 1")
    assert solo.ok("rdma link show card0/1")


def verify(solo, disk: str) -> None:
    """Writes and compares small and large blocks."""
    common = f"--filename={disk} --direct=1 --iodepth=16 --ioengine=io_uring --size=4m --verify=crc32c --verify_fatal=1"
    assert fio.run(solo, f"--name=small --rw=randwrite --bs=4k {common}").read.bytes == 4 << 20
    assert fio.run(solo, f"--name=mixed --rw=randwrite --bsrange=512-256k {common}").read.bytes > 0


def map_and_verify(solo, stack, server=None, options: str = "") -> None:
    """A disk is mapped and unmapped, and all that was mapped for DMA meanwhile is unmapped again."""
    server = server or stack
    before = card.counts(solo)
    device = server.exported(solo.null_blk(size_mb=32))
    solo.run(server.load_server())
    solo.run(stack.load_client())
    solo.run(f'echo "sessname=demo path=ip:{ADDRESS} device_path={device} {options}" > {stack.map_file}')
    verify(solo, stack.disk)
    after = card.counts(solo)
    assert after["receives"] > before["receives"] + 1000, "the disk was not mapped over the card"
    assert after["mappings"] > before["mappings"]
    solo.run(stack.unmap())
    solo.run(f"modprobe -r {stack.client_module} {server.server_module}")
    assert card.counts(solo)["mappings"] == before["mappings"], "memory is still mapped for DMA"


def test_our_disk(solo):
    map_and_verify(solo, OURS)
    assert card.reports(solo) == {}


@bounced
def test_our_disk_in_bounce_buffers(solo):
    """All memory is copied, so that what is not synchronised shows; transfers are delayed and split."""
    map_and_verify(solo, OURS)
    assert card.reports(solo) == {}


def use_memory(solo, case: str, *arguments) -> None:
    """A program of the machine publishes memory, and another one uses it over the card."""
    stack = STACKS["ibtrs"]
    before = card.counts(solo)
    solo.run("modprobe ibmsg")
    message_programs.push(solo)
    device = solo.null_blk(size_mb=32)
    solo.run(stack.load_server())
    solo.run(stack.load_client())
    solo.run(stack.map_device(device))
    server = message_programs.start(solo, "serve", "kv", 1 << 21, program="message_memory")
    message_programs.bound(solo)
    asker = message_programs.start(solo, case, "demo", "kv", *arguments, program="message_memory")
    message_programs.finish(asker)
    server.kill()
    solo.run(stack.unmap())
    solo.run(f"modprobe -r {stack.client_module} {stack.server_module}")
    solo.wait_until("busybox rmmod ibmsg", 30)
    assert card.counts(solo)["mappings"] == before["mappings"], "memory is still mapped for DMA"
    assert card.reports(solo) == {}


def test_memory_of_programs(solo):
    use_memory(solo, "ask", 1 << 21, 0, 10)


@bounced
def test_memory_of_programs_and_bounce_buffers(solo):
    """It is refused, and what programs write to it meanwhile is not undone."""
    use_memory(solo, "bounced")


def test_mainlines_disk(solo):
    map_and_verify(solo, MAINLINE)
    assert card.reports(solo) == {}


@bounced
def test_mainlines_server_refuses_bounce_buffers(solo):
    """Why there is no such test of its disk: each of its chunks is one page of 128 KiB, see Documentation/card.md."""
    stack = MAINLINE
    device = solo.null_blk(size_mb=32)
    solo.run(stack.load_server())
    solo.run(stack.load_client())
    assert not solo.ok(stack.map_device(device))
    assert "RTRS server session allocation failed: -22" in solo.run("dmesg | tail -n 20")
    assert card.reports(solo) == {}
    solo.run(f"modprobe -r {stack.client_module} {stack.server_module}")


def test_nvme(solo):
    nvmeof.export(solo, "nqn.card", [solo.null_blk(size_mb=32)], [ADDRESS])
    nvmeof.connect(solo, "nqn.card", ADDRESS)
    verify(solo, nvmeof.disks(solo, 1)[0])
    assert card.reports(solo) == {}
    solo.run("echo 1 > /sys/class/nvme/nvme0/delete_controller")
    solo.run("cd /sys/kernel/config/nvmet && rm ports/1/subsystems/nqn.card && rmdir ports/1 "
             "subsystems/nqn.card/namespaces/1 subsystems/nqn.card && modprobe -r nvme-rdma nvmet-rdma")


@contextmanager
def limits(solo, profile: str, max_cqe: int = 0):
    """Meanwhile the card is of this kind."""
    def make_card(profile: str, max_cqe: int) -> None:
        solo.run(f"cd /sys/module/rdma_card/parameters && rdma link del card0 && echo {profile} > profile && "
                 f"echo {max_cqe} > max_cqe && rdma link add card0 type card netdev dummy0")

    make_card(profile, max_cqe)
    try:
        yield
        assert card.reports(solo) == {}
    finally:
        make_card("mlx5", 0)


@pytest.mark.parametrize("profile", ["mlx5", "irdma", "bnxt_re", "hns", "least"])
def test_profiles(solo, profile):
    """Our disk within the limits of each kind of card."""
    with limits(solo, profile):
        map_and_verify(solo, OURS)


def test_short_completion_queues(solo):
    """Fewer entries than the service connection asks for where it can."""
    with limits(solo, "least", max_cqe=1024):
        map_and_verify(solo, OURS)


@pytest.mark.parametrize("max_cqe", [0, 1024])
def test_one_connection_without_capsules(solo, max_cqe):
    """The server sets no window, and the connection has all requests of its path: more than a small card has
    entries for."""
    with limits(solo, "least", max_cqe):
        solo.run(f"modprobe {OURS.transport('server')} capsules=N")
        map_and_verify(solo, OURS, options="nr_queues=1")


@pytest.mark.parametrize("options", ["", "nr_queues=1"])
def test_mainlines_server_on_a_small_card(solo, options):
    """It sets no window either."""
    with limits(solo, "least"):
        map_and_verify(solo, OURS, MAINLINE, options)
