# SPDX-License-Identifier: GPL-2.0
"""The guest's first root: a static busybox, guest/init, and the modules that a kernel needs to find
its disks and the host."""

import gzip
import hashlib
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from . import paths

INIT = Path(__file__).parent / "guest/init"
FOLDERS = ("bin", "sbin", "dev", "proc", "sys", "host", "modules")


def _entry(name: str, mode: int, data: bytes = b"", device=(0, 0)) -> bytes:
    """One entry of a cpio archive in the format the kernel takes ("newc")."""
    raw = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    out = header + raw
    out += b"\0" * (-len(out) % 4)
    return out + data + b"\0" * (-len(data) % 4)


def build(modules: Sequence[Path] = ()) -> Path:
    """Returns the archive, made again only when one of its parts changed."""
    busybox = shutil.which("busybox")
    if not busybox:
        raise RuntimeError("busybox is not installed: run make setup")
    program, init = Path(busybox).read_bytes(), INIT.read_bytes()
    # Loaded in the order of their names.
    loaded = [(f"modules/{number:02}-{module.name}", module.read_bytes())
              for number, module in enumerate(modules)]
    parts = [program, init, Path(__file__).read_bytes(), *(content for _, content in loaded)]
    key = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
    archive = paths.cache() / "initramfs" / f"{key}.cpio.gz"
    if archive.exists():
        return archive
    content = b"".join(_entry(name, stat.S_IFDIR | 0o755) for name in FOLDERS)
    # The console must be there before devtmpfs is, or PID 1 has no output.
    content += _entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    content += _entry("bin/busybox", stat.S_IFREG | 0o755, program)
    content += _entry("init", stat.S_IFREG | 0o755, init)
    for name, module in loaded:
        content += _entry(name, stat.S_IFREG | 0o644, module)
    content += _entry("TRAILER!!!", 0)
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".new")
    partial.write_bytes(gzip.compress(content, 1))
    partial.rename(archive)
    return archive
