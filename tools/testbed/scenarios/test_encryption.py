# SPDX-License-Identifier: GPL-2.0
"""Encryption below RDMA, set up with the commands of Documentation/encryption.md: a disk works, and a
listener on the wire reads neither its data nor the requests."""

import errno
import os
import re
from contextlib import ExitStack, contextmanager

import pytest

from testbed import blockdev, guide
from testbed.paths import TOP
from testbed.wire import Recording, recorded
from testbed.wire import kind as kind_of

pytestmark = [pytest.mark.fast, pytest.mark.rdma("rxe")]

PAGE = (TOP / "Documentation/encryption.md").read_text()
# The addresses of the server in the clear, and on an interface that encrypts.
CLEAR, ENCRYPTED = "10.0.1.1", "10.9.0.1"
SESSION, LINE = "ledger-of-secrets", "no-one-shall-read-this\n"
TEXT = LINE * (256 * 1024 // len(LINE) + 1)
# Parts of the data, of the request for a session, and of that for a disk.
SECRETS = (LINE.strip(), SESSION, "nullb0")
# Frames that eth0 sends by itself.
OF_THE_INTERFACE = {"arp", "icmpv6", "hop-by-hop"}
RDMA_IN_THE_CLEAR = {"rxe": "udp 4791", "siw": "tcp"}
KEY_AGREEMENT = "ethertype 888e"
MAC_OF_THE_CLIENT = bytes.fromhex("525400000102")
BOTH_KINDS = pytest.mark.parametrize("kind", ["rxe", "siw"])


@contextmanager
def machines(pair, stack, *folders: str):
    """Both guests without the RDMA devices of the testbed, ready to export a disk and to map it; with folders in
    /etc for the files of the page."""
    pair.server.null_blk(size_mb=16)
    blockdev.load(pair, stack)
    for name, guest in pair.guests.items():
        guest.run(pair.remove_device(name, 1))
    with ExitStack() as contexts:
        for guest in pair:
            if folders:
                contexts.enter_context(guide.writable(guest, *folders))
        yield
    for name, guest in pair.guests.items():
        guest.run(f"if [ -e /sys/module/siw ]; then busybox rmmod siw; fi; {pair.add_device(name, 1)}")


@contextmanager
def devices(pair, kind: str):
    """RDMA devices in the clear."""
    for guest in pair:
        guest.run(f"rdma link add {kind}0 type {kind} netdev eth0")
    yield
    for guest in pair:
        guest.run(f"rdma link del {kind}0")


def type_in(pair, text: str, kind: str = "rxe", leave_out: str = "$^") -> None:
    """Types the commands of a part of the page, but for those that begin with a pattern."""
    for step in guide.commands(text):
        if not re.match(leave_out, step.command):
            command = step.command.replace("type rxe", f"type {kind}")
            pair.guests[step.machine].run(command, timeout=60)


def prepare(pair, title: str, *copies: tuple[str, str]) -> str:
    """Follows a section up to where it says that files are to be copied, each from one machine to the other;
    returns the rest of the section."""
    before, copy, after = guide.section(PAGE, title).partition("\nCopy ")
    assert copy
    for path, text in guide.files(before).items():
        pair.server.push(path, text)
    type_in(pair, before)
    for path, source in copies:
        (target,) = set(pair.guests) - {source}
        pair.guests[target].push(path, str(pair.guests[source].run(f"cat {path}")), 0o600)
    return after


def try_to_map(pair, stack, address: str, seconds: int = 60):
    """Tries to map the disk, at most for some time; returns the command's output."""
    command = stack.map_device("/dev/nullb0", address, SESSION)
    return pair.client.run(f"timeout {seconds} bash -c '{command}'", check=False)


def use(pair, stack, address: str) -> Recording:
    """Maps a disk, writes to it and reads it again; returns the frames of that time."""
    server, client = pair
    for guest in pair:
        guest.push("/tmp/text", TEXT)
    copy = "bs=64k count=4 iflag=direct status=none | cmp -n 262144 /tmp/text -"
    with recorded(server) as frames:
        answer = try_to_map(pair, stack, address)
        assert answer.ok, answer
        client.run(f"dd if=/tmp/text of={stack.disk} bs=64k count=4 oflag=direct status=none && dd if={stack.disk} {copy}")
        client.run(stack.unmap())
    server.run(f"dd if=/dev/nullb0 {copy}")
    return frames


def assert_hidden(frames: Recording, *kinds: str) -> None:
    """There are such frames and no others, and they show no secret."""
    assert frames.kinds() - OF_THE_INTERFACE == set(kinds)
    assert [text for text in SECRETS if frames.shows(text)] == []


@BOTH_KINDS
def test_in_the_clear_all_can_be_read(pair, stack, kind):
    with machines(pair, stack), devices(pair, kind):
        frames = use(pair, stack, CLEAR)
    assert RDMA_IN_THE_CLEAR[kind] in frames.kinds()
    assert [text for text in SECRETS if not frames.shows(text)] == []


MACSEC_FILE, MACSEC_LOG = "/etc/wpa_supplicant/macsec-eth0.conf", "/run/macsec-eth0.log"


@BOTH_KINDS
def test_macsec(pair, stack, kind):
    with machines(pair, stack, "wpa_supplicant"):
        type_in(pair, prepare(pair, "Set up MACsec", (MACSEC_FILE, "server")), kind)
        frames = use(pair, stack, ENCRYPTED)
        counters = pair.server.run("ip -s macsec show macsec0")
        type_in(pair, guide.section(PAGE, "Take MACsec away"))
    # The machines agree on keys meanwhile.
    assert_hidden(Recording(frame for frame in frames if kind_of(frame) != KEY_AGREEMENT), "macsec")
    # The counters that the page names tell the same.
    assert re.search(r"OutPktsUntagged.*\n +0 ", counters)
    assert int(re.search(r"OutPktsProtected OutPktsEncrypted Out.*\n +0 +(\d+)", counters)[1]) > 50


def test_macsec_with_another_secret(pair, stack):
    server, client = pair
    with machines(pair, stack, "wpa_supplicant"):
        rest = prepare(pair, "Set up MACsec", (MACSEC_FILE, "server"))
        client.run(f"sed -i s/mka_cak=.*/mka_cak={'5a' * 16}/ {MACSEC_FILE}")
        # Interfaces that do not come up are not waited for.
        type_in(pair, rest, leave_out="until |rdma ")
        for guest in pair:
            guest.wait_until(f"grep 'KaY: Computed ICV is not equal to Received ICV' {MACSEC_LOG}")
            assert "LOWER_UP" not in guest.run("ip link show macsec0")
        type_in(pair, rest, leave_out="(?!rdma )")
        answer = try_to_map(pair, stack, ENCRYPTED)
        assert not answer.ok and os.strerror(errno.ENETUNREACH) in answer
        type_in(pair, guide.section(PAGE, "Take MACsec away"))


IPSEC_FILE = "/run/ipsec-states"


@BOTH_KINDS
def test_ipsec(pair, stack, kind):
    with machines(pair, stack), devices(pair, kind):
        type_in(pair, prepare(pair, "Try IPsec", (IPSEC_FILE, "server")))
        frames = use(pair, stack, CLEAR)
        type_in(pair, guide.section(PAGE, "Take IPsec away"))
    assert_hidden(frames, "esp")


def test_ipsec_that_does_not_agree(pair, stack):
    server, client = pair
    with machines(pair, stack), devices(pair, "rxe"):
        rest = prepare(pair, "Try IPsec", (IPSEC_FILE, "server"))
        # Another key for packets from the client, the second one of the file.
        keys = client.run(f"cat {IPSEC_FILE}")
        client.push(IPSEC_FILE, re.sub(r"0x[0-9a-f]{72} 128$", f"0x{'5a' * 36} 128", keys))
        type_in(pair, rest)
        with recorded(server) as frames:
            answer = try_to_map(pair, stack, CLEAR)
        assert not answer.ok and os.strerror(errno.ETIMEDOUT) in answer
        assert_hidden(frames, "esp")
        assert int(max(re.findall(r"replay \d+ failed (\d+)", server.run("ip -s xfrm state")))) > 0

        # The server answers no packets in the clear, whether or not the sender shares keys with it.
        client.run("ip xfrm policy flush && ip xfrm state flush")
        for server_forgets in ("true", "ip xfrm policy del src 10.0.1.2 dst 10.0.1.1 dir in"):
            server.run(server_forgets)
            with recorded(server) as frames:
                assert not try_to_map(pair, stack, CLEAR, seconds=4).ok
            senders = {frame[6:12] for frame in frames if kind_of(frame) == "udp 4791"}
            assert senders == {MAC_OF_THE_CLIENT}
        type_in(pair, guide.section(PAGE, "Take IPsec away"))


def test_ipsec_policies_with_a_port_do_not_apply_to_soft_roce(pair, stack):
    with machines(pair, stack), devices(pair, "rxe"):
        rest = prepare(pair, "Try IPsec", (IPSEC_FILE, "server"))
        type_in(pair, re.sub(r" (dir (?:in|out) tmpl)", r" proto udp dport 4791 \1", rest))
        with recorded(pair.server) as frames:
            assert not try_to_map(pair, stack, CLEAR, seconds=4).ok
        type_in(pair, guide.section(PAGE, "Take IPsec away"))
    assert "udp 4791" in frames.kinds()


def test_wireguard(pair, stack):
    keys = "/etc/wireguard"
    with machines(pair, stack, "wireguard"):
        type_in(pair, prepare(pair, "Set up WireGuard", (f"{keys}/server.pub", "server"), (f"{keys}/client.pub", "client")))
        frames = use(pair, stack, ENCRYPTED)
        type_in(pair, guide.section(PAGE, "Take WireGuard away"))
    assert_hidden(frames, "udp 51820")
