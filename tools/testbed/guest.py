# SPDX-License-Identifier: GPL-2.0
"""One guest: a virtual machine, and the line that carries commands to it."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import initramfs, klog, paths, stubs
from .accel import QEMU, Accel
from .channel import Channel, Job, Output
from .paths import Kernel
from .qmp import Qmp

SERVER = Path(__file__).parent / "guest/server.py"
# Additional files of a guest with systemd: the server's unit, and those that `make install` installs.
SYSTEMD = (Path(__file__).parent / "guest/testbed.service", paths.TOP / "tools/udev/60-ibnbd.rules")

# The command line of every kernel.  The guests are often emulated on a busy machine,
# so the watchdogs for stalled tasks wait longer.
COMMAND_LINE = (
    "console=ttyS0 loglevel=7 pty.legacy_count=0 8250.nr_uarts=1 log_buf_len=1M panic=-1 reboot=t no_timer_check "
    "rcupdate.rcu_cpu_stall_timeout=240 "
    # rxe fails a queue pair that has to send a registration again, and after
    # half a second without an answer it does; emulated guests are that slow.
    "ibtrs_client.ack_timeout=20"
)


@dataclass
class Spec:
    """The parts of a guest."""

    name: str
    kernel: Kernel
    accel: Accel
    modules: Path
    cpus: int = 2
    nics: list[list[str]] = field(default_factory=list)
    disks: list[Path] = field(default_factory=list)
    kernel_arguments: str = ""
    # A Debian that the guest boots into with systemd, writable in its memory; without one
    # it has the host's files and no init.
    tree: Path | None = None
    # The files that are put into its Debian when it boots, by their paths: texts, and bytes that only root reads.
    files: dict[str, str | bytes] = field(default_factory=dict)
    # An initramfs that finds a root of its own; without one the testbed's, which boots into the tree.
    initrd: Path | None = None
    # Its memory in MiB, if not as much as guests usually need.
    memory: int | None = None

    @property
    def memory_mb(self) -> int:
        """The memory that it needs: booting and kmemleak's scans take time for each page.
        A path with chunks of the usual size takes 77 MiB of the server."""
        if self.memory:
            return self.memory
        if self.tree:
            return 2048
        return 768 if self.kernel.slow else 1536


class DidNotBoot(RuntimeError):
    """The guest did not come up; nothing of ours is loaded by then.

    Seen with QEMU 10.0, each once in some hundred boots of a busy machine: an assertion of
    its own, about a mapping that another processor of the guest has just changed
    (iotlb_to_section); a processor that meets a breakpoint which another one had set to
    patch the kernel's code, and has taken away again ("Oops: int3"); a guest that prints
    "Run /init as init process" and then nothing."""

    def __init__(self, guest: str, reason: str, details: str):
        super().__init__(f"guest {guest} did not come up: {reason}\n{details}")
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """How long a boot may take, in seconds."""

    # Without anything new on the console.
    silence: float
    # In all, whatever the console says.
    total: float


# Alone on a machine, an emulated guest of the fast kernel is up after 5 s, one of the debug
# kernel after 15 to 40 s; on a busy one after several times that.
FAST, SLOW = Limits(60, 240), Limits(120, 600)
# One whose instructions are counted has a single thread of the host, and its figures do not
# depend on how much of a processor that gets, so its limits are generous.
COUNTED = Limits(600, 1800)


class Progress:
    """Tells a boot that is slow from one that stands still, by the size of the console's log."""

    def __init__(self, limits: Limits, now: float):
        self.limits, self.started, self.since, self.size = limits, now, now, 0

    def stuck(self, now: float, size: int) -> str | None:
        """Why there is no sense in waiting any longer, if there is none."""
        if size != self.size:
            self.size, self.since = size, now
        if now - self.since > self.limits.silence:
            return f"nothing new on its console for {now - self.since:.0f} s"
        if now - self.started > self.limits.total:
            return f"not up after {now - self.started:.0f} s"
        return None


def wait_for(condition, timeout: float, what: str, pause: float = 0.1) -> None:
    """Waits until condition() holds.  It is not asked again for as long as it took, a
    second at most, so that guests have time for what is waited for."""
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(max(pause, min(time.monotonic() - asked, 1)))


def _die_with_parent() -> None:
    """No guest outlives the program that started it.  The signal comes when the thread ends that
    started it (prctl(2), PR_SET_PDEATHSIG), so that has to be the launcher's."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


# A thread that starts all guests and ends with the program.
_LAUNCHER = ThreadPoolExecutor(1)


class Guest:
    def __init__(self, spec: Spec, folder: Path):
        self.spec, self.name, self.folder = spec, spec.name, folder
        # Files that both the host and the guest write: the guest sees them
        # in /mnt/share.
        self.share = folder / "share"
        self.share.mkdir(parents=True, exist_ok=True)
        shutil.copy(SERVER, self.share)
        if spec.tree:
            for file in SYSTEMD:
                shutil.copy(file, self.share)
            for path, text in spec.files.items():
                file = self.share / "files" / path.removeprefix("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(text, bytes):
                    file.write_bytes(text)
                    # A secret.
                    file.chmod(0o400)
                else:
                    file.write_text(text)
        else:
            shutil.copytree(stubs.build(), self.share / "lib", dirs_exist_ok=True)
        self.console = folder / "console.log"
        self.command_log = folder / "commands.log"
        self.booted_in = 0.0
        self.unplugged: set[int] = set()
        # None until its line is there.
        self.channel: Channel | None = None
        self._qmp: Qmp | None = None
        self._hot = 0
        self._echo = None
        # Seconds for a command that has none of its own.
        self.command_timeout = 120.0
        self.log = klog.Log(self.console)
        errors = open(folder / "qemu.log", "wb")
        self.started = time.monotonic()
        self.process = _LAUNCHER.submit(
            subprocess.Popen, self._command(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            preexec_fn=_die_with_parent).result()
        errors.close()

    def _command(self) -> list[str]:
        spec, folder = self.spec, self.folder
        systemd = ["testbed.systemd", "net.ifnames=0"] if spec.tree else []
        command = [
            # Its output is in its log at once.
            "stdbuf", "-oL", QEMU, *spec.accel.qemu,
            "-machine", "pc", "-nodefaults", "-no-reboot", "-display", "none",
            "-name", self.name, "-m", str(spec.memory_mb),
            # One processor a socket: without ACPI the kernel finds no others.
            "-smp", f"{spec.cpus},sockets={spec.cpus}",
            "-kernel", str(spec.kernel.image),
            "-initrd", str(spec.initrd or initramfs.build(spec.kernel.boot_modules)),
            "-append", " ".join([COMMAND_LINE, spec.accel.kernel_arguments,
                                 f"testbed.name={self.name}", *systemd, spec.kernel_arguments]),
            "-serial", f"file:{self.console}",
            "-qmp", f"unix:{folder}/qmp,server=on,wait=off",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=line,path={folder}/line,server=on,wait=off",
            "-device", "virtserialport,nr=1,chardev=line",
            "-chardev", f"socket,id=term,path={folder}/term,server=on,wait=off",
            "-device", "virtconsole,nr=2,chardev=term",
        ]
        shares = (("root", spec.tree or "/", ",readonly=on"), ("share", self.share, ""),
                  ("modules", spec.modules, ",readonly=on"))
        for tag, path, mode in shares:
            command += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{mode}",
                        "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        for nic in spec.nics:
            command += nic
        for number, disk in enumerate(spec.disks):
            command += ["-drive", f"file={disk},format=raw,if=none,id=disk{number},discard=unmap",
                        "-device", f"virtio-blk-pci,drive=disk{number},serial={disk.stem[:20]}"]
        return command

    # Life and death.

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def cpu_seconds(self) -> float:
        """The processor time that the guest has taken on the host, if it is alive."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            return 0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def wait_booted(self) -> None:
        """Waits until the guest takes commands.  One that does not come up is killed."""
        limits = SLOW if self.spec.kernel.slow or self.spec.tree else FAST
        if self.spec.accel.counts:
            limits = COUNTED
        try:
            self.channel = Channel(self.name, self.folder / "line", lambda: self.alive, limits.silence)
            reason = self._watch(Progress(limits, time.monotonic()))
        except OSError as error:
            reason = self.ended() or f"its emulator cannot be reached ({error})"
        if reason:
            self.kill()
            raise DidNotBoot(self.name, reason, "\n".join(
                [(self.folder / "qemu.log").read_text(errors="replace"), *self.log.lines()[-30:]]))
        self.booted_in = time.monotonic() - self.started

    def _watch(self, progress: Progress) -> str | None:
        """Waits for the guest's first word; returns the reason if it is not to be waited for."""
        while not self.channel.hello.wait(0.2):
            size = self.console.stat().st_size if self.console.exists() else 0
            if reason := self.ended() or progress.stuck(time.monotonic(), size):
                return reason
        return None

    def ended(self) -> str | None:
        """How its emulator ended, if it has."""
        return None if self.alive else f"its emulator ended ({self.process.returncode})"

    def kill(self) -> None:
        """Pulls the plug."""
        if self.alive:
            self.process.kill()
        self.process.wait()

    # Commands.

    def run(self, command: str, timeout: float | None = None, check: bool = True) -> Output:
        """Runs a shell command and returns what it printed.  A status other
        than 0 is an exception, unless `check` is off: then look at .status."""
        return self.start(command).wait(timeout or self.command_timeout, check)

    def counted_ms(self, command: str) -> float:
        """The processor time of a shell command, in milliseconds of a guest whose clock counts instructions: a
        million of them each. That clock also runs while the guest's processors wait for the host."""
        assert self.spec.accel.counts
        loop = f"for n in 1 2 3 4 5 6 7 8 9 10; do {command} > /dev/null; done"
        said = self.run(f"TIMEFORMAT='%U %S'; {{ time {loop}; }} 2>&1", timeout=300)
        return sum(map(float, said.split())) * 1000 / 10

    def start(self, command: str) -> Job:
        """Starts a shell command that runs beside others; see channel.Job."""
        with open(self.command_log, "a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {command}\n")
        if self._echo:
            self._echo(self, command)
        return self.channel.start(command)

    def echo(self, show) -> None:
        """Has show(guest, command) called before every command."""
        self._echo = show

    def ok(self, command: str, timeout: float | None = None) -> bool:
        return self.run(command, timeout, check=False).ok

    def push(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Writes a file in the guest."""
        data = content.encode() if isinstance(content, str) else content
        self.channel.push(path, data, mode)

    def wait_until(self, command: str, timeout: float = 60) -> None:
        """Waits until a command succeeds."""
        wait_for(lambda: self.ok(command), timeout, f"{self.name}: {command}", pause=0.2)

    def wait_for_log(self, words: str, timeout: float = 60) -> None:
        """Waits until the kernel's log has this (a regular expression of grep).  All of the log is
        read: with -q grep would leave dmesg with a closed pipe, which fails the command once
        there is more to come than the pipe takes."""
        self.wait_until(f"dmesg | grep -c {shlex.quote(words)}", timeout)

    def uptime(self) -> float:
        """Seconds since it booted, by its own clock, as in its log."""
        return float(self.run("read -r now _ < /proc/uptime; echo $now"))

    # Events of machines.

    @property
    def qmp(self) -> Qmp:
        if self._qmp is None:
            self._qmp = Qmp(self.folder / "qmp")
        return self._qmp

    def freeze(self) -> None:
        """Stops the guest's processors: it answers nothing, but is not gone."""
        self.qmp("stop")

    def thaw(self) -> None:
        self.qmp("cont")

    def cable(self, link: int, plugged: bool) -> None:
        """Pulls or plugs in the cable of a link, counted from 1."""
        self.qmp("set_link", name=f"nic{link}", up=plugged)
        (self.unplugged.discard if plugged else self.unplugged.add)(link)

    def plug_all(self) -> None:
        """Plugs in what was pulled."""
        for link in list(self.unplugged):
            self.cable(link, plugged=True)

    # Block devices to export.

    def add_disk(self, image: Path) -> str:
        """Plugs a disk in, an image on the host, as /dev/vd<letter>, and returns its
        path.  A guest that boots again has it no more."""
        name = f"hot{self._hot}"
        self._hot += 1
        before = set(self._disks())
        self.qmp("blockdev-add", **{"driver": "raw", "node-name": name, "discard": "unmap",
                                    "file": {"driver": "file", "filename": str(image), "discard": "unmap"}})
        self.qmp("device_add", driver="virtio-blk-pci", id=name, drive=name, serial=image.stem[:20])
        # Without ACPI, the guest has to scan its bus.
        self.run("echo 1 > /sys/bus/pci/rescan")
        (new,) = set(self._disks()) - before
        return f"/dev/{new}"

    def _disks(self) -> list[str]:
        return self.run("cd /sys/block && ls -d vd* 2> /dev/null || true").split()

    def null_blk(self, name: str = "nullb0", size_mb: int = 256, block_size: int = 512, slow_ns: int = 0) -> str:
        """Makes a disk in the guest's memory and returns its path. Each request may take a while, and so does
        making the disk then, as the kernel looks for partitions."""
        slow = f"echo 2 > irqmode && echo {slow_ns} > completion_nsec && " if slow_ns else ""
        folder = f"/sys/kernel/config/nullb/{name}"
        self.run("{ [ -e /sys/module/null_blk ] || modprobe null_blk nr_devices=0; } && "
                 f"mkdir {folder} && cd {folder} && echo {size_mb} > size && "
                 f"echo {block_size} > blocksize && echo 1 > memory_backed && {slow}echo 1 > power",
                 timeout=300 if slow_ns else None)
        return f"/dev/{name}"

    def remove_null_blk(self, name: str = "nullb0") -> None:
        self.run(f"rmdir /sys/kernel/config/nullb/{name}")
