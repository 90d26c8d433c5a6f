# SPDX-License-Identifier: GPL-2.0
"""The guests' /lib/modules: the kernel's own modules and ours, with their dependencies for modprobe."""

import os
import shutil
import subprocess
from pathlib import Path

from .paths import Kernel


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def stage(kernel: Kernel, target: Path, more: Path | None = None) -> None:
    """Fills `target`/<release>.  The folders are flat: the guests read them
    over 9p, where a deep tree costs time."""
    release = target / kernel.release
    for folder in ("kernel", "extra"):
        (release / folder).mkdir(parents=True, exist_ok=True)
    for line in (kernel.build / "modules.order").read_text().split():
        module = kernel.build / Path(line).with_suffix(".ko")
        _link(module, release / "kernel" / module.name)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        if (kernel.build / name).exists():
            shutil.copy(kernel.build / name, release)
    restage(kernel, target, more)


def restage(kernel: Kernel, target: Path, more: Path | None = None) -> None:
    """Takes our modules in as they are now, also while guests run; `more` is a folder with others."""
    extra = target / kernel.release / "extra"
    for old in extra.iterdir():
        old.unlink()
    if kernel.our_modules.is_dir():
        for module in kernel.our_modules.glob("*.ko"):
            shutil.copy(module, extra)
    for module in more.rglob("*.ko") if more else ():
        shutil.copy(module, extra)
    # depmod wants the usual place below a base folder.
    base = target.parent / "depmod"
    (base / "lib").mkdir(parents=True, exist_ok=True)
    lib = base / "lib/modules"
    if not lib.is_symlink():
        lib.symlink_to(target)
    depmod = shutil.which("depmod", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    subprocess.run([depmod or "depmod", "-b", base, kernel.release], check=True)
