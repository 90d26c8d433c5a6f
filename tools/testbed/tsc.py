# SPDX-License-Identifier: GPL-2.0
"""Measures the frequency of the host's time stamp counter.

An emulated guest sees the host's counter.  It cannot measure the frequency itself, because its
emulated timers are too slow and its kernel has no ACPI to ask for better ones.  Without the
frequency the guest's clock would tick at 250 Hz.
"""

import ctypes
import mmap
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
_CODE = bytes.fromhex("0f31 48c1e220 4809d0 c3")


def khz(seconds: float = 0.2) -> int:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def sample():
        """A pair of readings that no interruption came between."""
        best = None
        for _ in range(20):
            before = time.monotonic_ns()
            ticks = read()
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, ticks, (before + after) // 2)
        return best[1:]

    first = sample()
    time.sleep(seconds)
    last = sample()
    return round((last[0] - first[0]) * 1_000_000 / (last[1] - first[1]))
