# SPDX-License-Identifier: GPL-2.0
"""register.py DISK BLOCK VERSIONS STOP: writes version 1, 2, ... of a block of a disk, each after the former one was
acknowledged, and reads each back.  After VERSIONS of them, or with 0 after the second or a later one once the file STOP
is there, it prints the history, a line of JSON for each operation: what was done, which version was written or found, when the
operation began and ended by the guest's clock, and the errno with which it failed, if it did.

A block is a version and the block's number over and over; the version of any other content is null."""

import itertools
import json
import mmap
import os
import struct
import sys
import time

BLOCK = 4096
FORMAT = struct.Struct("<QQ")
# Of a history without limit; its length stays reasonable.
PAUSE_S = 0.2


def content(version: int, block: int) -> bytes:
    return FORMAT.pack(version, block) * (BLOCK // FORMAT.size)


def version_of(data: bytes, block: int) -> int | None:
    """The version of a whole block, 0 if it was never written."""
    if not any(data):
        return 0
    version = FORMAT.unpack_from(data)[0]
    return version if data == content(version, block) else None


class Register:
    def __init__(self, disk: str, block: int):
        self.file, self.block = os.open(disk, os.O_RDWR | os.O_DIRECT), block
        # Direct I/O takes memory of whole pages.
        self.page = mmap.mmap(-1, BLOCK)
        self.history: list[dict] = []

    def _do(self, what: str, version: int | None, operation) -> bool:
        entry = {"what": what, "version": version, "began": time.monotonic()}
        try:
            found = operation()
            if what == "read":
                entry["version"] = found
        except OSError as error:
            entry["errno"] = error.errno
        entry["ended"] = time.monotonic()
        self.history.append(entry)
        return "errno" not in entry

    def write(self, version: int) -> bool:
        def operation():
            self.page[:] = content(version, self.block)
            os.pwritev(self.file, [self.page], self.block * BLOCK)
        return self._do("write", version, operation)

    def read(self) -> bool:
        def operation():
            os.preadv(self.file, [self.page], self.block * BLOCK)
            return version_of(bytes(self.page), self.block)
        return self._do("read", None, operation)


def main() -> None:
    disk, block, versions, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    register = Register(disk, block)
    for version in itertools.count(1):
        if not register.write(version) or not register.read():
            break
        if version == versions:
            break
        if not versions:
            if version > 1 and os.path.exists(stop):
                break
            time.sleep(PAUSE_S)
    for entry in register.history:
        print(json.dumps(entry))


if __name__ == "__main__":
    main()
