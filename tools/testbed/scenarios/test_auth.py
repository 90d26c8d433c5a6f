# SPDX-License-Identifier: GPL-2.0
"""Authentication by keys: clients that are accepted or refused, and the messages on each side."""

import errno
import os
import time

import pytest

from testbed import blockdev, fio, keyring
from testbed.hostile import launch, wire
from testbed.lab import wait_for
from testbed.stack import STACKS
from testbed.wire import recorded

pytestmark = [pytest.mark.links(2)]
fast = pytest.mark.fast
# Raw messages need immediates, which soft-iWARP does not have.
needs_immediates = pytest.mark.rdma("rxe")

# Of a stranger with many addresses; IBTRS_LONG=1 runs the larger number.
SOURCES = 200
FAILURES = 10_000 if os.environ.get("IBTRS_LONG") else 300

OURS, MAINLINE = STACKS["ibtrs"], STACKS["mainline"]
SESSION = "/sys/class/ibtrs-client/demo"
SECOND = "ip:10.0.2.2,ip:10.0.2.1"
# A key that has gone ends its paths within a second, and by no heartbeat; guests may be busy.
RARE_HEARTBEATS = "hb_interval_ms=60000"
AT_ONCE_S = 10
LOAD = ("fio --name=load --filename={disk} --rw=randrw --bsrange=512-16k --iodepth=8 --direct=1 --ioengine=io_uring "
        "--verify=crc32c --verify_backlog=32 --time_based --runtime=600 --size=16m " + fio.NOW_AND_THEN)


def wait_for_no_session(server) -> None:
    """Not with `ls`, which fails if a session goes while it looks.  The module has to be there."""
    server.wait_until("cd /sys/class/ibtrs-server && [ \"$(echo *)\" = '*' ]", 30)


def map_disk(pair, stack, options: str = "") -> str:
    """Maps a disk, which has to succeed; returns the server's path of it."""
    device = pair.server.null_blk(size_mb=32)
    blockdev.load(pair, stack)
    pair.client.run(map_line(stack, options, device))
    return device


def map_line(stack, options: str = "", device: str = "/dev/nullb0") -> str:
    return f'echo "sessname=demo path=ip:10.0.1.1 device_path={device} {options}" > {stack.map_file}'


def map_errno(client, line: str) -> int:
    """The errno with which the line to map a disk is refused, 0 if it is not."""
    program = (f"import os, sys; fd = os.open('{line.split('> ')[1]}', os.O_WRONLY)\n"
               f"try: os.write(fd, b'''{line.split(chr(34))[1]}''')\n"
               "except OSError as error: print(error.errno)\n"
               "else: print(0)")
    return int(client.run(f'python3 -c "{program}"', timeout=120))


def refused(pair, stack, options: str = "") -> int:
    """The errno of a mapping that has to fail; nothing of it may be left on the server."""
    blockdev.load(pair, stack)
    number = map_errno(pair.client, map_line(stack, options))
    assert number != 0
    wait_for_no_session(pair.server)
    return number


def test_keys_on_both_sides(pair, stack):
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    device = map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    for guest, side in ((client, "client"), (server, "server")):
        assert keyring.key_ids(guest, side) == ["default", "default"]
        assert keyring.suites(guest, side) == ["x25519", "x25519"]
    assert "authenticated with key default" in server.run("dmesg")
    client.run(f"dd if=/dev/urandom of={stack.disk} bs=1M count=4 oflag=direct status=none")
    assert blockdev.same_on_both(pair, device, stack.disk, 4)
    # A path that is lost proves itself again.
    client.run(f"echo 1 > {SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1/reconnect")
    assert keyring.key_ids(server, "server") == ["default", "default"]
    # Nobody reads a key.
    for guest in pair:
        assert not guest.ok("keyctl pipe $(keyctl rlist %:.ibtrs)")


@fast
def test_without_the_right_key_nobody_gets_in(pair, stack):
    server, client = pair
    server.null_blk(size_mb=32)
    keyring.load(server)
    # No key.
    assert refused(pair, stack) == errno.EKEYREJECTED
    assert "does not authenticate, but must" in server.run("dmesg")
    assert "the server authenticates its clients" in client.run("dmesg")
    # Another key of that id.
    keyring.load(client, "wrong")
    assert refused(pair, stack) == errno.EKEYREJECTED
    assert "the client's key default differs from the one loaded here" in server.run("dmesg")
    assert "the keys differ" in client.run("dmesg")
    # An id that the server does not know; one that the client does not.
    keyring.load(client, key_id="other")
    assert refused(pair, stack, "key_id=other") == errno.EKEYREJECTED
    assert "no usable key other of this session is loaded (ENOKEY)" in server.run("dmesg")
    assert refused(pair, stack, "key_id=none") == errno.EKEYREJECTED
    # The key of another session.
    keyring.load(client, "third", session="third")
    keyring.load(server, "third", session="third", key_id="default")
    keyring.load(client, "third")
    assert refused(pair, stack) == errno.EKEYREJECTED
    # A key of another length.
    keyring.remove(client)
    client.run("printf short | keyctl padd logon ibtrs:default:demo %:.ibtrs > /dev/null")
    assert refused(pair, stack) == errno.ENOKEY
    # The right one, once the failures are forgiven: five at once, then one every two seconds.
    keyring.load(client)
    wait_for(lambda: map_errno(client, map_line(stack)) == 0, 30, "the client gets in")
    assert keyring.key_ids(server, "server") == ["default"]


@fast
def test_a_server_without_a_key_is_refused(pair, stack):
    server, client = pair
    server.null_blk(size_mb=32)
    keyring.load(client)
    assert refused(pair, stack) == errno.EKEYREJECTED
    assert "the peer does not authenticate, but must" in client.run("dmesg")


@fast
def test_the_same_session_goes_on_when_keys_come(pair, stack):
    """A session that began without authentication keeps its paths, and new ones are as they are."""
    server, client = pair
    map_disk(pair, stack)
    load = client.start(LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    for guest in pair:
        keyring.load(guest)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    client.run(f"echo 1 > {SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1/reconnect")
    assert keyring.key_ids(server, "server") == ["", ""]
    fio.end(client, load)
    client.run(stack.unmap())
    wait_for_no_session(server)
    client.run(map_line(stack))
    assert keyring.key_ids(server, "server") == ["default"]


@fast
def test_keys_change_under_load(pair, stack):
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    load = client.start(LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    for guest in pair:
        keyring.load(guest, "next", key_id="next")
    client.run(f"echo next > {SESSION}/key_id")
    assert client.run(f"cat {SESSION}/key_id") == "next"
    for link in (1, 2):
        client.run(f"echo 1 > {SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1/reconnect")
    for guest, side in ((client, "client"), (server, "server")):
        keyring.remove(guest)
        assert keyring.key_ids(guest, side) == ["next", "next"]
    # Neither the old id nor a text that is none.
    assert not client.ok(f"echo a:b > {SESSION}/key_id")
    assert not client.ok(map_line(stack, "key_id=default", "/dev/nullb1"))
    fio.end(client, load)


class Again:
    """Two paths that authenticate again after a time."""

    def __init__(self, pair, stack):
        """The session has one of the paths. None has an attempt to spare."""
        self.server, self.client = pair
        self.stack = stack
        for guest in pair:
            keyring.load(guest)
        map_disk(pair, stack)
        self.client.run(f"echo 0 > {SESSION}/max_reconnect_attempts && echo round-robin > {SESSION}/mp_policy")
        self.paths = [f"{SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1" for link in (1, 2)]

    def start_load(self):
        load = self.client.start(LOAD.format(disk=self.stack.disk))
        blockdev.wait_for_reads(self.client, self.stack)
        return load

    def every(self, seconds: int) -> None:
        self.client.run(f"echo {seconds} > {SESSION}/reauth_interval_s")

    def proofs(self) -> int:
        return self.server.run("dmesg").count("authenticated with key default")

    def outages(self) -> int:
        return self.client.run("dmesg").count("no path to the server is left")

    def failovers(self) -> int:
        lines = self.client.run(f"cat {SESSION}/paths/*/stats/rdma").splitlines()
        return sum(int(line.split()[-1]) for line in lines)

    def connected(self) -> int:
        return blockdev.connected(self.client)

    def wait(self, more: int) -> tuple[int, int]:
        """Waits for this number of new proofs; returns how often there was no path, and the requests sent again."""
        before, cut_off, again = self.proofs(), self.outages(), self.failovers()
        self.every(10)
        wait_for(lambda: self.proofs() >= before + more, 120, "the paths have authenticated again")
        self.every(0)
        wait_for(lambda: self.connected() == len(keyring.key_ids(self.client, "client")), 60, "all are connected")
        return self.outages() - cut_off, self.failovers() - again

    def lose_one(self) -> int:
        """Takes a key that the server does not have, which closes one path; how often there was no path."""
        keyring.load(self.client, "wrong", key_id="wrong")
        self.client.run(f"echo wrong > {SESSION}/key_id")
        self.every(10)
        wait_for(lambda: self.connected() == 1, 60, "one path is refused")
        return self.outages()


@fast
def test_paths_authenticate_again_after_a_time(pair, stack):
    """I/O waits for an only path if it may, and never for one of two, which is drained first. What the server resets
    meanwhile is no attempt. Without a key no path goes, and one that does not come back is the last one to go."""
    again = Again(pair, stack)
    client = again.client
    assert not client.ok(f"echo 9 > {SESSION}/reauth_interval_s")
    client.run(f"echo 0 > {SESSION}/queue_timeout_s")
    again.every(10)
    client.wait_for_log("the only path does not authenticate again, as requests would fail with queue_timeout_s 0", 60)
    client.run(f"echo 60 > {SESSION}/queue_timeout_s")
    keyring.remove(client)
    again.every(10)
    client.wait_for_log("key default cannot be used (ENOKEY), so the paths do not authenticate again", 60)
    assert again.proofs() == 1 and again.outages() == 0 and again.connected() == 1
    keyring.load(client)
    load = again.start_load()
    assert again.wait(1)[0] >= 1
    blockdev.wait_for_reads(client, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    assert again.wait(2) == (0, 0)
    assert client.run(f"cat {' '.join(f'{path}/drain' for path in again.paths)}").split() == ["0", "0"]
    fio.end(client, load)
    cut_off = again.lose_one()
    # The other one is due by now, or in a moment.
    time.sleep(4)
    assert again.connected() == 1 and again.outages() == cut_off


@pytest.mark.thorough
@fast
def test_paths_authenticate_again_and_again(pair, stack):
    """Several times each. One that cannot for three intervals, because of another one, is a line in the log, and both do
    so again when that one is back."""
    again = Again(pair, stack)
    client = again.client
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    load = again.start_load()
    assert again.wait(6) == (0, 0)
    cut_off = again.lose_one()
    client.wait_for_log("has not authenticated again for three intervals, as ip:10.0.", 120)
    assert again.connected() == 1 and again.outages() == cut_off
    again.every(0)
    client.run(f"echo default > {SESSION}/key_id")
    for path in again.paths:
        client.run(f"[ $(cat {path}/state) = connected ] || echo 1 > {path}/reconnect")
    assert again.wait(2) == (0, 0)
    fio.end(client, load)


@fast
def test_a_path_ends_with_its_key(pair, stack):
    """The server closes the paths that a key has authenticated once it is removed, and no other."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
        keyring.load(guest, "next", key_id="next")
    map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    load = client.start(LOAD.format(disk=stack.disk))
    client.run(f"echo next > {SESSION}/key_id; echo 1 > {SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1/reconnect")
    assert sorted(keyring.key_ids(server, "server")) == ["default", "next"]
    keyring.remove(server)
    server.wait_for_log("ip:10.0.1.2@ip:10.0.1.1: its key default is no longer loaded", 60)
    assert blockdev.connected(client) >= 1
    # The client's id names the key that is left.
    wait_for(lambda: keyring.key_ids(server, "server") == ["next", "next"], 60, "the path is back")
    blockdev.wait_for_reads(client, stack)
    fio.end(client, load)


@fast
def test_a_path_ends_with_the_key_that_was_replaced(pair, stack):
    """Another key of the same id, as another key or in place, ends the paths that the former one has
    authenticated; the same key loaded again ends none."""
    server, client = pair
    server.run(f"modprobe ibtrs_server {RARE_HEARTBEATS}")
    for guest in pair:
        keyring.load(guest)
    map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    load = client.start(LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    since = client.run(f"cat {SESSION}/paths/*/stats/reconnects")
    keyring.load(server)
    time.sleep(2)
    assert client.run(f"cat {SESSION}/paths/*/stats/reconnects") == since and blockdev.connected(client) == 2
    keyring.load(server, "next", writable=True)
    for link in (1, 2):
        ends = f"ip:10.0.{link}.2@ip:10.0.{link}.1"
        server.wait_for_log(f"{ends}: its key default is no longer loaded (EKEYREJECTED)", AT_ONCE_S)
    wait_for(lambda: blockdev.connected(client) == 0, AT_ONCE_S, "the paths have ended")
    keyring.load(client, "next")
    wait_for(lambda: blockdev.connected(client) == 2, 60, "the paths are back")
    keyring.change_in_place(server, "third")
    wait_for(lambda: blockdev.connected(client) == 0, AT_ONCE_S, "the paths have ended once more")
    keyring.load(client, "third")
    wait_for(lambda: blockdev.connected(client) == 2, 60, "the paths are back once more")
    blockdev.wait_for_reads(client, stack)
    fio.end(client, load)


def test_a_key_that_is_taken_away(pair, stack):
    """Nothing is connected without the key, and everything is once it is back; by the other suite."""
    server, client = pair
    client.run("modprobe ibtrs_client auth_suites=hmac")
    server.run(f"modprobe ibtrs_server {RARE_HEARTBEATS}")
    for guest in pair:
        keyring.load(guest)
    map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    load = client.start(LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    open_there = "ls /sys/class/ibnbd-server/ctl/devices"
    assert server.run(open_there).split() != []
    keyring.remove(server)
    wait_for(lambda: blockdev.connected(client) == 0, AT_ONCE_S, "the paths have ended")
    wait_for(lambda: server.run(open_there).split() == [], AT_ONCE_S, "the disk is closed")
    second = f"{SESSION}/paths/ip:10.0.2.2@ip:10.0.2.1"
    assert not client.ok(f"echo 1 > {second}/reconnect")
    assert "authentication" in client.run(f"cat {second}/last_error")
    # Without its last key the server does not let strangers in.
    assert map_errno(client, map_line(stack).replace("sessname=demo", "sessname=other")) == errno.EKEYREJECTED
    keyring.load(server)
    wait_for(lambda: blockdev.connected(client) == 2, 60, "the paths are back")
    blockdev.wait_for_reads(client, stack)
    fio.end(client, load)


def test_a_key_that_nobody_has_used(pair, stack):
    """A server that had a key for a while lets no stranger in, even if nobody connected meanwhile."""
    keyring.load(pair.server)
    keyring.remove(pair.server)
    assert refused(pair, stack) == errno.EKEYREJECTED


def use_disk(client, stack, number: int = 0) -> None:
    """Maps a disk from another address than strangers come from, verifies it and unmaps it."""
    client.run(map_line(stack).replace("10.0.1.1", "10.0.2.2,ip:10.0.2.1"))
    client.run(f"fio --name=verify --filename=/dev/{stack.family}{number} --rw=randwrite --bs=4k --iodepth=16 "
               "--direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 --size=2m", timeout=300)
    client.run(stack.unmap(number))


def hostile(client, text: str, seconds: int = 120) -> list[str]:
    """Runs a program that has the right key of the session `demo` at hand; the lines that it prints."""
    right, other = keyring.secret("right"), keyring.secret("other")
    head = f"from testbed.hostile.auth import *\nKEY, OTHER = {right!r}, {other!r}\n"
    return launch.program(client, head + text).wait(seconds).splitlines()


@fast
@needs_immediates
def test_a_client_of_user_space_gets_in(pair, stack):
    """The protocol's page is enough to write a client."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    keyring.load(server)
    server.run(stack.load_server())
    assert hostile(client, f"""
with KeyHolder(KEY, "demo", cid_num=3) as me:
    me.set_up()
    me.sess_info()
    disk = me.open("{device}")
    print(me.submit(disk, wire.WRITE), me.submit(disk, wire.READ))
""") == ["OK OK"]
    assert "authenticated with key default" in server.run("dmesg")


@fast
@needs_immediates
def test_clients_of_each_suite_get_in(pair, stack):
    """Unknown bits of an offer change nothing."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    keyring.load(server)
    server.run(stack.load_server())
    said = hostile(client, f"""
for suites in (HMAC_SHA256, X25519, ALL_SUITES, 0xfd, 0xff):
    with KeyHolder(KEY, "demo", cid_num=3) as me:
        me.offer(suites)
        refused = me.prove()
        for cid in range(1, 3):
            me.join(cid)
        me.introduce()
        me.sess_info()
        disk = me.open("{device}")
        print(me.chosen, refused, me.submit(disk, wire.WRITE), me.submit(disk, wire.READ))
for suites in (0, 0xfc):
    with KeyHolder(KEY, "demo") as me:
        try:
            me.offer(suites)
        except Rejected as rejected:
            print(errno.errorcode[refusal(rejected.private)])
""")
    assert said == ["1 0 OK OK", *["2 0 OK OK"] * 2, "1 0 OK OK", "2 0 OK OK", *["EKEYREJECTED"] * 2]


@fast
@needs_immediates
def test_the_key_alone_opens_no_path(pair, stack):
    """Somebody who has the key and saw the exchange on the wire joins a path that was connected by suite 1, and
    none of suite 2."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())
    said = hostile(client, """
for suites in (HMAC_SHA256, ALL_SUITES):
    with KeyHolder(KEY, "demo", cid_num=3, epoch=5) as honest, KeyHolder(KEY, "demo", cid_num=3, epoch=5) as listener:
        honest.offer(suites)
        honest.prove()
        listener.path, listener.session = honest.path, honest.session
        listener.path_key = mac(KEY, "path key", *honest.said)
        print(honest.chosen, listener.refused(1, listener.proved(1)))
        if honest.chosen == X25519:
            # With a secret of its own, too.
            agreed = x25519(os.urandom(32), honest.said[3][40:72])
            listener.path_key = mac(mac(KEY, "secret", agreed), "path key", *honest.said)
            print(errno.errorcode[listener.refused(1, listener.proved(1))])
            honest.join(1)
            honest.join(2)
            honest.introduce()
            honest.heartbeat()
""")
    assert said == ["1 0", f"2 {errno.EKEYREJECTED}", "EKEYREJECTED"]


def failures(server) -> list[str]:
    """The lines of the server's log about clients that could not prove themselves."""
    return [line for line in server.run("dmesg").splitlines() if "authentication failed" in line]


@fast
@needs_immediates
def test_shares_of_low_order(pair, stack):
    """A share that everybody agrees with is refused from somebody who has the key; from a stranger the server does not
    even look at it."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())
    before = len(failures(server))
    said = hostile(client, """
for key in (KEY, bytes(32)):
    clients = [(KeyHolder(key, "demo"), share) for share in LOW_ORDER[:4]]
    for me, _ in clients:
        me.offer_until_allowed()
    # All at once, so that none has to wait because of those before it.
    messages = [(me, me.auth1(share=share)) for me, share in clients]
    for me, message in messages:
        me.service.pair.send(message)
    for me, _ in messages:
        me.service.wait_closed()
        print(me.chosen, len(me.service.pair.messages))
        me.leave()
    # One that the server believes pays the debts of the others.
    with KeyHolder(KEY, "demo", cid_num=1) as me:
        me.offer_until_allowed()
        print(me.prove())
""", 300)
    assert said == [*["2 0"] * 4, "0"] * 2
    lines = failures(server)[before:]
    # A line for each failure.
    assert ["agrees on nothing secret" in line for line in lines] == [True] * 4 + [False] * 4
    assert all("the client's key default differs" in line for line in lines[4:])
    wait_for_no_session(server)


@fast
@needs_immediates
def test_a_path_is_not_completed_without_its_key(pair, stack):
    """A client that has proved a key and connected everything waits with the INFO request until the key is
    gone, or another one has its id."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())
    client.run("rm -f /tmp/removed /tmp/replaced /tmp/returned")
    waiting = launch.program(client, f"""
from testbed.hostile.auth import *

def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.05)

KEY = {keyring.secret("right")!r}
with KeyHolder(KEY, "demo") as first, KeyHolder(KEY, "demo") as second, KeyHolder(KEY, "demo") as third:
    for me in (first, second, third):
        me.connect_all()
    print("ready", flush=True)
    wait_for("/tmp/removed")
    print(first.is_disbelieved(first.info_req()), flush=True)
    wait_for("/tmp/replaced")
    print(second.is_disbelieved(second.info_req()), flush=True)
    wait_for("/tmp/returned")
    third.introduce()
    third.heartbeat()
    print("in")
""")
    launch.ready(waiting)
    for file, change in (("removed", keyring.remove), ("replaced", lambda guest: keyring.load(guest, "next")),
                         ("returned", keyring.load)):
        change(server)
        before = len(waiting.text.splitlines())
        client.run(f"touch /tmp/{file}")
        wait_for(lambda: len(waiting.text.splitlines()) > before or not waiting.running, 60, file)
    assert waiting.wait(60).splitlines() == ["ready", "True", "True", "in"]
    assert "its key default is no longer loaded (ENOKEY)" in server.run("dmesg")


@needs_immediates
def test_strangers_prove_nothing(pair, stack):
    """Whatever a stranger sends in place of AUTH1, the path ends without an answer."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())
    said = hostile(client, """
def attempt(name, message_of, key=KEY):
    with KeyHolder(key, "demo") as me:
        me.offer_until_allowed()
        print(name, me.is_disbelieved(message_of(me)), flush=True)

attempt("wrong-key", lambda me: me.auth1(), bytes(32))
attempt("other-session", lambda me: me.auth1(name=b"other"))
attempt("other-id", lambda me: me.auth1(key_id=b"other"))
attempt("empty", lambda me: b"")
attempt("short", lambda me: me.auth1()[:391])
attempt("type", lambda me: me.auth1(type=6))
attempt("suite", lambda me: me.auth1(suite=3 - me.chosen, share=bytes(32)))
attempt("no-suite", lambda me: me.auth1(suite=3))
attempt("reserved", lambda me: replace(me.auth1(), 7, b"x"))
attempt("no-nul", lambda me: me.auth1(name=b"x" * 256))
attempt("nonce", lambda me: replace(me.auth1(), 296, bytes(32)))
attempt("info-first", lambda me: me.info_req())
attempt("reflected", lambda me: b"\x06" + me.auth1()[1:])
# The message of an honest client in another exchange, for the same request.
with KeyHolder(KEY, "demo", cid_num=1) as honest:
    honest.offer_until_allowed()
    overheard = honest.auth1()
    honest.prove(overheard)
attempt("replayed", lambda me: overheard)
""", 300)
    assert len(said) == 14
    assert [line for line in said if not line.endswith(" True")] == []
    wait_for_no_session(server)
    assert "authentication failed" in server.run("dmesg")


@fast
@needs_immediates
def test_who_saw_everything_cannot_join(pair, stack):
    """The numbers of a session and its paths, and the messages of the exchange, are of no use
    without the key, or with another one: neither for a connection, nor to end a path as its next
    attempt would."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    keyring.load(server)
    keyring.load(server, "other", session="other")
    server.run(stack.load_server())
    said = hostile(client, f"""
with KeyHolder(KEY, "demo", cid_num=3, epoch=5) as honest, KeyHolder(bytes(32), "demo", cid_num=3, epoch=5) as stranger:
    honest.offer()
    honest.prove()
    stranger.path, stranger.session, stranger.path_key = honest.path, honest.session, bytes(32)
    first = honest.proved(1)
    print(errno.errorcode[stranger.refused(1)], errno.errorcode[stranger.refused(1, stranger.proved(1))])
    # The honest client's own proof, for another number, number of connections, attempt.
    for at, value in ((6, 2), (8, 2), (48, 6)):
        print(errno.errorcode[stranger.refused(1, replace(first, at, bytes([value])))])
    # A plain path, which joins no authenticated session.
    print(errno.errorcode[stranger.refused(0, path=os.urandom(16), ext=0, epoch=0)])
    honest.join(1)
    # Replayed.
    print(stranger.refused(1, first) != 0)
    honest.join(2)
    honest.introduce()
    honest.sess_info()
    disk = honest.open("{device}")
    # Somebody with the key of another session, as the next attempt of the path, and as another path.
    for path in (honest.path, os.urandom(16)):
        with KeyHolder(OTHER, "other", cid_num=3, epoch=6) as insider:
            insider.path, insider.session = path, honest.session
            insider.offer()
            print(errno.errorcode[insider.prove()], honest.submit(disk, wire.WRITE))
    # The next attempt of the path, of which nothing follows.
    stranger.extensions["epoch"] = 6
    stranger.offer()
    print(stranger.chosen, honest.submit(disk, wire.WRITE))
    print(stranger.is_disbelieved(stranger.auth1()), honest.submit(disk, wire.READ))
    honest.heartbeat()
""")
    assert said == ["EKEYREJECTED EKEYREJECTED", *["EKEYREJECTED"] * 4, "True", *["EKEYREJECTED OK"] * 2, "2 OK", "True OK"]


@fast
@needs_immediates
def test_nobody_without_a_key_keeps_the_name_of_a_session_with_one(pair, stack):
    """A stranger has taken the session's name and its disk. The client with the key gets both, and the stranger, who
    adds paths as fast as it can, gets neither again."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    keyring.load(server)
    server.run(f"modprobe ibtrs_server auth=optional && {stack.load_server()}")
    said = hostile(client, f"""
import threading

def stranger(**options):
    return Party(name="demo", epoch=5, **options)

def is_in(me):
    try:
        me.set_up()
        return True
    except OSError:
        return False

with stranger() as first:
    first.set_up()
    first.sess_info()
    disk = first.open("{device}")
    print(first.submit(disk, wire.WRITE))
    ended = threading.Event()
    added = []
    def cling():
        while not ended.is_set() and len(added) < 500:
            me = stranger(session=first.session, address=f"10.0.{{2 - len(added) % 2}}.1")
            added.append(me)
            is_in(me)
    clinging = threading.Thread(target=cling)
    clinging.start()
    with KeyHolder(KEY, "demo") as owner:
        owner.set_up()
        owner.sess_info()
        print(owner.submit(owner.open("{device}"), wire.READ))
        ended.set()
        clinging.join()
        first.wait_closed()
        for me in added:
            me.leave(quietly=True)
        with stranger() as again:
            print(is_in(again))
        owner.heartbeat()
# The name is free.
for _ in range(100):
    with stranger() as again:
        if is_in(again):
            print("in")
            break
    time.sleep(0.2)
""", 300)
    assert said == ["OK", "OK", "False", "in"]
    log = server.run("dmesg")
    assert "disconnected: its session is not authenticated, and the client at ip:10.0.1.2@ip:10.0.1.1 has proved" in log
    assert "demo: ip:10.0.1.2@ip:10.0.1.1: session refused: another client already has a session with this name" in log


def session_seen(frames) -> bytes:
    """The UUID of the session whose first request is in one of these frames."""
    first = wire.CONN_REQ.pack()[2:8]
    asked = [wire.CONN_REQ.unpack(frame[frame.index(first) - 2:].ljust(wire.CONN_REQ.length))
             for frame in frames if first in frame]
    # An acceptance begins in the same way, with the queue depth in place of the number of connections.
    [uuid] = {request["session"] for request in asked if request["ext"] == 1 and request["cid_num"] < 64}
    return uuid


@fast
@needs_immediates
def test_nobody_keeps_a_session_out_under_its_uuid(pair, stack):
    """Somebody with the key of another session has seen the session's UUID, and begins one under it while the client is
    away. The client comes back nevertheless, as to a restarted server, and its I/O goes on. It has one attempt,
    which does not end with the old UUID."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    keyring.load(server, "other", session="other")
    with recorded(server) as frames:
        map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    load = client.start(LOAD.format(disk=stack.disk))
    blockdev.wait_for_reads(client, stack)
    client.run(f"echo 1 > {SESSION}/max_reconnect_attempts")
    paths = [f"{SESSION}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1" for link in (1, 2)]
    for path in paths:
        client.run(f"echo 1 > {path}/disconnect")
    wait_for_no_session(server)
    client.run("rm -f /tmp/back")
    insider = launch.program(client, f"""
from testbed.hostile.auth import *
with KeyHolder({keyring.secret("other")!r}, "other", session={session_seen(frames)!r}) as me:
    me.set_up()
    print("ready", flush=True)
    while not os.path.exists("/tmp/back"):
        me.heartbeat()
        time.sleep(0.5)
    me.heartbeat()
    print("still there")
""")
    launch.ready(insider)
    for path in paths:
        client.run(f"echo 1 > {path}/reconnect")
    assert keyring.key_ids(server, "server") == ["default", "default"]
    blockdev.wait_for_reads(client, stack)
    client.run("touch /tmp/back")
    assert insider.wait(60).splitlines() == ["ready", "still there"]
    assert client.run("dmesg").count("going on with a new UUID") == 1
    fio.end(client, load)


@fast
@needs_immediates
def test_nobody_without_a_key_keeps_a_session_out_under_its_uuid(pair, stack):
    """A stranger has begun a session under the UUID of a client that is away, and begins others as fast as it can. The
    client gets in with its first proof. A wrong one ends nothing."""
    server, client = pair
    keyring.load(server)
    server.run(f"modprobe ibtrs_server auth=optional && {stack.load_server()}")
    uuid = bytes(range(1, 17))
    client.run("rm -f /tmp/in /tmp/enough")
    clinging = launch.program(client, f"""
print("ready", flush=True)
late = 0
while not os.path.exists("/tmp/enough"):
    is_late = os.path.exists("/tmp/in")
    me = Party("10.0.2.1", "stranger", epoch=5, session={uuid!r})
    try:
        me.set_up()
        late += is_late
    except OSError:
        pass
    me.leave(quietly=True)
print(late)
""")
    launch.ready(clinging)
    assert hostile(client, f"""
with Party(name="stranger", epoch=5, session={uuid!r}) as first:
    first.set_up()
    with KeyHolder(OTHER, "demo", session={uuid!r}) as wrong:
        wrong.offer()
        print(wrong.is_disbelieved(wrong.auth1()))
    first.heartbeat()
    with KeyHolder(KEY, "demo", session={uuid!r}) as owner:
        owner.set_up()
        open("/tmp/in", "w").close()
        first.wait_closed()
        time.sleep(2)
        open("/tmp/enough", "w").close()
        owner.heartbeat()
""") == ["True"]
    assert clinging.wait(60).splitlines() == ["ready", "0"]
    log = server.run("dmesg")
    assert "disconnected: its session is not authenticated, and the client at ip:10.0.1.2@ip:10.0.1.1 has proved a key " \
           "under its UUID" in log


@fast
@needs_immediates
def test_a_session_that_is_gone_rejects_no_key(pair, stack):
    """A path asks for a session under its client's UUID that somebody with another key has begun and then ends. Before
    it proves itself, its client begins the session over another path, and must not hear that it has none."""
    server, client = pair
    keyring.load(server)
    keyring.load(server, "other", session="other")
    server.run(stack.load_server())
    assert hostile(client, """
with KeyHolder(OTHER, "other") as insider:
    insider.set_up()
    first = KeyHolder(KEY, "demo", session=insider.session)
    first.offer()
for _ in range(100):
    second = KeyHolder(KEY, "demo", address="10.0.2.1", epoch=2, session=insider.session)
    try:
        second.set_up()
        break
    except (Rejected, ConnectionError):
        # The insider's session is still being closed.
        second.leave(quietly=True)
        time.sleep(0.2)
print(errno.errorcode[first.prove()])
second.heartbeat()
first.leave()
second.leave()
""") == ["ECONNRESET"]


@needs_immediates
def test_the_next_attempt_of_a_client_takes_the_place_of_the_last(pair, stack):
    """Once it has proved itself, and not before."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())
    assert hostile(client, """
with KeyHolder(KEY, "demo", epoch=5) as first, KeyHolder(KEY, "demo", epoch=6) as second:
    first.set_up()
    second.path, second.session = first.path, first.session
    second.offer()
    first.heartbeat()
    # It is refused as one that comes too early, but the former attempt is over.
    print(errno.errorcode[second.prove()])
    first.wait_closed()
    for _ in range(100):
        with KeyHolder(KEY, "demo", epoch=7) as third:
            third.path, third.session = first.path, first.session
            try:
                third.set_up()
            except (Rejected, ConnectionError):
                time.sleep(0.2)
                continue
            third.heartbeat()
            print("back")
            break
""") == ["ECONNRESET", "back"]


@fast
@needs_immediates
def test_failures_of_others_keep_nobody_out(pair, stack):
    """One address fails as often as it can, and keeps connections of which nothing follows; a client at
    another one connects and verifies. Each failure has a line in the log."""
    server, client = pair
    server.null_blk(size_mb=32)
    for guest in pair:
        keyring.load(guest)
    blockdev.load(pair, stack)
    before = len(failures(server))
    client.run("rm -f /tmp/enough /tmp/seen")
    stranger = launch.program(client, f"""
from testbed.hostile.auth import *
idle = []
failures = waits = 0
end = time.monotonic() + 600
print("ready", flush=True)
while time.monotonic() < end and not os.path.exists("/tmp/enough"):
    me = KeyHolder(bytes(32), "demo")
    try:
        me.offer()
        if len(idle) < 20:
            idle.append(me)
            continue
        assert me.is_disbelieved(me.auth1())
        failures += 1
    except Rejected as rejected:
        waits += refusal(rejected.private) == errno.EBUSY
    me.leave()
    if failures > 4 and waits:
        open("/tmp/seen", "w").close()
print(failures, waits > 0)
""")
    launch.ready(stranger)
    for _ in range(3):
        use_disk(client, stack)
    # On a slow machine the stranger has not begun to fail by then.
    client.wait_until("[ -e /tmp/seen ]", 240)
    use_disk(client, stack)
    client.run("touch /tmp/enough")
    failed, has_waited = stranger.wait(120).splitlines()[-1].split()
    assert int(failed) > 4 and has_waited == "True"
    # They come too slowly for the log's limit.
    assert len(failures(server)) - before == int(failed)


@fast
@needs_immediates
def test_failures_do_not_tell_which_keys_there_are(pair, stack):
    """Beside an authenticated client, an unknown key id, an unknown name and a wrong key count alike, and a success
    does not make up for them."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    map_disk(pair, stack)
    assert hostile(client, """
def after_failures(count=9, name="demo", **key):
    clients = [KeyHolder(bytes(32), name, **key) for _ in range(count)]
    for me in clients:
        me.offer_until_allowed()
    for me in clients:
        me.service.pair.send(me.auth1())
    for me in clients:
        me.service.wait_closed()
        me.leave()
    with KeyHolder(bytes(32), name, **key) as last:
        try:
            last.offer()
        except Rejected as rejected:
            return errno.errorcode[refusal(rejected.private)]
    return "accepted"

print(after_failures(key_id="removed"))
print(after_failures(name="nobody"))
print(after_failures())
with KeyHolder(KEY, "demo") as insider:
    insider.offer_until_allowed()
    insider.prove()
    # Allowed by now are fewer.
    print(after_failures(2))
""", 240) == ["EBUSY"] * 4
    assert "no usable key removed of this session is loaded (ENOKEY)" in server.run("dmesg")


@fast
@needs_immediates
def test_failures_keep_no_known_session_out(pair, stack):
    """From the address of an authenticated client, another one fails as often as it can: paths of the session
    connect again at once."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    client.wait_until(f"[ $(cat {SESSION}/paths/*/state | grep -cx connected) = 2 ]")
    client.run("rm -f /tmp/enough")
    removed = launch.program(client, """
from testbed.hostile.auth import *
waits = 0
end = time.monotonic() + 600
while time.monotonic() < end and not os.path.exists("/tmp/enough"):
    me = KeyHolder(bytes(32), "demo", key_id="removed")
    try:
        me.offer()
        assert me.is_disbelieved(me.auth1())
    except Rejected as rejected:
        assert refusal(rejected.private) == errno.EBUSY
        waits += 1
        if waits == 1:
            print("ready", flush=True)
    me.leave()
""")
    launch.ready(removed)
    path = f"{SESSION}/paths/ip:10.0.1.2@ip:10.0.1.1"
    for _ in range(3):
        client.run(f"echo 1 > {path}/reconnect")
        client.wait_until(f"[ $(cat {path}/state) = connected ]")
    assert "EBUSY" not in client.run("dmesg")
    client.run("touch /tmp/enough")
    removed.wait(120)


@pytest.mark.thorough
@fast
@needs_immediates
def test_failures_from_many_sources(pair, stack):
    """A stranger whose addresses nobody can count fails from each of them while one client maps, verifies and
    unmaps, and another one, whose path is set up again each time, verifies all along."""
    server, client = pair
    for number, session in enumerate(("demo", "other")):
        server.null_blk(f"nullb{number}", size_mb=32)
        for guest in pair:
            keyring.load(guest, session, session)
    blockdev.load(pair, stack)
    steady = map_line(stack, device="/dev/nullb1").replace("sessname=demo", "sessname=other")
    client.run(steady.replace("10.0.1.1", "10.0.2.2,ip:10.0.2.1"))
    load = client.start(LOAD.format(disk=stack.disk) + " --thinktime=200ms --runtime=3600")
    own = range(50, 50 + SOURCES)
    change = "for n in {%d..%d}; do echo addr %%s 10.0.1.$n/24 dev eth0; done | ip -batch -" % (own[0], own[-1])
    neighbours = ("for n in {%d..%d}; do echo neigh %%s 10.0.1.$n lladdr 52:54:00:00:01:02 dev eth0 nud permanent; "
                  "done | ip -batch -") % (own[0], own[-1])
    client.run(change % "add")
    # A server that asks for each address would be asked for nothing else.
    server.run(neighbours % "replace")
    stranger = launch.program(client, f"""
from testbed.hostile.auth import *
sources = [f"10.0.1.{{n}}" for n in {list(own)}]
failures = refused = 0
print("ready", flush=True)
end = time.monotonic() + 3600
while failures + refused < {FAILURES} and time.monotonic() < end:
    me = KeyHolder(bytes(32), "demo", source=sources[(failures + refused) % len(sources)])
    try:
        me.offer()
        assert me.is_disbelieved(me.auth1())
        failures += 1
    except Rejected as rejected:
        assert refusal(rejected.private) == errno.EBUSY
        # One that has to wait has failed, too.
        refused += 1
    me.leave()
print(failures, refused)
""")
    launch.ready(stranger)
    use_disk(client, stack, 1)
    while stranger.running:
        use_disk(client, stack, 1)
        client.run("echo 1 > /sys/class/ibtrs-client/other/paths/ip:10.0.2.2@ip:10.0.2.1/reconnect")
    failures, waits = map(int, stranger.wait(120).splitlines()[-1].split())
    print(f"{failures} failures, {waits} refused before AUTH1")
    # The server remembers fewer addresses than there are, so that most get as far as AUTH1.
    assert failures + waits == FAILURES and failures > FAILURES / 2
    assert keyring.key_ids(server, "server", "other") == ["default"]
    fio.end(client, load)
    client.run(change % "del")
    server.run(neighbours % "del")


@needs_immediates
def test_unloading_while_clients_have_yet_to_prove_themselves(pair, stack):
    """A connection of which nothing follows keeps nothing, and no module either."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())
    idle = launch.program(client, """
from testbed.hostile.auth import *
idle = [KeyHolder(bytes(32), f"s{number}") for number in range(20)]
for me in idle:
    me.offer()
print("ready", flush=True)
for me in idle:
    me.service.wait_closed(60)
print("closed")
""")
    launch.ready(idle)
    assert server.run("ls /sys/class/ibtrs-server").split() == []
    server.run(stack.unload("server"), timeout=60)
    assert idle.wait(60).splitlines()[-1] == "closed"


@fast
def test_the_parameter_takes_four_words(pair, stack):
    server, client = pair
    for guest, side in ((client, "client"), (server, "server")):
        assert not guest.ok(f"modprobe ibtrs_{side} auth=yes")
        for word in ("none", "optional", "required", "auto"):
            guest.run(f"modprobe ibtrs_{side} auth={word}")
            assert guest.run(f"cat /sys/module/ibtrs_{side}/parameters/auth") == word
            guest.run(f"rmmod ibtrs_{side}")


@fast
def test_the_suites_take_three_words(pair, stack):
    server, client = pair
    for guest, side in ((client, "client"), (server, "server")):
        for wrong in ("none", "2", "hmac,x25519"):
            assert not guest.ok(f"modprobe ibtrs_{side} auth_suites={wrong}")
        for word in ("hmac", "x25519", "any"):
            guest.run(f"modprobe ibtrs_{side} auth_suites={word}")
            assert guest.run(f"cat /sys/module/ibtrs_{side}/parameters/auth_suites") == word
            guest.run(f"rmmod ibtrs_{side}")


@fast
@pytest.mark.parametrize("server_suites, client_suites, suite", [
    ("any", "any", "x25519"), ("any", "x25519", "x25519"), ("x25519", "any", "x25519"),
    # One side is as if it were of an earlier version.
    ("any", "hmac", "hmac"), ("hmac", "any", "hmac"),
    ("x25519", "hmac", None), ("hmac", "x25519", None)])
def test_suites(pair, stack, server_suites, client_suites, suite):
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    server.run(f"modprobe ibtrs_server auth_suites={server_suites}")
    client.run(f"modprobe ibtrs_client auth_suites={client_suites}")
    if suite is None:
        assert refused(pair, stack) == errno.EPROTONOSUPPORT
        assert "the peer offers no authentication suite that auth_suites allows here" in server.run("dmesg")
        assert "the server takes none of the offered suites" in client.run("dmesg")
        return
    device = map_disk(pair, stack)
    client.run(f"echo {SECOND} > {SESSION}/add_path")
    for guest, side in ((client, "client"), (server, "server")):
        assert keyring.suites(guest, side) == [suite, suite]
    assert f"authenticated with key default, suite {suite}" in server.run("dmesg")
    client.run(f"dd if=/dev/urandom of={stack.disk} bs=1M count=4 oflag=direct status=none")
    assert blockdev.same_on_both(pair, device, stack.disk, 4)


@fast
def test_no_suite_is_not_no_authentication(pair, stack):
    """Where authentication is optional, a client that can authenticate, but only by a suite that the server does
    not take, does not get in without."""
    server, client = pair
    for guest in pair:
        keyring.load(guest)
    server.null_blk(size_mb=16)
    server.run("modprobe ibtrs_server auth=optional auth_suites=x25519")
    client.run("modprobe ibtrs_client auth=optional auth_suites=hmac")
    assert refused(pair, stack) == errno.EPROTONOSUPPORT
    # One that has no key does.
    keyring.remove(client)
    assert map_errno(client, map_line(stack)) == 0
    assert keyring.suites(server, "server") == [""]


@fast
@pytest.mark.parametrize("server_auth, client_auth, keys, outcome", [
    ("none", "auto", "", 0), ("none", "optional", "both", 0), ("none", "required", "both", errno.EKEYREJECTED),
    ("optional", "none", "both", 0), ("optional", "optional", "both", 0), ("optional", "required", "both", 0),
    ("optional", "required", "client", errno.EKEYREJECTED), ("required", "none", "both", errno.EKEYREJECTED),
    ("required", "optional", "both", 0), ("required", "required", "", errno.ENOKEY),
    ("required", "optional", "client", errno.ENOKEY)])
def test_policies(pair, stack, server_auth, client_auth, keys, outcome):
    server, client = pair
    server.null_blk(size_mb=32)
    server.run(f"modprobe ibtrs_server auth={server_auth}")
    client.run(f"modprobe ibtrs_client auth={client_auth}")
    for guest in {"": (), "client": (client,), "both": pair}[keys]:
        keyring.load(guest)
    blockdev.load(pair, stack)
    assert map_errno(client, map_line(stack)) == outcome
    if outcome == 0:
        proved = "default" if keys == "both" and "none" not in (server_auth, client_auth) else ""
        assert keyring.key_ids(server, "server") == [proved]
        assert keyring.key_ids(client, "client") == [proved]


@fast
@needs_immediates
@pytest.mark.parametrize("server_auth, gets_in", [
    ("none", True), ("optional", True), ("auto", False), ("required", False)])
def test_mainlines_client(pair, server_auth, gets_in):
    """It cannot authenticate, and is none the wiser where nobody asks it to."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    keyring.load(server)
    server.run(f"modprobe ibtrs_server auth={server_auth}; modprobe ibnbd_server dev_search_path=/dev")
    client.run(MAINLINE.load_client())
    name = device.removeprefix("/dev/")
    line = f'echo "sessname=s path=ip:10.0.1.1 device_path={name}" > {MAINLINE.map_file}'
    if gets_in:
        client.run(line)
        client.run(f"dd if=/dev/urandom of={MAINLINE.disk} bs=64k count=16 oflag=direct status=none")
        assert blockdev.same_on_both(pair, device, MAINLINE.disk, 1)
    else:
        assert not client.ok(line)
        assert "the client does not authenticate, but must" in server.run("dmesg")
    client.run(MAINLINE.unload("client"), check=False)


@fast
@needs_immediates
def test_mainlines_server(pair):
    """A client that must authenticate refuses it, and says why; any other client goes on as ever, with a key or
    without."""
    server, client = pair
    device = server.null_blk(size_mb=16)
    server.run(MAINLINE.load_server())
    line = f'echo "sessname=demo path=ip:10.0.1.1 device_path={device.removeprefix("/")}" > {OURS.map_file}'
    keyring.load(client)
    for auth in ("auto", "required", "none", "optional"):
        client.run(f"dmesg -C; modprobe ibtrs_client auth={auth}; {OURS.load_client()}")
        if auth in ("auto", "required"):
            assert map_errno(client, line) == errno.EKEYREJECTED
            assert "the peer does not authenticate, but must" in client.run("dmesg")
            # With a key or without.
            keyring.remove(client)
            if auth == "required":
                assert map_errno(client, line) == errno.ENOKEY
                assert "authentication is required, but no key is loaded" in client.run("dmesg")
        if auth != "required":
            # It may not be done with the session before.
            wait_for(lambda: client.ok(line), 60, "the client is taken")
            assert keyring.key_ids(client, "client") == [""]
            client.run(f"dd if=/dev/urandom of={OURS.disk} bs=64k count=16 oflag=direct status=none")
            assert blockdev.same_on_both(pair, device, OURS.disk, 1)
            client.run(OURS.unmap())
        keyring.load(client)
        client.run("busybox rmmod ibnbd_client ibtrs_client")
    server.run(MAINLINE.unload("server"), check=False)


# A server that has no key, one for each lie, and the error that the client's user gets.
LIES = {"no suite": errno.EKEYREJECTED, "another suite": errno.EPROTO, "no proof": errno.EKEYREJECTED,
        "no proof in suite 2": errno.EKEYREJECTED, "share of low order": errno.EPROTO,
        "changes the suite": errno.EPROTO, "share in suite 1": errno.EPROTO,
        "refusal without proof": errno.EKEYREJECTED, "empty": errno.EPROTO, "reflected": errno.EPROTO,
        "closes": errno.EKEYREJECTED, "fence": errno.ECONNABORTED, "heartbeat": errno.ECONNABORTED}
LIARS = """
from testbed.hostile.auth import *
from testbed.hostile.server import Honest, Server, serve

def auth2(head=bytes(5), suite=HMAC_SHA256, share=bytes(32)):
    return bytes([AUTH2, 0, suite]) + head + os.urandom(32) + share + os.urandom(32)

SAY = {
    "no proof": lambda server, by: by.pair.send(auth2()),
    "no proof in suite 2": lambda server, by: by.pair.send(auth2(suite=X25519, share=x25519(os.urandom(32), BASE))),
    "share of low order": lambda server, by: by.pair.send(auth2(suite=X25519, share=LOW_ORDER[2])),
    "changes the suite": lambda server, by: by.pair.send(auth2()),
    "share in suite 1": lambda server, by: by.pair.send(auth2(share=LOW_ORDER[1])),
    "refusal without proof": lambda server, by: by.pair.send(auth2(bytes([0, 104, 0, 0, 0]))),
    "empty": lambda server, by: by.pair.send(b""),
    "reflected": lambda server, by: by.pair.send(server.heard[:104]),
    "closes": lambda server, by: server.disconnect_once_established(by),
    # The answer to a fence that another path of the session may wait for.
    "fence": lambda server, by: by.pair.write_imm(b"", wire.imm(wire.IMM_FENCE_DONE, 1)),
    "heartbeat": lambda server, by: by.pair.write_imm(b"", wire.imm(wire.IMM_HEARTBEAT, 0)),
}

class Liar(Honest):
    def __init__(self, lie):
        super().__init__()
        self.lie = lie

    def connect(self, server, connection, asked):
        suite = {"no suite": 0, "another suite": 3, "no proof in suite 2": X25519, "share of low order": X25519,
                 "changes the suite": X25519}.get(self.lie, HMAC_SHA256)
        private = replace(server.acceptance(), CHOSEN_AT, bytes([suite]))
        connection.accept(replace(private, NONCE_AT, os.urandom(12)))

    def info(self, server, connection):
        SAY[self.lie](server, connection)

servers = [Server("10.0.1.1", 5001 + number, Liar(lie)) for number, lie in enumerate(LIES)]
serve(servers, "/tmp/enough")
"""


@fast
@needs_immediates
def test_a_server_that_has_no_key(pair, stack):
    """Whatever it says in place of its proof, the client connects to nothing, and says so at once."""
    server, client = pair
    keyring.load(client)
    client.run(stack.load_client())
    server.run("rm -f /tmp/enough")
    liars = launch.ready(launch.program(server, f"LIES = {list(LIES)}\n{LIARS}"))
    for number, (lie, error) in enumerate(LIES.items()):
        line = map_line(stack, f"dest_port={5001 + number}")
        assert (lie, map_errno(client, line)) == (lie, error)
    assert "share agrees on nothing secret" in client.run("dmesg")
    server.run("touch /tmp/enough")
    assert liars.wait(60).splitlines()[-1] == "[]"
    # A breach of the protocol is not the last word on this server.
    keyring.load(server)
    map_disk(pair, stack)
    assert keyring.key_ids(client, "client") == ["default"]


# Between the client and a server that has its key, messages are changed, sent again, or sent to another path: the
# errors of one mapping after the other.
REJECTED = errno.EKEYREJECTED
ON_THE_WAY = {
    "nothing, suite 1": [0], "nothing, suite 2": [0],
    # The request, whose offer and extensions others could want to be weaker.
    "suites of the request": [REJECTED], "extensions of the request": [REJECTED],
    "extensions removed from the request": [REJECTED], "path of the request": [REJECTED],
    "session of the request": [REJECTED], "epoch of the request": [REJECTED],
    "boot id of the server": [REJECTED], "nonce of the server": [REJECTED],
    "nonce of AUTH1": [REJECTED], "nonce of AUTH2": [REJECTED], "refusal of AUTH2": [REJECTED],
    "share of AUTH2": [REJECTED], "proof of connection 1": [REJECTED], "proof of another connection": [REJECTED],
    # The first mapping is as it should be; its messages are those that come again.
    "acceptance again": [0, REJECTED], "AUTH2 again": [0, REJECTED], "acceptance and AUTH2 again": [0, REJECTED],
    "further acceptances again": [0, REJECTED]}
IN_THE_MIDDLE = """
from testbed.hostile.auth import *
from testbed.hostile.key_server import *
from testbed.hostile.server import serve

def changed(message, at, field):
    return lambda me, what, said: replace(said, at, field) if what == message else said

def again(*messages):
    # Nothing is another message than it was when it first came.
    return lambda me, what, said: me.first_said.setdefault(what, said) if what in messages else said

def of_another(me, what, said):
    if what in ("acceptance 1", "acceptance 2"):
        return replace(said, NONCE_AT, me.first_said.setdefault("further", said)[NONCE_AT:])
    return said

DO = {
    "nothing, suite 1": lambda me, what, said: said,
    "nothing, suite 2": lambda me, what, said: said,
    "suites of the request": changed("request", OFFERED_AT, bytes([HMAC_SHA256])),
    "extensions of the request": changed("request", 46, bytes(1)),
    "extensions removed from the request": changed("request", 45, bytes(2)),
    "path of the request": changed("request", 12, bytes(16)),
    "session of the request": changed("request", 28, bytes(16)),
    "epoch of the request": changed("request", 48, bytes([77])),
    "boot id of the server": changed("acceptance 0", 28, b"another server's"),
    "nonce of the server": changed("acceptance 0", NONCE_AT, bytes(12)),
    "nonce of AUTH1": changed("AUTH1", 296, bytes(32)),
    "nonce of AUTH2": changed("AUTH2", 8, bytes(32)),
    "refusal of AUTH2": changed("AUTH2", 4, bytes([104])),
    "share of AUTH2": changed("AUTH2", 40, x25519(os.urandom(32), BASE)),
    "proof of connection 1": changed("acceptance 1", NONCE_AT, bytes(12)),
    "proof of another connection": of_another,
    "acceptance again": again("acceptance 0"),
    "AUTH2 again": again("AUTH2"),
    "acceptance and AUTH2 again": again("acceptance 0", "AUTH2"),
    "further acceptances again": again("acceptance 1", "acceptance 2"),
}

class Middle(KeyServer):
    def __init__(self, name):
        super().__init__(KEY, X25519 if name in ("nothing, suite 2", "share of AUTH2") else HMAC_SHA256)
        self.do, self.first_said = DO[name], {}

    def arrives(self, what, said):
        return self.do(self, what, said)

class Swaps(KeyServer):
    # Sends each of two sessions what is for the other.
    waiting = None

    def prove(self, connection, auth2):
        if self.waiting is None:
            self.waiting = connection, auth2
            return
        other, others = self.waiting
        connection.pair.send(others)
        other.pair.send(auth2)

servers = [Server("10.0.1.1", 5001 + number, Middle(name)) for number, name in enumerate(NAMES)]
servers.append(Server("10.0.1.1", 5001 + len(NAMES), Swaps(KEY)))
serve(servers, "/tmp/enough")
"""


@fast
@needs_immediates
def test_what_happens_on_the_way(pair, stack):
    """A server with the key and somebody between it and the client: whatever he does to the messages of the exchange,
    the client has no session."""
    server, client = pair
    for session in ("demo", "other"):
        keyring.load(client, session=session)
    client.run(stack.load_client())
    server.run("rm -f /tmp/enough")
    program = f"KEY = {keyring.secret('right')!r}\nNAMES = {list(ON_THE_WAY)}\n{IN_THE_MIDDLE}"
    middle = launch.ready(launch.program(server, program))
    for number, (name, outcomes) in enumerate(ON_THE_WAY.items()):
        line = map_line(stack, f"dest_port={5001 + number}")
        for outcome in outcomes:
            said = client.run(line, timeout=120, check=False)
            assert said.ok == (outcome == 0) and (said.ok or os.strerror(outcome) in said), (name, said)
            if said.ok:
                client.run(f"dd if={stack.disk} of=/dev/null bs=4k count=1 iflag=direct status=none")
                client.run(stack.unmap())
            assert client.run("ls /sys/class/ibtrs-client").split() == []
    # AUTH2 of one session arrives in the other, which has the same key.
    line = map_line(stack, f"dest_port={5001 + len(ON_THE_WAY)}")
    other = client.start(line.replace("sessname=demo", "sessname=other"))
    assert map_errno(client, line) == REJECTED
    assert not other.wait(120, check=False).ok
    assert "the keys differ" in client.run("dmesg")
    server.run("touch /tmp/enough")
    assert middle.wait(60).splitlines()[-1] == "[]"


@fast
@needs_immediates
def test_what_happens_on_the_way_to_the_server(pair, stack):
    """The same towards the server, from a client that has the key: its AUTH1 is one of other messages than the server
    has seen, or of another session; its proof of a connection, or its name, is that of another session."""
    server, client = pair
    keyring.load(server)
    keyring.load(server, session="other")
    server.run(stack.load_server())
    said = hostile(client, """
def honest(name="demo"):
    me = KeyHolder(KEY, name, cid_num=2)
    me.offer_until_allowed()
    return me

def disbelieved(me, message):
    try:
        return me.is_disbelieved(message)
    finally:
        me.leave()

# The client has sent other bytes of the request than those that arrive, or has heard others of the acceptance.
REQUEST = {"path": (12, bytes(16)), "session": (28, bytes(16)), "extensions": (45, bytes(1)), "flags": (46, bytes([5])),
           "suites": (OFFERED_AT, bytes([HMAC_SHA256])), "epoch": (48, bytes([7]))}
ACCEPTANCE = {"depth": (6, bytes([1])), "no extensions": (20, bytes(1)), "run": (28, bytes(16)),
              "nonce": (NONCE_AT, bytes(12))}
for number, (name, (at, value)) in enumerate({**REQUEST, **ACCEPTANCE}.items()):
    me = honest()
    if number < len(REQUEST):
        me.asked = replace(me.asked, at, value)
    else:
        me.acceptance = replace(me.acceptance, at, value)
    print(name, disbelieved(me, me.auth1()), flush=True)
    if number % 3 == 2:
        # Pays the debts of those before.
        with honest() as me:
            assert me.prove() == 0
# With the extensions goes the offer.
with KeyHolder(KEY, "demo") as me:
    print("removed", errno.errorcode[me.refused(0, ext=0)])

# Two sessions with the same key at once.
with honest() as first, honest() as second, honest("other") as third:
    message = first.auth1()
    print("swapped", second.is_disbelieved(message), third.is_disbelieved(message))
    assert first.prove(message) == 0
    with honest("other") as fourth:
        assert fourth.prove() == 0
        proof = first.proved(1)[12:28]
        print("proof", errno.errorcode[fourth.refused(1, replace(fourth.proved(1), 12, proof))])
        fourth.join(1)
        # The name of the other, which has proved it, too.
        print("name", fourth.is_disbelieved(fourth.info_req(name=b"demo")))
    first.join(1)
    first.introduce()
    first.heartbeat()
""", 300)
    names = "path session extensions flags suites epoch depth no|extensions run nonce".split()
    assert said == [*[f"{name.replace('|', ' ')} True" for name in names], "removed EKEYREJECTED", "swapped True True",
                    "proof EKEYREJECTED", "name True"]
    assert "the peer authenticated for another session name" in server.run("dmesg")
    wait_for_no_session(server)


@fast
@needs_immediates
def test_what_waits_for_its_proof_has_a_queue_pair(pair, stack):
    """Thirty clients that only begin: each has a queue pair on the server, and no region; all together they take less
    memory than one that is believed."""
    server, client = pair
    keyring.load(server)
    server.run(stack.load_server())

    def taken() -> tuple[int, int, int]:
        """Queue pairs, regions, KiB of memory."""
        words = server.run("rdma resource show rxe0").split()
        free = server.run("grep MemAvailable /proc/meminfo").split()[1]
        return int(words[words.index("qp") + 1]), int(words[words.index("mr") + 1]), -int(free)

    def more(before) -> list[int]:
        return [now - then for now, then in zip(taken(), before, strict=True)]

    client.run("rm -f /tmp/thirty /tmp/one /tmp/end")
    begun = launch.program(client, f"""
from testbed.hostile.auth import *
first, *others = [KeyHolder({keyring.secret('right')!r}, "demo", cid_num=2) for _ in range(31)]

def all_of_it():
    assert first.prove() == 0
    first.join(1)
    first.introduce()

# The first one needs things that the others do not need again.
first.offer()
print("ready", flush=True)
for file, act in (("thirty", lambda: [me.offer() for me in others]), ("one", all_of_it), ("end", lambda: None)):
    while not os.path.exists("/tmp/" + file):
        time.sleep(0.05)
    act()
    print(file, flush=True)
""")
    launch.ready(begun)

    def have(step: str) -> None:
        client.run(f"touch /tmp/{step}")
        wait_for(lambda: step in begun.text or not begun.running, 120, step)

    before = taken()
    have("thirty")
    pairs, regions, kib = more(before)
    assert (pairs, regions) == (30, 0)
    assert server.run("ls /sys/class/ibtrs-server").split() == []
    have("one")
    pairs, regions, with_session = more(before)
    print(f"thirty clients: {kib} KiB; a session: {with_session - kib} KiB")
    assert pairs == 31 and regions > 0
    assert kib < with_session - kib
    have("end")
    begun.wait(60)
