# SPDX-License-Identifier: GPL-2.0
"""The search for a key finds it in each form in which something could show it."""

import base64
import hashlib

import pytest

from testbed.key_traces import shows

KEY = hashlib.sha256(b"right").digest()


@pytest.mark.parametrize("text", [
    KEY.hex(), KEY.hex().upper(), KEY.hex()[10:34], KEY.hex(" "), KEY.hex(":"), ", ".join(f"0x{byte:02x}" for byte in KEY),
    str(list(KEY)), ",".join(map(str, KEY[4:12])), base64.b64encode(KEY).decode()])
def test_texts(text):
    assert shows(f"[   12.3] a line: {text} and more\n".encode(), KEY)


def test_bytes():
    assert shows(b"x" * 7 + KEY, KEY) and shows(KEY[::-1], KEY) and shows(KEY[13:20], KEY)


def test_what_is_no_key():
    other = hashlib.sha256(b"wrong").digest()
    for data in (b"", other, other.hex().encode(), str(list(other)).encode(), KEY[:3] + other, b"0123456789" * 1000):
        assert not shows(data, KEY)
