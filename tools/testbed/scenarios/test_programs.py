# SPDX-License-Identifier: GPL-2.0
"""Programs that people run on a disk, in Debian as it is installed: its kernel, systemd and udev.
Only with --kernel stock."""

import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor

import cached_disks
import pytest

from testbed import blockdev, mishaps
from testbed.lab import wait_for

pytestmark = pytest.mark.links(2)

DISK_MB = 384
SESSION = "/sys/class/ibtrs-client/demo"
# Which of the texts are somewhere on a disk.
FIND = """
import sys
disk, *texts = sys.argv[1:]
found = dict.fromkeys(texts, False)
with open(disk, "rb") as data:
    while part := data.read(1 << 20):
        for text in texts:
            found[text] |= text.encode() in part
print(*found.values())
"""


@pytest.fixture
def disk(debian, stack) -> str:
    """A disk of the server, mapped over both links; the name that udev gave it."""
    server, client = debian
    device = server.null_blk(size_mb=DISK_MB)
    blockdev.load(debian, stack)
    name = map_it(client, stack, device)
    assert client.run(f"readlink -f {name}") == stack.disk
    client.run("mkdir -p /mnt/disk")
    return name


def map_it(client, stack, device: str) -> str:
    """Maps a device over both links; gives the name that udev has for it."""
    client.run(f'echo "sessname=demo path=ip:10.0.1.2,ip:10.0.1.1 path=ip:10.0.2.2,ip:10.0.2.1 '
               f'device_path={device}" > {stack.map_file} && udevadm settle')
    wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are connected")
    return client.run("find /dev/disk/by-ibnbd/demo -type l")


def fill(client, folder: str = "/mnt/disk") -> None:
    """Files, and their sums beside them."""
    client.run(f"cd {folder} && for number in {{1..24}}; do head -c 1M /dev/urandom > $number; done && "
               "sha256sum {1..24} > sums && cp sums /tmp/sums && sync", timeout=600)


def check(client, folder: str = "/mnt/disk") -> None:
    """All files are there, and read from the disk."""
    client.run("echo 3 > /proc/sys/vm/drop_caches")
    client.run(f"cd {folder} && cmp sums /tmp/sums && sha256sum --check --quiet sums", timeout=600)


def lose_a_path(client, link: int) -> None:
    path = f"{SESSION}/paths/*@ip:10.0.{link}.1"
    client.run(f"echo 1 > {path}/disconnect && sleep 1 && echo 1 > {path}/reconnect")


def lose_paths_while(client, work) -> None:
    """Both paths are lost, one after the other, while work() is done."""
    with ThreadPoolExecutor() as pool:
        working = pool.submit(work)
        for link in (1, 2):
            lose_a_path(client, link)
        working.result()


@pytest.mark.parametrize("system", ["ext4", "xfs"])
def test_a_file_system_by_its_name(debian, disk, system):
    """fstab finds it by its UUID, which udev has read from it."""
    client = debian.client
    verify = {"ext4": "e2fsck -f -n", "xfs": "xfs_repair -n"}[system]
    client.run(f"mkfs.{system} -q {disk} && udevadm settle", timeout=300)
    uuid = client.run(f"blkid -o value -s UUID {disk}")
    client.run(f"echo 'UUID={uuid} /mnt/disk {system} _netdev,noauto 0 0' > /etc/fstab && mount /mnt/disk")
    lose_paths_while(client, lambda: fill(client))
    check(client)
    client.run(f"umount /mnt/disk && {verify} {disk} && mount /mnt/disk", timeout=300)
    check(client)
    client.run("umount /mnt/disk && : > /etc/fstab && rm -f /tmp/sums")


@pytest.mark.smoke
def test_volumes(debian, disk, stack):
    client = debian.client
    client.run(f"pvcreate --quiet {disk} && vgcreate --quiet data {disk} && "
               "lvcreate --quiet --yes --name home --size 128M data && "
               "udevadm settle && mkfs.ext4 -q /dev/data/home && mount /dev/data/home /mnt/disk", timeout=300)
    lose_paths_while(client, lambda: fill(client))
    client.run("lvextend --quiet --resizefs --size 256M data/home", timeout=300)
    check(client)
    assert int(client.run("stat -f -c %b /mnt/disk")) * int(client.run("stat -f -c %S /mnt/disk")) > 200 << 20
    # When the disk comes back, udev and LVM make the volume with it.
    client.run("umount /mnt/disk && vgchange --quiet --activate n data", timeout=300)
    again = client.run("cat /sys/block/ibnbd0/ibnbd/mapping_path")
    client.run(f"{stack.unmap()} && udevadm settle && {stack.map_device(again)}")
    client.wait_until("[ -e /dev/data/home ]", 120)
    client.run("udevadm settle && mount /dev/data/home /mnt/disk", timeout=300)
    check(client)
    client.run("umount /mnt/disk && vgremove --quiet --yes --force data && pvremove --quiet " + disk, timeout=300)


def test_an_encrypted_disk(debian, disk):
    client = debian.client
    opened = f"echo -n secret | cryptsetup open --key-file - {disk} secret && udevadm settle"
    client.run(f"echo -n secret | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "
               f"{disk} - && {opened} && mkfs.ext4 -q /dev/mapper/secret && "
               "mount /dev/mapper/secret /mnt/disk", timeout=300)
    client.run("printf 'a line to keep\n%.0s' {1..20000} > /mnt/disk/words")
    lose_paths_while(client, lambda: fill(client))
    check(client)
    client.run(f"umount /mnt/disk && cryptsetup close secret && {opened} && mount /dev/mapper/secret /mnt/disk",
               timeout=300)
    check(client)
    assert client.run("grep -c 'a line to keep' /mnt/disk/words") == "20000"
    client.run("umount /mnt/disk && cryptsetup close secret")
    # The server has what was written, and no line of it as it was.
    debian.server.push("/tmp/find.py", FIND)
    assert debian.server.run("python3 /tmp/find.py /dev/nullb0 LUKS 'a line to keep'", timeout=300) == "True False"


def test_a_mirror(debian, disk, stack):
    """RAID of two disks, one of which goes away and comes back."""
    server, client = debian
    second = server.null_blk("nullb1", size_mb=DISK_MB)
    map_second = stack.map_device(second)
    client.run(f"{map_second} && udevadm settle")
    other = client.run("ls /dev/disk/by-ibnbd/demo/dev/nullb1")
    client.run(f"mdadm --create /dev/md/both --run --quiet --level=1 --raid-devices=2 --bitmap=internal "
               f"--assume-clean {disk} {other} && udevadm settle && mkfs.ext4 -q /dev/md/both && "
               "mount /dev/md/both /mnt/disk", timeout=300)
    degraded = "cat /sys/block/md*/md/degraded"
    client.run(stack.unmap(1, "force"))
    # Data that is written now is on the first one alone.
    lose_paths_while(client, lambda: fill(client))
    assert client.run(degraded) == "1"
    # By udev's rule of mdadm it is in the array again as soon as it is back.
    client.run(f"mdadm --quiet /dev/md/both --remove detached; {map_second} && udevadm settle")
    client.run(f"grep -q ibnbd1 /proc/mdstat || mdadm --quiet /dev/md/both --re-add {other}")
    wait_for(lambda: client.run(degraded) == "0", 120, "the mirror is whole")
    check(client)
    client.run(f"mdadm --quiet /dev/md/both --fail {disk} --remove {disk}")
    check(client)
    client.run("umount /mnt/disk && mdadm --quiet --stop /dev/md/both && "
               f"mdadm --quiet --zero-superblock {disk} {other}")


@pytest.mark.smoke
@pytest.mark.parametrize("find", ["strict", "greedy"])
def test_multipath_leaves_it_alone(debian, disk, stack, find):
    """Paths are our business, and multipathd sees one disk."""
    client = debian.client
    client.run(f"printf 'defaults {{\\n find_multipaths {find}\\n}}\\n' > /etc/multipath.conf && "
               "systemctl restart multipathd", timeout=120)
    try:
        client.run("udevadm trigger --settle --subsystem-match=block && multipath -r; udevadm settle", timeout=120)
        assert client.ok("systemctl is-active multipathd && multipathd show daemon")
        assert client.run("multipath -ll") == ""
        assert client.run("ls /sys/block/ibnbd0/holders") == ""
        # Anyone can have it exclusively.
        assert not blockdev.is_taken(client, stack.disk)
    finally:
        client.run("systemctl stop multipathd.socket multipathd; rm /etc/multipath.conf", check=False)


def test_freezing(debian, disk):
    """What a suspend does first: it freezes all tasks, here for five seconds and under load.  Nothing of ours
    holds it up or loses a request."""
    client = debian.client
    load = client.start(f"fio --name=freezing --filename={disk} --rw=randrw --bs=4k --size=32m --iodepth=16 --direct=1 "
                        "--ioengine=io_uring --verify=crc32c --verify_fatal=1 --time_based --runtime=30")
    inflight = f"awk '{{print $1 + $2}}' /sys/block/ibnbd0/inflight"
    client.wait_until(f"[ $({inflight}) != 0 ]")
    for _ in range(2):
        client.run("echo freezer > /sys/power/pm_test && echo freeze > /sys/power/state && "
                   "echo none > /sys/power/pm_test", timeout=120)
    assert load.running
    load.wait(240)
    assert "suspend debug: Waiting for 5 second(s)." in client.run("dmesg")
    assert client.run("dmesg | grep -E 'Freezing .* failed|I/O error' || true") == ""


def test_those_that_look_at_disks(debian, disk, stack):
    client = debian.client
    client.run(f"mkfs.ext4 -q -L ours {disk}", timeout=300)
    # udev has seen that somebody wrote to it.
    client.wait_until(f"[ -n \"$(lsblk --noheadings --output FSTYPE {stack.disk})\" ]")
    name, size, kind, system, label = client.run(
        f"lsblk --noheadings --nodeps --output NAME,SIZE,TYPE,FSTYPE,LABEL --bytes {stack.disk}").split()
    assert (name, int(size), kind, system, label) == ("ibnbd0", DISK_MB << 20, "disk", "ext4", "ours")
    # A disk over the network has no SMART data, and smartctl says so.
    answer = client.run(f"smartctl --all {stack.disk}", check=False)
    assert not answer.ok and "Unable to detect device type" in answer
    client.run("systemctl start udisks2", timeout=120)
    answer = client.run(f"udisksctl info --block-device {stack.disk}", timeout=120)
    assert re.search(r"IdLabel: +ours$", answer, re.M) and re.search(rf"Size: +{DISK_MB << 20}$", answer, re.M)
    client.run(f"udisksctl mount --block-device {stack.disk} --no-user-interaction", timeout=120)
    assert client.run(f"findmnt --noheadings --output FSTYPE --source {stack.disk}") == "ext4"
    client.run(f"udisksctl unmount --block-device {stack.disk} --no-user-interaction && systemctl stop udisks2",
               timeout=120)


class Postgres:
    """A cluster in a folder of the client's, and its programs."""

    def __init__(self, client, folder: str):
        self.client, self.data, self.log = client, f"{folder}/data", f"{folder}/log"
        client.run(f"chown postgres {folder}")
        self.environment = f"cd {folder} && PATH=$(echo /usr/lib/postgresql/*/bin):$PATH PGHOST=/tmp PGDATA={self.data}"

    def start_job(self, command: str):
        return self.client.start(f"{self.environment} runuser -u postgres -- {command}")

    def run(self, command: str) -> str:
        return self.start_job(command).wait(600)

    def start(self) -> None:
        options = "-c listen_addresses= -c unix_socket_directories=/tmp -c jit=off -c shared_buffers=32MB"
        self.run(f"pg_ctl start --silent --wait --timeout 300 --log {self.log} --options '{options}'")

    def stop(self, mode: str) -> None:
        self.run(f"pg_ctl stop --silent --wait --timeout 300 --mode {mode}")

    def sums(self) -> list[str]:
        """How much there is of each thing that pgbench adds to, and how often it has."""
        tables = [f"(select sum({column}) from pgbench_{table})" for column, table in
                  (("abalance", "accounts"), ("tbalance", "tellers"), ("bbalance", "branches"), ("delta", "history"))]
        query = f"select {', '.join(tables)}, (select count(*) from pgbench_history)"
        answer = self.run(f"psql --no-psqlrc --tuples-only --no-align --command '{query}' postgres")
        return answer.split("|")


def processed(answer: str) -> int:
    """How many transactions pgbench has seen end."""
    return int(re.search(r"transactions actually processed: (\d+)", answer)[1])


def test_a_database(debian, disk, stack):
    """PostgreSQL on ext4, while one path after the other fails, and the server's modules are exchanged in between;
    then a crash of its own."""
    server, client = debian
    client.run(f"mkfs.ext4 -q {disk} && mount {disk} /mnt/disk && "
               f"echo 1000 > {SESSION}/hb_interval_ms && echo 3 > {SESSION}/hb_missed_max", timeout=300)
    postgres = Postgres(client, "/mnt/disk")
    postgres.run("initdb --data-checksums --auth trust --no-locale --encoding UTF8")
    postgres.start()
    postgres.run("pgbench --initialize --quiet --scale 2 postgres")
    bench = postgres.start_job("pgbench --client 4 --jobs 2 --time 40 --no-vacuum postgres")
    failures = 0
    for link in itertools.cycle((1, 2)):
        with mishaps.cable_out(debian, client, link):
            wait_for(lambda: blockdev.connected(client) == 1, 60, "the path is lost")
        wait_for(lambda: blockdev.connected(client) == 2, 60, "the path is back")
        if not bench.running:
            break
        failures += 1
        server.run(f"{stack.unload('server')} && {stack.load_server()}", timeout=120)
        wait_for(lambda: blockdev.connected(client) == 2, 60, "both paths are back")
    answer = bench.wait(120)
    done = processed(answer)
    assert "number of failed transactions: 0 " in answer and "aborted" not in answer
    assert failures >= 2 and done > 20
    assert client.run("dmesg | grep 'has lost its write cache' || true") == ""
    print(f"\n{done} transactions while {failures} times a path failed and the server's modules were exchanged")

    postgres.stop("immediate")
    client.run(f"umount /mnt/disk && mount {disk} /mnt/disk")
    postgres.start()
    accounts, tellers, branches, history, count = postgres.sums()
    assert accounts == tellers == branches == history and int(count) == done
    postgres.run("pg_amcheck --install-missing --heapallindexed --parent-check postgres")
    postgres.stop("fast")
    client.run(f"umount /mnt/disk && mount {disk} /mnt/disk")
    assert re.search(r"Bad checksums: +0$", postgres.run("pg_checksums --check"), re.M)
    client.run("umount /mnt/disk")


@pytest.mark.kills
def test_a_database_whose_server_reboots(debian, stack):
    """PostgreSQL on ext4 waits for a server that is rebooted, and sees nothing of it.  After a power cut,
    which takes from the server what nobody has flushed, it stops, and has all that it ever answered once
    the file system is mounted again."""
    server, client = debian
    image, export = cached_disks.make(server, DISK_MB)
    blockdev.load(debian, stack)
    disk = map_it(client, stack, "/dev/loop0")
    client.run(f"mkdir -p /mnt/disk && mkfs.ext4 -q {disk} && mount {disk} /mnt/disk && cd {SESSION} && "
               "echo 600 > queue_timeout_s && echo 1000 > hb_interval_ms && echo 3 > hb_missed_max", timeout=300)
    postgres = Postgres(client, "/mnt/disk")
    postgres.run("initdb --data-checksums --auth trust --no-locale --encoding UTF8")
    postgres.start()
    postgres.run("pgbench --initialize --quiet --scale 1 postgres")

    def begin(transactions: int):
        """Few a second, as what counts is that they go on."""
        bench = postgres.start_job(f"pgbench --client 4 --jobs 1 --rate 4 --transactions {transactions} --progress 2 "
                                   "--no-vacuum postgres 2>&1")
        wait_for(lambda: bench.text.count("progress: ") > 1, 120, "there is load")
        return bench

    def come_back() -> None:
        debian.reboot("server", [image])
        debian.server.run(f"{export.format('/dev/vda')} && {stack.load_server()}", timeout=120)

    bench = begin(transactions=15)
    # Nothing but the modules writes anything back then.
    server.start("busybox reboot -f")
    wait_for(lambda: not server.alive, 120, "the server has gone")
    come_back()
    answer = bench.wait(300)
    assert processed(answer) == 60 and "number of failed transactions: 0 " in answer and "aborted" not in answer
    assert client.run("dmesg | grep -E 'has lost its write cache|I/O error|EXT4-fs.*error' || true") == ""
    assert postgres.sums()[4] == "60"

    bench = begin(transactions=1000)
    # Something is in the server's cache then: nobody flushes it meanwhile.
    client.run("pkill -STOP pgbench && sleep 1 && "
               "dd if=/dev/zero of=/mnt/disk/unflushed bs=64k count=4 oflag=direct status=none")
    debian.server.kill()
    # runuser has stopped with it, and continues both.
    client.run("pkill -CONT runuser")
    come_back()
    client.wait_for_log("ibnbd0: the server has lost its write cache", 240)
    answer = bench.wait(300, check=False)
    assert not answer.ok and "aborted" in answer
    postgres.start_job("pg_ctl stop --silent --wait --mode immediate").wait(300, check=False)
    client.wait_until("umount /mnt/disk", 120)
    checked = client.run(f"fsck.ext4 -fp {disk}", check=False, timeout=300)
    assert checked.status <= 1, checked
    client.run(f"mount {disk} /mnt/disk")
    postgres.start()
    accounts, tellers, branches, history, count = postgres.sums()
    assert accounts == tellers == branches == history and int(count) >= 60 + processed(answer)
    postgres.stop("fast")
    assert re.search(r"Bad checksums: +0$", postgres.run("pg_checksums --check"), re.M)
    client.run(f"umount /mnt/disk && {stack.unmap()}")
    debian.server.run("busybox rmmod ibnbd_server && losetup -D && udevadm settle && umount /mnt/disk")


def gone(guest, within: float) -> float:
    """The seconds that a guest took to shut down, which must be less than the limit."""
    started = time.monotonic()
    wait_for(lambda: not guest.alive, within, f"{guest.name} has gone", pause=0.5)
    return time.monotonic() - started


@pytest.mark.kills
@pytest.mark.parametrize("order, how", [
    ("client first", "poweroff"),
    ("server first", "reboot"),
    pytest.param("client first", "reboot", marks=pytest.mark.thorough),
    pytest.param("server first", "poweroff", marks=pytest.mark.thorough),
])
def test_shutdown(debian, disk, order, how):
    """With the disk mounted, neither side hangs, whichever goes first.  A client without
    its server gives what it has not written up after queue_timeout_s."""
    server, client = debian
    client.run(f"mkfs.ext4 -q {disk} && udevadm settle && echo '{disk} /mnt/disk ext4 _netdev,noauto 0 0' > /etc/fstab "
               "&& systemctl daemon-reload && mount /mnt/disk && "
               "dd if=/dev/zero of=/mnt/disk/zeroes bs=1M count=16 && "
               "echo 60 | tee /sys/class/ibtrs-client/*/queue_timeout_s", timeout=300)
    times = {}
    for guest in (client, server) if order == "client first" else (server, client):
        guest.start(f"systemctl {how}")
        times[guest.name] = gone(guest, 240)
    print(f"\n{order}: {', '.join(f'{name} gone after {seconds:.0f} s' for name, seconds in times.items())}")
