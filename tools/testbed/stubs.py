# SPDX-License-Identifier: GPL-2.0
"""Libraries that stand in for large ones that fio needs.

Debian's fio has engines for Ceph, GlusterFS and the like, whose libraries are a hundred megabytes:
on a kernel that checks itself, fio would spend most of its time on starting.  Nothing here calls
these engines, so libraries with the same names and symbols will do; each symbol ends the program."""

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import paths

# A library, and what its symbols begin with.
LIBRARIES = {"librbd.so.1": "rbd_", "librados.so.2": "rados_", "libgfapi.so.0": "glfs_",
             "libnbd.so.0": "nbd_", "libpmemblk.so.1": "pmemblk_", "libpmem.so.1": "pmem_"}


def symbols(listing: str) -> dict[str, str]:
    """The undefined symbols in a listing of `objdump -T`, and their versions
    ("" for those without one)."""
    found = re.findall(r"\*UND\*\s+[0-9a-f]+\s+(?:\(?([\w.]+)\)?\s+)?(\w+)$", listing, re.M)
    return {name: "" if version == "Base" else version for version, name in found}


def version_script(wanted: dict[str, str]) -> str:
    """For the linker: which symbol belongs to which version."""
    return "\n".join(
        f"{version} {{ {' '.join(f'{name};' for name, its in wanted.items() if its == version)} }};"
        for version in sorted(set(wanted.values())))


def _make(folder: Path, library: str, wanted: dict[str, str]) -> None:
    source, script = folder / "stub.c", folder / "versions"
    source.write_text("\n".join(f"void {name}(void) {{ __builtin_trap(); }}" for name in wanted))
    script.write_text(version_script(wanted))
    subprocess.run(["gcc", "-shared", "-nostdlib", "-fPIC", f"-Wl,-soname,{library}",
                    f"-Wl,--version-script,{script}", "-o", folder / library, source], check=True)
    source.unlink()
    script.unlink()


def build() -> Path:
    """Returns the folder of the libraries, made once for each fio."""
    fio = shutil.which("fio")
    if not fio:
        raise RuntimeError("fio is not installed: run make setup")
    key = hashlib.sha256(Path(fio).read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    target = paths.cache() / "stubs" / key
    if target.exists():
        return target
    listing = subprocess.run(["objdump", "-T", fio], capture_output=True, text=True, check=True).stdout
    wanted = symbols(listing)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent))
    for library, prefix in LIBRARIES.items():
        own = {name: version for name, version in wanted.items() if name.startswith(prefix)}
        if own:
            _make(folder, library, own)
    try:
        folder.rename(target)
    except OSError:
        # Somebody else was faster.
        shutil.rmtree(folder)
    return target
