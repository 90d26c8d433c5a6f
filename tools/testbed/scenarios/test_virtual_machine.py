# SPDX-License-Identifier: GPL-2.0
"""A virtual machine on the client that boots from a mapped disk and uses two."""

import array
import hashlib
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed import accel, blockdev, mishaps
from testbed.lab import wait_for

pytestmark = [pytest.mark.stock, pytest.mark.links(2)]

BOOT = Path(accel.__file__).parent / "guest/boot.S"
# As in there; of each disk.
FIRST, SECTORS, PIECES = 64, 64, 400
DISK_MB = 32
# The system calls by which the emulator asks the kernel.
DRIVES = ("native", "io_uring")


def boot_sector(folder: Path) -> bytes:
    """The machine's whole system: a kernel would take minutes to boot in an emulator
    that is emulated itself."""
    code, sector = folder / "boot.o", folder / "boot"
    subprocess.run(["as", "--32", "--defsym", f"PIECES={PIECES}", "-o", code, BOOT], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", sector, code], check=True)
    return sector.read_bytes()


def emulator(stack) -> str:
    command = [accel.QEMU, "-accel", "tcg,thread=single,tb-size=32", "-m", "16", "-machine", "pc", "-nodefaults",
               "-no-reboot", "-display", "none", "-serial", "stdio"]
    for number, kind in enumerate(DRIVES):
        command += ["-drive", f"file=/dev/{stack.family}{number},format=raw,if=none,id=disk{number},"
                              f"cache=none,aio={kind}",
                    "-device", f"virtio-blk-pci,drive=disk{number},bootindex={number}"]
    # Not with the libraries that stand in for others.
    return f"env -u LD_LIBRARY_PATH {shlex.join(command)}"


def wanted(disk: int) -> str:
    """The checksum of what the machine writes to a disk."""
    digest = hashlib.sha256()
    for piece in range(PIECES):
        number, words = (0x80 + disk) << 24 | (FIRST + piece * SECTORS), array.array("I")
        for _ in range(SECTORS * 512 // 4):
            number = (number * 1664525 + 1013904223) & 0xffffffff
            words.append(number)
        digest.update(words.tobytes())
    return digest.hexdigest()


def found(guest, device: str) -> str:
    """The checksum of that part of a disk."""
    return guest.run(f"dd if={device} bs={SECTORS * 512} skip={FIRST // SECTORS} count={PIECES} iflag=direct "
                     "status=none | sha256sum", timeout=300).split()[0]


def test_drives_of_a_virtual_machine(pair, stack, tmp_path):
    """It writes while one path after the other fails, reads all of it back, and finds it right."""
    server, client = pair
    blockdev.map_two_paths(pair, stack, DISK_MB)
    client.run(stack.map_device(server.null_blk("nullb1", size_mb=DISK_MB)))
    client.run("cd /sys/class/ibtrs-client/demo && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max")
    client.push("/tmp/boot", boot_sector(tmp_path))
    client.run(f"dd if=/tmp/boot of={stack.disk} conv=notrunc,fsync status=none")
    machine = client.start(emulator(stack))

    def goes_on() -> None:
        goal = machine.text.count("w") + 5
        wait_for(lambda: not machine.running or machine.text.count("w") >= goal, 120, "the machine writes")
        assert machine.running, machine.text

    for link in (1, 2):
        goes_on()
        with mishaps.cable_out(pair, client, link):
            wait_for(lambda: blockdev.connected(client) == 1, 60, "the path is lost")
            goes_on()
        wait_for(lambda: blockdev.connected(client) == 2, 60, "the path is back")
    answer = machine.wait(600)
    assert answer == ("w" * PIECES + "r" * PIECES) * len(DRIVES) + "verified"
    with ThreadPoolExecutor() as pool:
        for number in range(len(DRIVES)):
            sums = pool.map(lambda where: found(*where), ((client, f"/dev/{stack.family}{number}"),
                                                          (server, f"/dev/nullb{number}")))
            assert list(sums) == [wanted(number)] * 2
