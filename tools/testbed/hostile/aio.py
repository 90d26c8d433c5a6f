# SPDX-License-Identifier: GPL-2.0
"""Reads that are submitted in one system call, as libaio does it."""

import ctypes
import time

# Of x86-64.
IO_SETUP, IO_DESTROY, IO_GETEVENTS, IO_SUBMIT = 206, 207, 208, 209
PREAD = 0

libc = ctypes.CDLL(None, use_errno=True)


class Iocb(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_uint32),
                ("opcode", ctypes.c_uint16), ("reqprio", ctypes.c_int16), ("fd", ctypes.c_uint32),
                ("buf", ctypes.c_uint64), ("nbytes", ctypes.c_uint64), ("offset", ctypes.c_int64),
                ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("resfd", ctypes.c_uint32)]


class Event(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("obj", ctypes.c_uint64), ("res", ctypes.c_int64), ("res2", ctypes.c_int64)]


class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def call(number: int, *arguments) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


def read(fd: int, ranges: list[tuple[int, memoryview]], seconds: float) -> list[int]:
    """Reads to each of these, from each offset; the results of those that end in time, in the order of their ends."""
    context = ctypes.c_ulong()
    call(IO_SETUP, ctypes.c_uint(len(ranges)), ctypes.byref(context))
    blocks = [Iocb(opcode=PREAD, fd=fd, buf=ctypes.addressof(ctypes.c_char.from_buffer(to)), nbytes=len(to), offset=at)
              for at, to in ranges]
    pointers = (ctypes.POINTER(Iocb) * len(blocks))(*map(ctypes.pointer, blocks))
    submitted = call(IO_SUBMIT, context, ctypes.c_long(len(blocks)), pointers)
    assert submitted == len(blocks), f"{submitted} were submitted"
    results, deadline = [], time.monotonic() + seconds
    events = (Event * len(blocks))()
    while len(results) < len(blocks) and time.monotonic() < deadline:
        count = call(IO_GETEVENTS, context, ctypes.c_long(1), ctypes.c_long(len(blocks)), events,
                     ctypes.byref(Timespec(1, 0)))
        results += [event.res for event in events[:count]]
    if len(results) == len(blocks):
        call(IO_DESTROY, context)
    return results
