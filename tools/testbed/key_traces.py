# SPDX-License-Identifier: GPL-2.0
"""Looks for a key wherever root can read what the kernel and programs say: in its log, the settings and files of our
modules, debugfs, the list of keys, and the command lines and environments of programs.

In a guest this is a program: `key_traces.py FILE OTHER...` prints the places that have the key whose text FILE has, in
any form; OTHER are more files to look into."""

import base64
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator

FOLDERS = ("/sys/module", "/sys/class/ibtrs-client", "/sys/class/ibtrs-server", "/sys/class/ibnbd-client",
           "/sys/class/ibnbd-server", "/sys/kernel/config/ibnbd", "/sys/kernel/debug")
# Tracing is long, waits for its readers, and has nothing of ours while nobody traces.
LEFT_OUT = {"tracing"}
# So much of the key is enough to find it.
WINDOW = 6


def forms(key: bytes) -> Iterator[bytes]:
    """Texts that show some bytes of the key in a row, or a part of it as it is."""
    for at in range(0, len(key) - WINDOW):
        part = key[at:at + WINDOW]
        yield from (part, part[::-1], part.hex().encode(), ".".join(map(str, part)).encode())
        # The middle of it, as what is around changes the ends.
        yield base64.b64encode(key[at - at % 3:][:2 * WINDOW])[:12]


def shows(data: bytes, key: bytes) -> bool:
    """Whether data have the key: as bytes, or as numbers with anything between them."""
    text = re.sub(rb"0x", b"", data.lower())
    plain = (data, re.sub(rb"[^0-9a-f]+", b"", text), re.sub(rb"[^0-9]+", b".", text))
    return any(form in each for form in forms(key) for each in plain)


def files() -> Iterator[str]:
    for folder in FOLDERS:
        for where, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            if folder != "/sys/module" or os.path.basename(where) == "parameters":
                yield from (os.path.join(where, name) for name in names)
    yield "/proc/keys"
    for process in filter(str.isdigit, os.listdir("/proc")):
        yield from (f"/proc/{process}/{name}" for name in ("cmdline", "environ"))


def read(path: str) -> bytes:
    """The contents of a file that are there at once; nothing if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(handle, 1 << 16), b""))
    except OSError:
        return b""
    finally:
        os.close(handle)


def main(file: str, *others: str) -> None:
    with open(file, encoding="ascii") as text:
        key = bytes.fromhex(text.read().split(":")[2])
    read_of = {path: read(path) for path in itertools.chain(files(), others)}
    read_of["dmesg"] = subprocess.run(["dmesg"], stdout=subprocess.PIPE, check=True).stdout
    print("read:", sum(1 for data in read_of.values() if data))
    for path, data in read_of.items():
        if shows(data, key):
            print("found:", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
