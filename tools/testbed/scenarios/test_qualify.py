# SPDX-License-Identifier: GPL-2.0
"""`make qualify` on two guests, by ssh as users have it. It leaves nothing behind, and touches no disk that was not
named."""

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed import blockdev, keyring, ssh
from testbed.lab import wait_for
from testbed.paths import TOP
from testbed.stack import STACKS
from testbed.tool import PROGRAM, Tool

pytestmark = [pytest.mark.links(2), pytest.mark.fast, pytest.mark.long]

# Small enough for emulated guests.
SMALL = {"SIZE_MIB": "48", "SHORT": "yes"}
# Seconds of a run.
LIMIT = 1200
# What a run makes, by commands that find nothing of it.
NOTHING_LEFT = ("[ ! -e /run/ibnbd-qualify ] && [ ! -e /dev/shm/ibnbd-qualify.img ] && [ ! -e /dev/ibnbd-qualify ] && [ ! -e /sys/module/ibtrs_core ] && "
                "[ -z \"$(losetup --list --noheadings)\" ] && [ -z \"$(ls -d /sys/block/ibnbd* /sys/block/rnbd* "
                "/sys/kernel/config/nullb/nullbqualify /sys/kernel/config/nvmet/subsystems/* 2> /dev/null)\" ]")


@dataclass
class Qualify:
    """The command on the host, and the folder of its report."""

    ssh: str
    folder: Path

    def words(self, **variables: str) -> list[str]:
        found = {"SERVER": "server", "CLIENT": "client", "SSH": self.ssh, "REPORT": str(self.folder), **SMALL, **variables}
        return ["make", "--no-print-directory", "-C", str(TOP), "qualify", *(f"{name}={value}" for name, value in found.items())]

    def __call__(self, **variables: str) -> tuple[int, str]:
        said = []
        with subprocess.Popen(self.words(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            late = threading.Timer(LIMIT, run.terminate)
            late.start()
            for line in run.stdout:
                # At once: it shows how far a run came that hangs.
                print(line, end="", flush=True)
                said.append(line)
            late.cancel()
        return run.returncode, "".join(said)

    def document(self) -> dict:
        return json.loads((self.folder / "qualify.json").read_text())

    def steps(self, part: str) -> dict[str, str]:
        return {step["name"]: step["status"] for step in self.document()["steps"] if step["part"] == part}


@pytest.fixture
def qualify(reachable, tmp_path):
    for guest in reachable:
        Tool(guest)
    yield Qualify(ssh.serve(reachable), tmp_path)
    # A scenario that has failed leaves no guests.
    for guest in filter(lambda guest: guest.alive, reachable):
        assert guest.ok(NOTHING_LEFT), guest.run("cat /run/ibnbd-qualify/undo; lsblk; lsmod", check=False)


def passed(qualify: Qualify, said: tuple[int, str]) -> None:
    status, text = said
    assert status == 0 and qualify.document()["passed"] and "==> passed" in text, text
    page = (qualify.folder / "qualify.html").read_text()
    assert page.startswith("<!doctype html>") and "10.0.1." not in page + json.dumps(qualify.document())


def test_data_and_operations_touch_the_named_disk_only(reachable, qualify):
    server = reachable.server
    named, other = server.null_blk("nullb0", size_mb=64), server.null_blk("nullb1", size_mb=32)
    server.run(f"dd if=/dev/urandom of={other} bs=1M count=32 oflag=direct status=none")
    before = server.run(f"sha256sum {other}")
    passed(qualify, qualify(ONLY="check,data,operations", DISK=named))
    assert qualify.steps("operations") == dict.fromkeys(
        ("flush", "discard", "write zeroes", "resize", "unmap and map again"), "passed")
    assert qualify.steps("data")["named disk, the same on the server"] == "passed"
    assert server.run(f"sha256sum {other}") == before
    assert not server.ok(f"cmp -s -n 1048576 {named} /dev/zero")
    for number in range(2):
        server.remove_null_blk(f"nullb{number}")


def test_failover_by_each_cause(reachable, qualify):
    passed(qualify, qualify(ONLY="failover"))
    found = qualify.steps("failover")
    # Guests have no nftables in the kernel.
    assert found.pop("packets lost in silence") in ("passed", "skipped")
    assert len(found) == 7 and set(found.values()) == {"passed"}, found
    assert (qualify.folder / "qualify.html").read_text().count("<svg") >= 7
    moved = {step["name"]: step["values"] for step in qualify.document()["steps"] if step["part"] == "failover"}
    assert moved["server drained"]["longest_ms"] > 500 and moved["server drained"]["rates"]


def test_bench_beside_others(reachable, qualify):
    passed(qualify, qualify(ONLY="bench"))
    assert "<svg" in (qualify.folder / "qualify.html").read_text()
    document = qualify.document()
    skipped = [step["said"] for step in document["steps"] if step["status"] == "skipped"]
    assert skipped in ([], ["the server's kernel has no rnbd_server"]), skipped
    wanted = {"ibnbd", "on the server", "NVMe-oF"} | ({"RNBD"} if not skipped else set())
    assert len(document["bench"]) == 8 and all(set(found) == wanted for found in document["bench"].values()), document["bench"]
    assert all(figures["iops"] > 0 for found in document["bench"].values() for figures in found.values())


@pytest.mark.thorough
def test_all_of_it(reachable, qualify):
    passed(qualify, qualify())


def test_two_machines_with_our_packages(packaged, tmp_path):
    """As a user has them: Debian's kernel and ssh, modules by DKMS, and the command where its package puts it."""
    qualify = Qualify(ssh.serve(packaged), tmp_path)
    passed(qualify, qualify())
    assert qualify.steps("failover")["packets lost in silence"] == "passed"
    steps = qualify.document()["steps"]
    assert [step["name"] for step in steps if step["status"] != "passed"] == ["connect RNBD"], "Debian's kernel has no RNBD"
    for guest in packaged:
        assert guest.ok(NOTHING_LEFT), guest.run("cat /run/ibnbd-qualify/undo; lsblk; lsmod", check=False)


def test_a_machine_without_the_modules_is_told_what_to_do(reachable, qualify):
    reachable.client.run("mount -t tmpfs none /lib/modules")
    try:
        status, said = qualify()
    finally:
        reachable.client.run("umount /lib/modules")
    assert status == 2 and "client: ibtrs_core, ibtrs_client, ibnbd_client cannot be loaded" in said
    assert "Install ibtrs-dkms" in said and "nothing was changed" in said and not qualify.folder.joinpath("qualify.json").exists()


def test_a_disk_with_something_on_it_is_refused(reachable, qualify):
    server = reachable.server
    disk = server.null_blk("nullb0", size_mb=64)
    server.run(f"mkfs.ext4 -q {disk}")
    before = server.run(f"sha256sum {disk}")
    status, said = qualify(DISK=disk)
    assert status == 2 and "not empty: it has ext4" in said and "ERASE=yes" in said
    assert server.run(f"sha256sum {disk}") == before
    # Nobody may have it overwritten while it is mounted.
    server.run(f"mkdir -p /mnt/disk && mount {disk} /mnt/disk")
    status, said = qualify(DISK=disk, ERASE="yes")
    assert status == 2 and "is mounted" in said
    server.run("umount /mnt/disk")
    status, said = qualify(DISK=disk, ERASE="yes", DRY_RUN="yes")
    assert status == 0 and f"OF {disk} ARE OVERWRITTEN" in said
    server.run(f"mount -o ro {disk} /mnt/disk && umount /mnt/disk")
    server.remove_null_blk("nullb0")


def unload(reachable) -> None:
    for guest, side in ((reachable.client, "client"), (reachable.server, "server")):
        guest.run(STACKS["ibtrs"].unload(side))


def test_machines_in_use_are_refused(reachable, qualify):
    server, client = reachable.server, reachable.client
    device = blockdev.map_two_paths(reachable, STACKS["ibtrs"])
    before = client.run("cat /sys/block/ibnbd0/stat; lsmod") + server.run(f"sha256sum {device}; lsmod")
    status, said = qualify()
    assert status == 2 and "nothing was changed" in said
    for words in ("server: clients are connected (demo)", "server: ibnbd_server exports a directory",
                  "client: disks are mapped (ibnbd0)"):
        assert words in said, words
    assert client.run("cat /sys/block/ibnbd0/stat; lsmod") + server.run(f"sha256sum {device}; lsmod") == before
    client.run(STACKS["ibtrs"].unmap())
    unload(reachable)
    # A command that says nothing does not say that there is nobody.
    server.run(f"mount --bind /bin/false {PROGRAM}")
    try:
        status, said = qualify()
    finally:
        server.run(f"umount {PROGRAM}")
    assert status == 2 and "server: it cannot be found out who uses this machine: `ibnbd clients" in said, said
    server.remove_null_blk()


def interrupted(qualify: Qualify, after: str, number: signal.Signals) -> subprocess.Popen:
    """A run that gets a signal as soon as it has said this."""
    words = ["--server", "server", "--client", "client", "--ssh", qualify.ssh, "--folder", str(qualify.folder), "--size-mib", "48",
             "--short", "yes", "--only", "data,failover"]
    run = subprocess.Popen([str(TOP / "scripts/qualify.sh"), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in run.stdout:
        print(line, end="")
        if after in line:
            break
    os.kill(run.pid, number)
    return run


@pytest.mark.parametrize("after, number", [("export and map", signal.SIGINT), ("path drained", signal.SIGTERM)])
def test_an_interrupted_run_leaves_nothing(reachable, qualify, after, number):
    run = interrupted(qualify, after, number)
    # Impatience does not leave anything behind either.
    for again in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        time.sleep(0.5)
        os.kill(run.pid, again)
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 128 + number and "cleaning up" in said, said
    assert qualify.document()["interrupted"]


def test_a_run_that_was_killed_is_cleaned_up_by_another_beside_others(reachable, qualify):
    server, client = reachable.server, reachable.client
    run = interrupted(qualify, "export and map", signal.SIGKILL)
    run.communicate(timeout=60)
    wait_for(lambda: reachable.client.ok("[ -e /run/ibnbd-qualify ]"), 10, "the record is there")
    status, said = qualify()
    assert status == 2 and "CLEAN=yes" in said
    # Somebody begins to use what the run has loaded. A server that has keys lets nobody in without one.
    for guest in (server, client):
        keyring.load(guest, session="other")
    device = server.null_blk(size_mb=16)
    server.run(f"{PROGRAM} export add {device} mine --any-host")
    client.run(f"{PROGRAM} map 10.0.1.1 mine --session other", timeout=120)
    assert qualify(CLEAN="yes")[0] == 0
    disk = client.run(f"{PROGRAM} list --output json")
    assert [one["session"] for one in json.loads(disk)["disks"]] == ["other"], disk
    client.run(f"dd if=/dev/{json.loads(disk)['disks'][0]['name']} of=/dev/null bs=1M iflag=direct status=none", timeout=120)
    client.run(f"{PROGRAM} unmap --unused", timeout=120)
    server.run(f"{PROGRAM} export remove mine --force")
    unload(reachable)
    server.remove_null_blk()
