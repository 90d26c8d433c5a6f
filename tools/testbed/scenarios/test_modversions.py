# SPDX-License-Identifier: GPL-2.0
"""A kernel that gives symbols versions (CONFIG_MODVERSIONS): modules of one build work together, and one
that was built with another idea of a function is refused."""

import re
import struct
import subprocess
from pathlib import Path

import pytest

from testbed import blockdev, fio

pytestmark = pytest.mark.versions

# Each is loaded after those before it.
OURS = ("ibtrs_core", "ibtrs_client", "ibnbd_client")
VERIFY = ("--name=verify --filename={disk} --rw=randrw --bsrange=4k-128k --size=16m --iodepth=8 --direct=1 "
          "--ioengine=io_uring --verify=crc32c --verify_fatal=1")


class Module:
    """A module's file, with the versions of the symbols that it needs: these are in two sections, one
    of numbers and one of names."""

    def __init__(self, file: Path):
        self.data = bytearray(file.read_bytes())
        headers = subprocess.run(["readelf", "-SW", file], capture_output=True, text=True, check=True).stdout
        self.sections = {name: (int(offset, 16), int(size, 16)) for name, offset, size in
                         re.findall(r"\] (__version_ext_\w+)\s+\w+\s+\w+ (\w+) (\w+)", headers)}
        self.names = self._section("names").decode().rstrip("\0").split("\0")
        self.versions = dict(zip(self.names, struct.unpack(f"<{len(self.names)}I", self._section("crcs")), strict=True))

    def _section(self, what: str) -> bytes:
        offset, size = self.sections[f"__version_ext_{what}"]
        return bytes(self.data[offset:offset + size])

    def needs(self, pattern: str) -> str:
        """The first symbol whose name fits."""
        return next(name for name in self.names if re.search(pattern, name))

    def spoil(self, name: str) -> bytes:
        """The file, with another version of this symbol."""
        data = self.data.copy()
        data[self.sections["__version_ext_crcs"][0] + 4 * self.names.index(name)] ^= 1
        return bytes(data)


@pytest.fixture
def modules(pair) -> dict[str, Module]:
    """All of ours."""
    return {file.stem: Module(file) for file in pair.client.spec.kernel.our_modules.glob("*.ko")}


def exported(pair) -> set[str]:
    """The symbols that our modules define."""
    files = pair.client.spec.kernel.our_modules.glob("*.ko")
    listing = subprocess.run(["nm", "--defined-only", *files], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^\w+ [A-Z] (_R\w+)$", listing, re.M))


def test_a_disk_works(pair, stack):
    device = blockdev.map_new(pair, stack, size_mb=16)
    fio.run(pair.client, VERIFY.format(disk=stack.disk))
    assert blockdev.same_on_both(pair, device, stack.disk, 16)
    pair.client.run(stack.unmap())


def test_each_symbol_of_ours_has_a_version(pair, modules):
    own = exported(pair)
    needed = {name: version for module in modules.values() for name, version in module.versions.items() if name in own}
    assert len(needed) > 300
    assert [name for name, version in needed.items() if version == 0] == []
    # Not one for all of them.
    assert len(set(needed.values())) > len(needed) / 2


def test_another_version_is_refused(pair, stack, modules):
    """Of a function in C, of one in Rust of the kernel, and of ours, also one whose types are not known."""
    client = pair.client
    own = exported(pair)
    cases = [("ibtrs_core", "^rdma_"), ("ibtrs_core", "^_R.*6kernel"), ("ibtrs_client", "^_R.*4rdma"),
             ("ibnbd_client", "^_R.*ibtrs_client"), ("ibnbd_client", "UnmapMode5parse")]
    for name, pattern in cases:
        symbol = modules[name].needs(pattern)
        assert (symbol in own) == (name != "ibtrs_core")
        (client.share / f"{name}.ko").write_bytes(modules[name].spoil(symbol))
        client.run(f"dmesg -C; modprobe {name} && busybox rmmod {name}")
        assert not client.ok(f"busybox insmod /mnt/share/{name}.ko"), symbol
        log = client.run("dmesg")
        assert f"{name}: disagrees about version of symbol {symbol}" in log
        # The same file with the right version is taken.
        (client.share / f"{name}.ko").write_bytes(modules[name].data)
        client.run(f"busybox insmod /mnt/share/{name}.ko && busybox rmmod {name}")
        for below in reversed(OURS[:OURS.index(name)]):
            client.run(f"busybox rmmod {below}")
