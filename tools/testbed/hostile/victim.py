# SPDX-License-Identifier: GPL-2.0
"""Drives the kernel's client against a lying server: maps its disk, uses it, and checks that the
disk can be removed again.

Only plain system calls, because nothing here may depend on the behaviour of the disk."""

import errno
import glob
import mmap
import os
import signal
import threading
import time


ADDRESS = "10.0.1.1"
CTL = "/sys/class/ibnbd-client/ctl/map_device"
DISCOVER = "/sys/class/ibnbd-client/ctl/discover"
DISCOVERED = "/sys/class/ibnbd-client/ctl/discovered"
SESSIONS = "/sys/class/ibtrs-client"
# A request that nobody answers ends after the time that its session waits.
TIME_LIMIT = 60.0
MINE = 0x5A
# So long that the read's own memory is registered, and so short that its data lands in a buffer.
LONG, SHORT = 8192, 4096
# Larger than each error of user space.
UNKNOWN = 255
# Where the user reads and writes; see server.SPOT.
SPOT = 2048 * 512


class Stuck(AssertionError):
    """A call of a user does not come back."""


def in_time(call, seconds: float = TIME_LIMIT):
    """The result of call(), if it returns in time.  The thread of one that does
    not is left to itself."""
    outcome = {}

    def run():
        try:
            outcome["value"] = call()
        except OSError as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Stuck(f"a system call takes longer than {seconds:.0f} s")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def error_of(call, seconds: float = TIME_LIMIT) -> str:
    """The name of the error that a call ends with, "OK" without one."""
    try:
        in_time(call, seconds)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "OK"


def write_or_be_killed(path: str, text: bytes, seconds: float) -> str:
    """Writes to a file in a process of its own, which has so much time."""
    child = os.fork()
    if child == 0:
        try:
            fd = os.open(path, os.O_WRONLY)
            os.write(fd, text)
            os._exit(0)
        except OSError as error:
            # A status has eight bits: no error may look like success.
            os._exit(error.errno if error.errno < UNKNOWN else UNKNOWN)
    deadline = time.monotonic() + seconds
    killed = False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline and not killed:
            os.kill(child, signal.SIGKILL)
            killed, deadline = True, time.monotonic() + TIME_LIMIT
        elif time.monotonic() > deadline:
            raise Stuck("a user who was killed while he maps does not end")
        time.sleep(0.01)
    if os.WIFSIGNALED(status):
        return "KILLED"
    code = os.waitstatus_to_exitcode(status)
    assert code != UNKNOWN, "a user gets an error that user space does not have"
    return errno.errorcode.get(code, str(code)) if code else "OK"


def disks() -> set[str]:
    return set(glob.glob("/sys/block/ibnbd*"))


class Victim:
    """One session with the server that lies."""

    def __init__(self, name: str, port: int, tell, device: str = "/dev/lie"):
        self.name, self.port, self.device = name, port, device
        # Has the server do something, by name, and waits for what it says.
        self.tell = tell
        # More words for map_device.
        self.options = ""
        self.disk: str | None = None
        self.fd = -1
        self.page = mmap.mmap(-1, 1 << 17)

    def session_line(self) -> str:
        return f"sessname={self.name} path=ip:{ADDRESS} dest_port={self.port}"

    def line(self) -> bytes:
        return f"{self.session_line()} device_path={self.device}{self.options}".encode()

    def discover(self, seconds: float = TIME_LIMIT) -> str:
        """Asks for the exports, in a process that is killed after that time; the name of the error, "OK" or
        "KILLED"."""
        return write_or_be_killed(DISCOVER, self.session_line().encode(), seconds)

    def listed(self) -> list[str]:
        """The lines that are shown of the exports."""
        pages = sorted(glob.glob(f"{DISCOVERED}/{self.name}/*/exports"), key=lambda path: int(path.split("/")[-2]))
        lines = []
        for page in pages:
            with open(page) as file:
                lines += file.read().splitlines()
        return lines

    def map(self, seconds: float = TIME_LIMIT) -> str:
        """Maps the disk, in a process that is killed after that time; the name of the
        error, "OK" or "KILLED"."""
        before = disks()
        said = write_or_be_killed(CTL, self.line(), seconds)
        new = disks() - before
        if said == "KILLED" and new:
            # Just before.
            said = "OK"
        if said == "OK":
            assert len(new) == 1, f"mapped, and there are {len(new)} new disks"
            (self.disk,) = new
        else:
            assert not new, f"not mapped ({said}), and there is a new disk"
        return said

    def must_map(self) -> "Victim":
        said = self.map()
        assert said == "OK", f"map_device of an honest server: {said}"
        return self

    def attribute(self, path: str, value: str | None = None) -> str:
        """Reads an attribute of the disk, or writes it."""
        with open(f"{self.disk}/{path}", "w" if value is not None else "r") as file:
            if value is None:
                return file.read().strip()
            file.write(value)
        return ""

    def session(self, name: str, value: int | str) -> None:
        with open(f"{SESSIONS}/{self.name}/{name}", "w") as file:
            file.write(str(value))

    def shown(self, name: str) -> str:
        """What a file of the session shows."""
        with open(f"{SESSIONS}/{self.name}/{name}") as file:
            return file.read().strip()

    def fail_fast(self) -> "Victim":
        """Makes I/O fail soon if no path carries it or the server does not answer it; without
        limits it waits forever."""
        self.session("queue_timeout_s", 2)
        self.attribute("queue/io_timeout", "3000")
        self.attribute("ibnbd/io_timeout_limit", "2")
        return self

    def _descriptor(self) -> int:
        if self.fd < 0:
            node = "/dev/" + os.path.basename(self.disk)
            deadline = time.monotonic() + 10
            while not os.path.exists(node) and time.monotonic() < deadline:
                time.sleep(0.05)
            # Opening a disk may have to wait for the partition scan.
            self.fd = in_time(lambda: os.open(node, os.O_RDWR | os.O_DIRECT))
        return self.fd

    def fill(self) -> None:
        """From here on, only the victim writes to the memory of reads."""
        self.page[:] = bytes([MINE]) * len(self.page)

    def is_filled(self, since: int = 0) -> bool:
        return self.page[since:] == bytes([MINE]) * (len(self.page) - since)

    def read(self, length: int = LONG, at: int = SPOT, seconds: float = TIME_LIMIT) -> str:
        """Reads past the page cache to the start of `page`; the name of the error, or "OK"."""
        fd = self._descriptor()
        return error_of(lambda: os.preadv(fd, [memoryview(self.page)[:length]], at), seconds)

    def write(self, length: int = 4096, at: int = SPOT, seconds: float = TIME_LIMIT) -> str:
        fd = self._descriptor()
        return error_of(lambda: os.pwritev(fd, [memoryview(self.page)[:length]], at), seconds)

    def beside(self, call) -> threading.Thread:
        """Does something while the next things are done; what it ends with is nobody's concern."""
        thread = threading.Thread(target=lambda: error_of(call), daemon=True)
        thread.start()
        return thread

    def unmap_disk(self, seconds: float = TIME_LIMIT) -> None:
        """Unmaps by force."""
        if self.disk is not None:
            said = error_of(lambda: self.attribute("ibnbd/unmap_device", "force"), seconds)
            assert said == "OK", f"unmap by force: {said}"
            self.disk = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def unmap(self) -> None:
        """Unmaps by force, and sees that the session goes as well."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.unmap_disk()
        deadline = time.monotonic() + TIME_LIMIT
        while os.path.exists(f"{SESSIONS}/{self.name}"):
            assert time.monotonic() < deadline, "the session stays when its disk has gone"
            time.sleep(0.05)
