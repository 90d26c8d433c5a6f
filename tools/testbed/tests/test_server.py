# SPDX-License-Identifier: GPL-2.0
"""The guest's command server and the host's end of its line, without a guest."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.channel import Channel, CommandFailed
from testbed.guest import wait_for

SERVER = Path(__file__).parents[1] / "guest/server.py"
# Joins the port, which the server knows as one descriptor, to a socket.
START = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen()
line, _ = listener.accept()
source = open(sys.argv[1]).read()
source = source.replace('"/run/testbed"', repr(sys.argv[3])).replace("os.open(PORT, os.O_RDWR)", str(line.fileno()))
exec(compile(source, sys.argv[1], "exec"))
"""


@pytest.fixture
def channel(tmp_path):
    server = subprocess.Popen([sys.executable, "-c", START, SERVER, tmp_path / "line", tmp_path / "scripts"])
    line = Channel("here", tmp_path / "line", lambda: server.poll() is None, 20)
    assert line.hello.wait(20)
    yield line
    line.kill_all()
    server.kill()
    server.wait()
    line.socket.close()


def test_output_and_status_of_many_commands_beside_each_other(channel):
    sleepers = []
    for number in range(60):
        if number % 7 == 0:
            sleepers.append(channel.start("sleep 60; echo never"))
        said = channel.start(f"/bin/echo out {number}; echo err >&2; exit {number % 5}").wait(20, check=False)
        assert (said, said.status) == (f"out {number}\nerr", number % 5)
        if number % 11 == 0:
            sleeper = sleepers.pop()
            sleeper.kill()
            assert sleeper.wait(20, check=False).status == -signal.SIGKILL


def test_commands_that_failed_or_run_are_reported(channel):
    for command in ("echo well", "echo again; false", "echo again; false", "echo badly; exit 3"):
        channel.start(command).wait(20, check=False)
    runs = channel.start("echo so far; sleep 60")
    wait_for(lambda: runs.text, 20, "it has said something")
    assert channel.report() == ("--- `echo again; false` ended with status 1\nagain\n\n"
                                "--- `echo badly; exit 3` ended with status 3\nbadly\n\n"
                                "--- `echo so far; sleep 60` runs\nso far\n\n")


def test_a_file_is_written(channel, tmp_path):
    channel.push(str(tmp_path / "deep/er"), b"content\n", 0o700)
    assert (tmp_path / "deep/er").read_text() == "content\n"
    assert os.stat(tmp_path / "deep/er").st_mode & 0o777 == 0o700


def test_a_guest_that_takes_no_command_is_gone(tmp_path):
    """Its line may end for commands before it does for answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "line"))
        listener.listen()
        channel = Channel("here", tmp_path / "line", lambda: True, 20)
        guest, _ = listener.accept()
    with guest:
        guest.shutdown(socket.SHUT_RD)
        assert not channel.closed
        with pytest.raises(CommandFailed, match="the guest went away"):
            channel.start("true").wait(20)
        assert channel.closed
    channel.socket.close()
