# SPDX-License-Identifier: GPL-2.0
"""The places of the repository, the cache, and the kernels built there."""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """The same folder that scripts/env.sh calls $IBTRS_CACHE."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("IBTRS_CACHE") or Path(base) / "ibtrs")


# This checkout's name in the cache, which scripts/env.sh calls $CHECKOUT.
CHECKOUT = hashlib.sha256(f"{TOP}\n".encode()).hexdigest()[:12]


def modules(flavour: str) -> Path:
    """Where this checkout's modules are: in what scripts/env.sh calls $MODULES."""
    return cache() / "modules" / CHECKOUT / flavour


def crates() -> Path:
    """Where this checkout's host crates are built: what scripts/env.sh calls $CRATES."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or cache() / "cargo" / CHECKOUT)


@dataclass(frozen=True)
class Kernel:
    """A test kernel and the modules of ours that belong to it."""

    flavour: str
    build: Path
    # The folder that `make modules FLAVOUR=...` leaves our modules in.
    our_modules: Path

    @property
    def image(self) -> Path:
        return self.build / "arch/x86/boot/bzImage"

    @property
    def release(self) -> str:
        return (self.build / "include/config/kernel.release").read_text().strip()

    @property
    def slow(self) -> bool:
        """Whether the kernel checks itself: everything takes longer."""
        return self.flavour not in ("fast", "stock", "versions")

    @property
    def boot_modules(self) -> list[Path]:
        """The modules that must be loaded before anything else, in this order: a kernel of
        our own needs nothing."""
        names = self.build / "modules.boot"
        return [self.build / "kernel" / name for name in names.read_text().split()] if names.exists() else []


# Kernels of our own, and Debian's, which has no checks in it and no RNBD.
FLAVOURS = ("fast", "debug", "kcsan", "versions", "stock")


def kernel(flavour: str) -> Kernel:
    """Finds the kernel of a flavour, building or fetching it if it is not in the
    cache."""
    script = TOP / "scripts/build-kernel.sh"
    done = subprocess.run([script, flavour], stdout=subprocess.PIPE, text=True, check=True)
    return Kernel(flavour, Path(done.stdout.splitlines()[-1]), modules(flavour))


def _made_by(script: str) -> Path:
    done = subprocess.run([TOP / "scripts" / script], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


def guest_tree() -> Path:
    """The Debian with systemd that guests can boot into, made if it is not in the cache."""
    return _made_by("guest-tree.sh")


def package_tree() -> Path:
    """A Debian like that in which our packages, as they are now, are installed."""
    return _made_by("package-tree.sh")
