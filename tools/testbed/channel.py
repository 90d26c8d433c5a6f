# SPDX-License-Identifier: GPL-2.0
"""The host's end of the line to guest/server.py: runs commands in a guest."""

import itertools
import socket
import threading
import time
from collections import deque
from pathlib import Path


class CommandFailed(Exception):
    """A command in a guest ended with a status other than 0, or not in time."""


class Output(str):
    """The output of a command, without the newlines at its end, and its status."""

    status: int = 0

    @property
    def ok(self) -> bool:
        return self.status == 0


class Job:
    """A command that runs, or ran, in a guest."""

    def __init__(self, channel: "Channel", name: str, command: str):
        self.channel, self.name, self.command = channel, name, command
        self.chunks: list[bytes] = []
        self.status: int | None = None
        self.done = threading.Event()

    @property
    def text(self) -> str:
        """The output so far."""
        return b"".join(self.chunks).decode(errors="replace")

    @property
    def running(self) -> bool:
        return not self.done.is_set()

    def kill(self) -> None:
        """Kills the command and whatever it started."""
        self.channel.send("-", "kill", self.name.encode())

    def wait(self, timeout: float, check: bool = True) -> Output:
        """Waits for the end; a command that takes longer is killed."""
        if not self.done.wait(timeout):
            self.kill()
            self.done.wait(10)
            raise CommandFailed(f"{self._where()} took longer than {timeout:.0f} s\n{self.text}")
        if self.status is None:
            raise CommandFailed(f"{self._where()}: the guest went away\n{self.text}")
        output = Output(self.text.rstrip("\n"))
        output.status = self.status
        if check and not output.ok:
            raise CommandFailed(f"{self._where()} ended with status {self.status}\n{output}")
        return output

    def _where(self) -> str:
        return f"{self.channel.name}: `{self.command}`"


class Channel:
    """Frames to and from the command server of one guest.  One thread reads;
    any thread may start and wait for jobs."""

    def __init__(self, name: str, path: Path, alive, timeout: float):
        self.name = name
        # Those that run, and the last ones that failed.
        self.jobs: dict[str, Job] = {}
        self.failed: deque[Job] = deque(maxlen=10)
        self.numbers = itertools.count(1)
        self.lock = threading.Lock()
        self.hello = threading.Event()
        self.closed = False
        self.socket = self._connect(path, alive, timeout)
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def _connect(path: Path, alive, timeout: float) -> socket.socket:
        deadline = time.monotonic() + timeout
        while True:
            line = socket.socket(socket.AF_UNIX)
            try:
                line.connect(str(path))
                return line
            except OSError:
                line.close()
                if time.monotonic() > deadline or not alive():
                    raise
                time.sleep(0.02)

    def send(self, job: str, verb: str, payload: bytes = b"") -> None:
        with self.lock:
            self.socket.sendall(b"%s %s %d\n" % (job.encode(), verb.encode(), len(payload)) + payload)

    def start(self, command: str) -> Job:
        return self._job(command, "run", command.encode())

    def push(self, path: str, data: bytes, mode: int) -> None:
        payload = b"%s\0%o\0" % (path.encode(), mode) + data
        self._job(f"push {path}", "file", payload).wait(60)

    def kill_all(self) -> None:
        """Kills every command that still runs."""
        for job in list(self.jobs.values()):
            job.kill()
            job.done.wait(10)

    def report(self) -> str:
        """The output of the commands that run, and of those that failed lately."""
        jobs = [*self.failed, *self.jobs.values()]
        return "".join(f"--- `{job.command}` {'runs' if job.running else f'ended with status {job.status}'}\n"
                       f"{job.text[-4000:]}\n" for job in jobs)

    def _job(self, command: str, verb: str, payload: bytes) -> Job:
        job = Job(self, str(next(self.numbers)), command)
        self.jobs[job.name] = job
        if self.closed:
            job.done.set()
            return job
        try:
            self.send(job.name, verb, payload)
        except OSError:
            # The thread that reads may not have noticed yet.
            self.closed = True
            job.done.set()
        return job

    def _read(self) -> None:
        stream = self.socket.makefile("rb")
        try:
            while line := stream.readline():
                name, verb, length = line.decode().split()
                self._frame(name, verb, stream.read(int(length)))
        except (OSError, ValueError):
            pass
        # The guest is gone: nobody must wait for its answers.
        self.closed = True
        for job in list(self.jobs.values()):
            job.done.set()

    def _note_failed(self, job: Job) -> None:
        # One that is tried until it succeeds is noted once.
        if self.failed and self.failed[-1].command == job.command:
            self.failed.pop()
        self.failed.append(job)

    def _frame(self, name: str, verb: str, payload: bytes) -> None:
        if verb == "hello":
            self.hello.set()
            return
        job = self.jobs.get(name)
        if job is None:
            return
        if verb == "out":
            job.chunks.append(payload)
        elif verb == "exit":
            job.status = int(payload)
            del self.jobs[name]
            if job.status != 0:
                self._note_failed(job)
            job.done.set()
