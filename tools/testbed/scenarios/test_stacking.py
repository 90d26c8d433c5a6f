# SPDX-License-Identifier: GPL-2.0
"""Layers on a mapped disk: file systems while paths come and go and the disk grows; RAID over two
servers, with encryption and volumes on top."""

from pathlib import Path

import pytest

from testbed import blockdev
from testbed.lab import wait_for

pytestmark = pytest.mark.fast

FSLOAD = Path(__file__).with_name("fsload.py")
SESSION = "/sys/class/ibtrs-client/demo"
# xfs wants no less; files of which little is used.
SMALL_MB, LARGE_MB = 320, 384
GROW = {"ext4": "resize2fs {disk}", "xfs": "xfs_growfs /mnt/disk"}
CHECK = {"ext4": "e2fsck -f -n {disk}", "xfs": "xfs_repair -n {disk}"}


def steps(load) -> int:
    """How much a load has done so far; nothing was wrong."""
    *lines, _ = load.text.split("\n")
    assert all(line.isdigit() for line in lines), load.text
    return sum(map(int, lines))


def goes_on(load) -> None:
    before = steps(load)
    wait_for(lambda: steps(load) > before, 60, "the load goes on")
    assert load.running


def lose_a_path(pair, turn: int) -> None:
    """One path is lost and comes back: taken down here, or by the server."""
    link = turn % 2 + 1
    if turn < 2:
        path = f"{SESSION}/paths/*@ip:10.0.{link}.1"
        pair.client.run(f"echo 1 > {path}/disconnect && sleep 0.3 && echo 1 > {path}/reconnect")
    else:
        pair.server.run(f"echo 1 > /sys/class/ibtrs-server/demo/paths/*@ip:10.0.{link}.1/disconnect")
        wait_for(lambda: blockdev.connected(pair.client) == 2, 60, "the path is back")


@pytest.mark.links(2)
@pytest.mark.parametrize("system", GROW)
def test_a_file_system_under_load(pair, stack, system):
    server, client = pair
    server.run(f"modprobe loop && truncate -s {SMALL_MB}M /tmp/disk.img && losetup /dev/loop0 /tmp/disk.img")
    blockdev.load(pair, stack)
    client.run(f'echo "sessname=demo path=ip:10.0.1.2,ip:10.0.1.1 path=ip:10.0.2.2,ip:10.0.2.1 '
               f'device_path=/dev/loop0" > {stack.map_file} && echo 100 > {SESSION}/reconnect_delay_ms')
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    client.push("/tmp/fsload.py", FSLOAD.read_text())
    client.run(f"mkfs.{system} -q {stack.disk} && mkdir -p /mnt/disk && mount -o discard {stack.disk} /mnt/disk",
               timeout=300)
    blocks = "stat -f -c %b /mnt/disk"
    before = int(client.run(blocks))
    loads = [client.start(f"python3 /tmp/fsload.py /mnt/disk/{seed} {seed}") for seed in (1, 2)]

    for turn in range(4):
        lose_a_path(pair, turn)
        if turn == 1:
            server.run(f"truncate -s {LARGE_MB}M /tmp/disk.img && losetup -c /dev/loop0")
            client.wait_until(f"[ $(< /sys/block/{stack.family}0/size) = {LARGE_MB << 11} ]")
            client.run(GROW[system].format(disk=stack.disk), timeout=300)
    # Without a path for a moment, which file systems do not notice.
    client.run(f"cd {SESSION}/paths && for path in *; do echo 1 > $path/disconnect; done; sleep 1; "
               "for path in *; do echo 1 > $path/reconnect; done")
    for load in loads:
        goes_on(load)
        # Enough of it, however little of the processors the guest has.
        wait_for(lambda: steps(load) > 100, 120, "the load has done something")
    client.run("touch /mnt/disk/stop")
    for load in loads:
        load.wait(300)

    client.run("cp /mnt/disk/*.sums /tmp && umount /mnt/disk && " + CHECK[system].format(disk=stack.disk), timeout=300)
    client.run(f"mount {stack.disk} /mnt/disk && sha256sum --check --quiet /tmp/1.sums /tmp/2.sums", timeout=300)
    grown = int(client.run(blocks)) - before
    assert grown * int(client.run("stat -f -c %S /mnt/disk")) > (LARGE_MB - SMALL_MB) << 19
    client.run(f"umount /mnt/disk && {stack.unmap()}")
    server.run("losetup -d /dev/loop0 && rm /tmp/disk.img")


# No udev runs in guests, and what the tools keep is to be where they may write.
TOOLS = "export MDADM_NO_UDEV=1 DM_DISABLE_UDEV=1 LVM_SYSTEM_DIR=/tmp/lvm; "
RAID_MB = 96
STACK_UP = ("echo -n secret | cryptsetup open --key-file - /dev/md0 secret && "
            "vgchange --quiet --activate y data && mount /dev/data/home /mnt/disk")
STACK_DOWN = "umount /mnt/disk && vgchange --quiet --activate n data && cryptsetup close secret"


def is_raid(client, degraded: int) -> bool:
    """Whether this number of disks is missing, and nothing is being copied."""
    return client.run("cat /sys/block/md0/md/degraded /sys/block/md0/md/sync_action").split() == [str(degraded), "idle"]


def expect_loss(client, session: str) -> None:
    """Sets what the array needs.  Not before its server is to die: guests on a busy
    machine may be silent for longer than that."""
    client.run(f"cd /sys/class/ibtrs-client/{session} && echo 2 > queue_timeout_s && "
               "echo 1000 > hb_interval_ms && echo 3 > hb_missed_max")


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.fresh
@pytest.mark.kills
def test_raid_over_two_servers(trio, stack):
    """As Documentation/growing.md has it: a server dies and returns, then the other
    one dies.  On the mirror is a disk that is encrypted, with volumes on it."""
    server, second, client = trio
    image = trio.folder / "disk.img"
    with open(image, "wb") as file:
        file.truncate(RAID_MB << 20)
    devices = (server.null_blk(size_mb=RAID_MB), second.add_disk(image))
    client.run(f"{stack.load_client()} && modprobe raid1 && modprobe dm-crypt && mkdir /tmp/lvm /mnt/disk")
    for number, (guest, device) in enumerate(zip((server, second), devices), start=1):
        guest.run(stack.load_server())
        client.run(stack.map_device(device, f"10.0.{number}.1", f"s{number}"))
    client.run(TOOLS + "mdadm --create /dev/md0 --run --quiet --level=1 --raid-devices=2 --bitmap=internal "
               # Both disks are of zeroes.
               "--bitmap-chunk=1M --assume-clean /dev/ibnbd0 /dev/ibnbd1 && "
               "echo -n secret | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "
               "/dev/md0 - && echo -n secret | cryptsetup open --key-file - /dev/md0 secret && "
               "pvcreate --quiet /dev/mapper/secret && vgcreate --quiet data /dev/mapper/secret && "
               "lvcreate --quiet --name home --extents 100%FREE data && mkfs.ext4 -q /dev/data/home && "
               "mount /dev/data/home /mnt/disk", timeout=300)
    client.push("/tmp/fsload.py", FSLOAD.read_text())
    load = client.start("python3 /tmp/fsload.py /mnt/disk/1 1")
    goes_on(load)

    expect_loss(client, "s2")
    second.kill()
    wait_for(lambda: is_raid(client, degraded=1), 120, "the array is degraded")
    goes_on(load)
    second = trio.reboot("second", [image])
    second.run(stack.load_server())
    client.wait_until("[ $(< /sys/block/ibnbd1/ibnbd/state) = open ] && "
                      "cd /sys/class/ibtrs-client/s2 && echo 60 > queue_timeout_s && echo 5 > hb_missed_max")
    written = "read -r _ _ _ _ _ _ sectors _ < /sys/block/ibnbd1/stat && echo $((sectors >> 11))"
    before = int(client.run(written))
    # Its disk has lost nothing, being a file of the host's.
    client.run("echo 0 > /sys/block/ibnbd1/ibnbd/cache_lost")
    client.run(TOOLS + "mdadm --quiet /dev/md0 --remove /dev/ibnbd1 && mdadm --quiet /dev/md0 --re-add /dev/ibnbd1")
    wait_for(lambda: is_raid(client, degraded=0), 120, "the array is complete again")
    # Only the changed parts, and not the whole disk.
    assert 0 < int(client.run(written)) - before < RAID_MB // 2
    goes_on(load)
    client.run("touch /mnt/disk/stop")
    load.wait(120)

    # Of the first one, which was always there, nothing is left.
    expect_loss(client, "s1")
    server.kill()
    client.run("cp /mnt/disk/1.sums /tmp; " + TOOLS + f"{STACK_DOWN} && {STACK_UP} && "
               "sha256sum --check --quiet /tmp/1.sums", timeout=300)
    assert is_raid(client, degraded=1)
    client.run(TOOLS + f"{STACK_DOWN} && mdadm --quiet --stop /dev/md0", timeout=300)
