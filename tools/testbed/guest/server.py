# SPDX-License-Identifier: GPL-2.0
"""The command server of a guest: executes the commands of the host.

Frames in both directions are `<job> <verb> <length>\\n` and a payload.
From the host: run (a shell command), kill (a job), file (path, mode, data).
To the host:   hello, out (output of a job), exit (its status).

It imports as little as it can: every import costs boot time in an emulated guest.
For the same reason a shell is started in advance for each command: on a kernel that checks
itself, a shell takes longer to start than most commands run.  The shell, and the
small programs that commands use most, are linked statically: they start twice as
fast there.
"""

import os
import select

PORT = "/dev/vport0p1"
FOLDER = "/run/testbed"
PROGRAMS = FOLDER + "/bin"
SHELL_PROGRAM = "/bin/bash-static"
# Where busybox does what the programs do that it stands in for (not so head: `-c 1M`).
BUSYBOX = "cat cut grep ln ls mkdir rm rmdir seq sleep tail tr wc"
# The file named by $1 is complete when descriptor 9 can be read.
SHELL = 'read -r _ <&9; exec 9<&-; . "$1"'
ENVIRONMENT = {
    "PATH": PROGRAMS + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp", "TERM": "linux", "LC_ALL": "C", "LD_LIBRARY_PATH": "/run/testbed/lib",
}


class Server:
    def __init__(self):
        self.port = os.open(PORT, os.O_RDWR)
        self.inbox = b""
        self.poll = select.poll()
        self.poll.register(self.port, select.POLLIN)
        self.pids = {}  # job -> process
        self.jobs = {}  # descriptor of output or process -> job
        self.pipes = {}  # job -> descriptor of its output
        self.scripts = {}  # job -> file of its command
        os.chdir("/tmp")
        self.link_programs()
        self.number = 0
        self.shell = self.prepare()
        self.send("0", "hello")

    @staticmethod
    def link_programs():
        os.makedirs(PROGRAMS, exist_ok=True)
        for name in ["bash", *BUSYBOX.split()]:
            target = SHELL_PROGRAM if name == "bash" else "/bin/busybox"
            if not os.path.lexists(PROGRAMS + "/" + name):
                os.symlink(target, PROGRAMS + "/" + name)

    def send(self, job, verb, data=b""):
        frame = b"%s %s %d\n" % (job.encode(), verb.encode(), len(data)) + data
        while frame:
            frame = frame[os.write(self.port, frame):]

    def prepare(self):
        """Starts the shell of the next command."""
        self.number += 1
        script = "%s/%d" % (FOLDER, self.number)
        (reader, writer), (waits, go) = os.pipe(), os.pipe()
        pid = os.posix_spawn(
            SHELL_PROGRAM, ["bash", "-o", "pipefail", "-c", SHELL, "bash", script], ENVIRONMENT, setsid=True,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                          (os.POSIX_SPAWN_DUP2, writer, 1),
                          (os.POSIX_SPAWN_DUP2, writer, 2),
                          # Last, as the writer may have been number 9.
                          (os.POSIX_SPAWN_DUP2, waits, 9)])
        os.close(writer)
        os.close(waits)
        os.set_blocking(reader, False)
        return pid, reader, go, script

    def run(self, job, command):
        pid, reader, go, script = self.shell
        with open(script, "wb") as target:
            target.write(command + b"\n")
        os.write(go, b"\n")
        os.close(go)
        process = os.pidfd_open(pid)
        self.pids[job], self.pipes[job], self.scripts[job] = pid, reader, script
        for descriptor in (reader, process):
            self.jobs[descriptor] = job
            self.poll.register(descriptor, select.POLLIN)
        self.shell = self.prepare()

    def kill(self, job):
        if job in self.pids:
            try:
                os.killpg(self.pids[job], 9)
            except ProcessLookupError:
                pass

    def file(self, job, payload):
        path, mode, data = payload.split(b"\0", 2)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as target:
                target.write(data)
            os.chmod(path, int(mode, 8))
            self.send(job, "exit", b"0")
        except OSError as error:
            self.send(job, "out", str(error).encode())
            self.send(job, "exit", b"1")

    def frames(self):
        """Takes in what came, yields the frames that are whole."""
        data = os.read(self.port, 65536)
        if not data:
            # Nobody is connected on the host's side: do not spin on it.
            select.select([], [], [], 0.2)
        self.inbox += data
        while b"\n" in self.inbox:
            line, rest = self.inbox.split(b"\n", 1)
            job, verb, length = line.decode().split()
            length = int(length)
            if len(rest) < length:
                return
            self.inbox = rest[length:]
            yield job, verb, rest[:length]

    def output(self, job):
        """Passes on output; False once there is none left."""
        try:
            data = os.read(self.pipes[job], 65536)
        except BlockingIOError:
            return False
        if data:
            self.send(job, "out", data)
        return bool(data)

    def forget(self, descriptor):
        self.poll.unregister(descriptor)
        os.close(descriptor)
        del self.jobs[descriptor]

    def ended(self, job, process):
        """The process of a job ended; what it left running in the background
        no longer has anyone to talk to."""
        _, status = os.waitpid(self.pids.pop(job), 0)
        while job in self.pipes and self.output(job):
            pass
        pipe = self.pipes.pop(job, None)
        if pipe is not None:
            self.forget(pipe)
        self.forget(process)
        os.unlink(self.scripts.pop(job))
        self.send(job, "exit", b"%d" % os.waitstatus_to_exitcode(status))

    def serve(self):
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.port:
                    for job, verb, payload in self.frames():
                        if verb == "run":
                            self.run(job, payload)
                        elif verb == "kill":
                            self.kill(payload.decode())
                        elif verb == "file":
                            self.file(job, payload)
                    continue
                job = self.jobs.get(descriptor)
                if job is None:
                    continue
                if descriptor == self.pipes.get(job):
                    if not self.output(job):
                        self.forget(self.pipes.pop(job))
                else:
                    self.ended(job, descriptor)


Server().serve()
