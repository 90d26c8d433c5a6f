# SPDX-License-Identifier: GPL-2.0
"""Reads frames that were recorded on a link."""

import struct

import pytest

from testbed.wire import FILE, FRAME, Recording, frames, kind

MACS = bytes(12)


def ipv4(protocol: int, payload: bytes, options: bytes = b"") -> bytes:
    header = bytes([0x40 | 5 + len(options) // 4]) + bytes(8) + bytes([protocol]) + bytes(10) + options
    return MACS + b"\x08\x00" + header + payload


def udp(port: int) -> bytes:
    return struct.pack(">HHHH", 50000, port, 8, 0)


def capture(tmp_path, *contents: bytes, link_type: int = 1, cut: int = 0):
    file = tmp_path / "x.pcap"
    data = FILE.pack(0xA1B2C3D4, 2, 4, 0, 0, 65536, link_type)
    data += b"".join(FRAME.pack(1, 2, len(frame), len(frame)) + frame for frame in contents)
    file.write_bytes(data[:len(data) - cut])
    return file


@pytest.mark.parametrize("frame, expected", [
    (MACS + b"\x88\xe5" + bytes(50), "macsec"),
    (MACS + b"\x08\x06" + bytes(28), "arp"),
    (MACS + b"\x88\x8e" + bytes(50), "ethertype 888e"),
    (ipv4(17, udp(4791)), "udp 4791"),
    (ipv4(17, udp(4791), options=bytes(4)), "udp 4791"),
    (ipv4(6, bytes(20)), "tcp"),
    (ipv4(50, bytes(20)), "esp"),
    (ipv4(47, bytes(20)), "protocol 47"),
    (MACS + b"\x86\xdd" + bytes(6) + b"\x3a" + bytes(33), "icmpv6"),
    (MACS + b"\x86\xdd" + bytes(6) + b"\x11" + bytes(33) + udp(51820), "udp 51820"),
])
def test_the_kind_of_a_frame(frame, expected):
    assert kind(frame) == expected


def test_what_a_capture_holds(tmp_path):
    sent = [ipv4(17, udp(4791) + b"...a secret..."), MACS + b"\x88\xe5" + bytes(50)]
    recording = Recording(frames(capture(tmp_path, *sent)))
    assert recording == sent
    assert recording.kinds() == {"udp 4791", "macsec"}
    assert recording.shows("a secret") and not recording.shows("another secret")


@pytest.mark.parametrize("cut", [1, 60])
def test_a_capture_that_ends_within_a_frame(tmp_path, cut):
    with pytest.raises((ValueError, struct.error)):
        frames(capture(tmp_path, bytes(60), cut=cut))


def test_a_capture_of_something_else(tmp_path):
    with pytest.raises(ValueError, match="no capture of Ethernet frames"):
        frames(capture(tmp_path, link_type=101))
