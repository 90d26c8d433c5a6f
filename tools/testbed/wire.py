# SPDX-License-Identifier: GPL-2.0
"""Listens to a link between guests: QEMU records each frame that passes the server's end of it, so
nothing in a guest takes part, and the guest's kernel has encrypted everything by then."""

import itertools
import struct
from contextlib import contextmanager
from pathlib import Path

from .guest import Guest

ETH_IPV4, ETH_ARP, ETH_IPV6, ETH_MACSEC = 0x0800, 0x0806, 0x86DD, 0x88E5
PROTOCOLS = {0: "hop-by-hop", 1: "icmp", 6: "tcp", 50: "esp", 58: "icmpv6"}
UDP = 17
# A capture file of the old format, as this machine writes its numbers: a header of the file, and one
# of each frame, with the number of bytes that were kept and that there were.
MAGIC, ETHERNET = 0xA1B2C3D4, 1
FILE, FRAME = struct.Struct("=IHHiIII"), struct.Struct("=IIII")

_numbers = itertools.count(1)


class Recording(list):
    """The frames of a link, as bytes.  They are there once the recording has ended."""

    def kinds(self) -> set[str]:
        return {kind(frame) for frame in self}

    def shows(self, text: str) -> bool:
        """Whether a listener can read this in a frame."""
        return any(text.encode() in frame for frame in self)


def kind(frame: bytes) -> str:
    """The part of a frame that needs no key: its protocol, and with UDP the destination's port."""
    (ethertype,) = struct.unpack_from(">H", frame, 12)
    if ethertype == ETH_MACSEC:
        return "macsec"
    if ethertype == ETH_ARP:
        return "arp"
    if ethertype == ETH_IPV4:
        protocol, payload = frame[23], 14 + 4 * (frame[14] & 15)
    elif ethertype == ETH_IPV6:
        protocol, payload = frame[20], 14 + 40
    else:
        return f"ethertype {ethertype:04x}"
    if protocol == UDP:
        (port,) = struct.unpack_from(">H", frame, payload + 2)
        return f"udp {port}"
    return PROTOCOLS.get(protocol, f"protocol {protocol}")


def frames(file: Path) -> list[bytes]:
    """Reads a capture file."""
    data = file.read_bytes()
    magic, *_, link_type = FILE.unpack_from(data)
    if (magic, link_type) != (MAGIC, ETHERNET):
        raise ValueError(f"{file} is no capture of Ethernet frames")
    found, at = [], FILE.size
    while at < len(data):
        _, _, kept, size = FRAME.unpack_from(data, at)
        if kept != size or at + FRAME.size + kept > len(data):
            raise ValueError(f"frame {len(found)} of {file} is not complete")
        found.append(data[at + FRAME.size:at + FRAME.size + kept])
        at += FRAME.size + kept
    return found


@contextmanager
def recorded(guest: Guest, link: int = 1):
    """Records the frames at a guest's end of a link, in both directions."""
    name = f"dump{next(_numbers)}"
    file = guest.folder / f"{name}.pcap"
    recording = Recording()
    guest.qmp("object-add", **{"qom-type": "filter-dump", "id": name, "netdev": f"link{link}", "file": str(file),
                               "maxlen": 65536})
    try:
        yield recording
    finally:
        guest.qmp("object-del", id=name)
        recording += frames(file)
