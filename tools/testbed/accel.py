# SPDX-License-Identifier: GPL-2.0
"""Chooses how the guests' processors run: on the host's processors (KVM) if that works."""

import functools
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import initramfs, paths, tsc

QEMU = "qemu-system-x86_64"
# Four levels of page tables: walking five costs time, and KASAN takes the wrong
# limit for its shadow when an interrupt comes while the kernel finds out.
TCG_CPU = "max,la57=off"
# What is fast on real processors, a byte at a time by one instruction, is the
# slowest way here.
NO_FAST_STRINGS = "erms=off,fsrm=off,fzrm=off,fsrs=off,fsrc=off"
# Where instructions are counted, such an instruction would count each byte, too.  The family of `max` is that
# of the Athlon of 1999, on which the kernel copies a page by a loop of 1,350 instructions.  On the processors of the
# last twenty years it does so by `rep movsq` (rep_good), which counts 512.  This is the processor of `qemu64`.
COUNTING_CPU = f"{TCG_CPU},{NO_FAST_STRINGS},family=15,model=107,stepping=1"


@dataclass(frozen=True)
class Accel:
    name: str
    qemu: tuple[str, ...]
    kernel_arguments: str = ""
    # Whether instructions are counted, by one host thread for all processors.
    counts: bool = False


def kvm() -> Accel:
    return Accel("kvm", ("-accel", "kvm", "-cpu", "host"))


def tcg() -> Accel:
    """One host thread for each processor of the guest."""
    return Accel("tcg", ("-accel", "tcg,thread=multi", "-cpu", f"{TCG_CPU},{NO_FAST_STRINGS}"),
                 f"tsc=reliable tsc_early_khz={tsc.khz()}")


def counting(*more: str, sleep: bool = False) -> Accel:
    """The guest's clock advances one nanosecond with each instruction, so
    times are counts, the same on every machine and under every load.  There may
    be more arguments for the emulator.

    While the guest is idle, its clock leaps to its next timer. With `sleep` it follows
    the host's, for guests that wait for others, and then only counts are right."""
    return Accel("count", ("-accel", "tcg,thread=single", "-cpu", COUNTING_CPU,
                           "-icount", f"shift=0,sleep={'on' if sleep else 'off'},align=off", *more),
                 "tsc=reliable tsc_early_khz=1000000", counts=True)


BY_NAME = {"kvm": kvm, "tcg": tcg, "count": counting}


def _boots_with_kvm(kernel: paths.Kernel) -> bool:
    """A KVM that opens but cannot run an ordinary kernel is common on rented
    machines, so nothing less than a boot tells."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    command = [QEMU, *kvm().qemu, "-m", "256", "-nodefaults", "-no-reboot", "-display", "none",
               "-serial", "stdio", "-kernel", str(kernel.image),
               "-initrd", str(initramfs.build(kernel.boot_modules)),
               "-append", "console=ttyS0 panic=-1 reboot=t testbed.probe"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return b"testbed: booted" in done.stdout


@functools.cache
def choose(kernel: paths.Kernel) -> Accel:
    """The best that works here, found out once in each boot of the host."""
    forced = os.environ.get("IBTRS_ACCEL")
    if forced:
        return BY_NAME[forced]()
    version = subprocess.run([QEMU, "--version"], capture_output=True, check=True).stdout
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    key = hashlib.sha256(version + boot_id).hexdigest()[:12]
    known = paths.cache() / "accel" / key
    if not known.exists():
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text("kvm" if _boots_with_kvm(kernel) else "tcg")
    name = known.read_text()
    if name == "tcg":
        print("==> KVM does not work here: the guests are emulated, which is slower "
              "and otherwise the same", file=sys.stderr)
    return BY_NAME[name]()
