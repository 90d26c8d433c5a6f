# SPDX-License-Identifier: GPL-2.0
"""Uses a folder as many programs use a file system, until it is told to stop, and records the
expected contents: `fsload.py FOLDER SEED`.

Scenarios run it in a guest.  It ends when FOLDER/../stop appears, and leaves in FOLDER.sums the
checksums that sha256sum should find.  From time to time it prints how many steps it has made
since the last line; if a file is not as it was left, it prints a line of words instead."""

import hashlib
import os
import random
import sys

FOLDERS = 4
# Steps between two reports.
REPORT = 20
FILES = 60
LARGEST = 100_000


class Load:
    def __init__(self, root: str, seed: int):
        self.root, self.random = root, random.Random(seed)
        # The expected contents of each file.
        self.files: dict[str, bytearray] = {}
        self.block = self.random.randbytes(LARGEST)
        for number in range(FOLDERS):
            os.makedirs(f"{root}/{number}", exist_ok=True)

    def name(self) -> str:
        return f"{self.root}/{self.random.randrange(FOLDERS)}/{self.random.randrange(FILES)}"

    def some(self) -> str:
        return self.random.choice(list(self.files)) if self.files else self.write()

    def write(self) -> str:
        """A new file, or another part of an old one."""
        name = self.name()
        content = self.files.setdefault(name, bytearray())
        at = self.random.randrange(len(content) + 1)
        data = self.block[:self.random.randrange(1, LARGEST - at)] if at < LARGEST - 1 else b""
        with open(name, "r+b" if os.path.exists(name) else "w+b") as file:
            file.seek(at)
            file.write(data)
            if self.random.random() < 0.2:
                file.flush()
                os.fsync(file.fileno())
        content[at:at + len(data)] = data
        return name

    def truncate(self) -> None:
        name = self.some()
        length = self.random.randrange(LARGEST)
        os.truncate(name, length)
        content = self.files[name]
        self.files[name] = content[:length] + bytes(max(0, length - len(content)))

    def rename(self) -> None:
        old, new = self.some(), self.name()
        os.rename(old, new)
        self.files[new] = self.files.pop(old)

    def remove(self) -> None:
        name = self.some()
        os.remove(name)
        del self.files[name]

    def read(self) -> None:
        name = self.some()
        with open(name, "rb") as file:
            if file.read() != self.files[name]:
                print(f"{name} is wrong")

    def step(self) -> None:
        steps = (self.write, self.write, self.write, self.truncate, self.rename, self.remove, self.read)
        self.random.choice(steps)()

    def sums(self) -> str:
        """The checksums that sha256sum should find for all files, in order."""
        return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n"
                       for name, content in sorted(self.files.items()))


def main() -> None:
    root, seed = sys.argv[1], int(sys.argv[2])
    load = Load(root, seed)
    while not os.path.exists(f"{root}/../stop"):
        for _ in range(REPORT):
            load.step()
        print(REPORT, flush=True)
    os.sync()
    with open(f"{root}.sums", "w") as file:
        file.write(load.sums())


if __name__ == "__main__":
    main()
