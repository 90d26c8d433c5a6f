# SPDX-License-Identifier: GPL-2.0
"""Rules of the operator for messages: who may bind a portal, open channels over a session, or use a portal from
another machine, and how much each may take."""

import time

import pytest

from testbed import blockdev, keyring
from testbed.lab import wait_for
from testbed.message_programs import push, start
from testbed.paths import TOP
from testbed.tool import MESSAGES, Tool

RULES = "/sys/kernel/config/ibmsg"
SESSION = "/sys/class/ibtrs-client/demo"


def load(guest, parameters: str = "") -> None:
    guest.run("[ ! -e /sys/module/ibmsg ] || busybox rmmod ibmsg")
    guest.run(f"modprobe ibmsg {parameters}; mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config")
    push(guest)


def case(guest, *words) -> str:
    return guest.run(f"timeout 60 python3 /tmp/messages.py {' '.join(map(str, words))} 2>&1")


def write(guest, file: str, text: str) -> None:
    guest.run(f"echo '{text}' > {RULES}/{file}")


def refused(guest, file: str, text: str, log: str) -> None:
    assert not guest.ok(f"echo '{text}' > {RULES}/{file}"), text
    guest.wait_for_log(log)


def used(guest, folder: str) -> tuple[int, int]:
    channels, size = guest.run(f"cat {RULES}/{folder}/channels {RULES}/{folder}/memory_bytes").split()
    return int(channels), int(size)


@pytest.mark.fast
def test_users(solo):
    """Root may do all, others what the rules say."""
    load(solo)
    user, other = "1000:1000", "1001:1001"

    def binds(ids: str, name: str = "kv") -> str:
        return case(solo, "as_user", ids, "try_to_bind", name)

    def connects(ids: str) -> list[str]:
        return case(solo, "as_user", ids, "try_to_connect", "local", "nobody").split()

    assert case(solo, "try_to_bind", "kv") == "bound"
    assert binds(user) == "EACCES"
    solo.wait_for_log("portal kv: not bound: uid 1000 has no CAP_NET_ADMIN, and is not in allowed_uids")
    assert connects(user) == ["EACCES"]
    solo.wait_for_log("session local: no channel: uid 1000 has no CAP_NET_ADMIN")
    # Root without the capability is a user like others.
    assert solo.run("setpriv --bounding-set -net_admin python3 /tmp/messages.py try_to_bind kv") == "EACCES"
    solo.run(f"mkdir {RULES}/portals/kv {RULES}/sessions/local")
    assert binds(user) == "EACCES" and connects(user) == ["EACCES"]
    for folder, tries, good in (("portals/kv", binds, "bound"), ("sessions/local", connects, ["ECONNREFUSED", "ENOENT"])):
        bad = "EACCES" if good == "bound" else ["EACCES"]
        write(solo, f"{folder}/allowed_uids", "7 1000")
        assert tries(user) == good and tries(other) == bad
        write(solo, f"{folder}/allowed_uids", "")
        assert tries(user) == bad
        # The group of the process, and a supplementary one.
        write(solo, f"{folder}/allowed_gids", "1001,50")
        assert tries(other) == good and tries("1000:1000:50") == good and tries(user) == bad
        write(solo, f"{folder}/allowed_gids", "")
        write(solo, f"{folder}/allowed_uids", "any")
        assert tries(user) == good and tries(other) == good
    assert binds(user, "other") == "EACCES"
    assert solo.run(f"cat {RULES}/portals/kv/allowed_uids") == "any"
    # What a program has, it keeps.
    holding = start(solo, "as_user", user, "accept_all", "kv")
    wait_for(lambda: "bound" in holding.text, 60, "the portal is bound")
    channel = start(solo, "as_user", user, "hold", "local", "kv")
    wait_for(lambda: "open" in channel.text, 60, "the channel is open")
    solo.run(f"rmdir {RULES}/portals/kv {RULES}/sessions/local")
    assert binds(user) == "EACCES" and connects(user) == ["EACCES"]
    time.sleep(0.5)
    assert channel.running and holding.running, channel.text
    holding.kill()
    assert channel.wait(60).ok


@pytest.mark.fast
def test_what_may_be_written(solo):
    load(solo)
    solo.run(f"mkdir {RULES}/portals/kv {RULES}/sessions/s {RULES}/hosts/h")
    for name in (".kv", "a+b=c", "x" * 65):
        assert not solo.ok(f"mkdir {RULES}/portals/{name}")
    solo.wait_for_log(".kv: no name of a portal, or of a session that can carry messages (EINVAL)")
    assert solo.run(f"cat {RULES}/portals/kv/allowed_hosts {RULES}/portals/kv/allow_unauthenticated") == "any\n0"
    refused(solo, "portals/kv/allowed_uids", "root", 'portals/kv: allowed_uids: "root": neither any nor a numeric id')
    refused(solo, "sessions/s/allowed_gids", "1 -1", 'sessions/s: allowed_gids: "1 -1": neither any nor a numeric id')
    refused(solo, "portals/kv/allowed_hosts", "web1 .x", 'portals/kv: allowed_hosts: "web1 .x": neither any nor the name')
    refused(solo, "portals/kv/allow_unauthenticated", "2", 'portals/kv: allow_unauthenticated: "2": number out of range')
    refused(solo, "hosts/h/max_channels", "65537", 'hosts/h: max_channels: "65537": number out of range (ERANGE)')
    refused(solo, "hosts/h/max_memory_mib", "-1", 'hosts/h: max_memory_mib: "-1": number out of range (ERANGE)')
    refused(solo, "sessions/s/max_channels", "many", 'sessions/s: max_channels: "many": not one of the values allowed (EINVAL)')
    write(solo, "portals/kv/allowed_hosts", "web2, web1 local")
    write(solo, "portals/kv/allowed_uids", "9 8 10")
    assert solo.run(f"cat {RULES}/portals/kv/allowed_hosts {RULES}/portals/kv/allowed_uids").splitlines() == [
        "local web1 web2", "8 9 10"]
    many = " ".join(f"web{number}" for number in range(500))
    write(solo, "portals/kv/allowed_hosts", many)
    assert sorted(solo.run(f"cat {RULES}/portals/kv/allowed_hosts").split()) == sorted(many.split())
    solo.push("/tmp/sysfs_walk.py", (TOP / "tools/testbed/sysfs_walk.py").read_text())
    solo.run(f"python3 /tmp/sysfs_walk.py 0 0 message_portal={RULES}/portals/kv message_session={RULES}/sessions/s "
             f"message_host={RULES}/hosts/h", timeout=300)
    # While there are rules, the module stays.
    assert not solo.ok("busybox rmmod ibmsg")
    solo.run(f"rmdir {RULES}/*/*")
    solo.run("busybox rmmod ibmsg")


@pytest.mark.fast
def test_refused_channels_are_counted(solo):
    """By the reason: at the portal, for the host, and for the session of the programs that have asked."""
    load(solo)
    ibmsg = Tool(solo, MESSAGES)
    solo.run(f"mkdir {RULES}/portals/kv {RULES}/sessions/local {RULES}/hosts/local")

    def counts(folder: str) -> dict[str, int]:
        lines = solo.run(f"cd {RULES}/{folder} && grep . refused_*").splitlines()
        found = dict(line.removeprefix("refused_").split(":") for line in lines)
        return {reason: int(count) for reason, count in found.items() if count != "0"}

    def connects(*words: str) -> list[str]:
        return case(solo, *words, "try_to_connect", "local", "kv").split()

    assert connects() == ["ECONNREFUSED", "ENOENT"]
    holding = start(solo, "accept_all", "kv")
    wait_for(lambda: "bound" in holding.text, 60, "the portal is bound")
    assert connects("as_user", "1000:1000") == ["EACCES"]
    write(solo, "portals/kv/allowed_hosts", "")
    assert connects() == ["ECONNREFUSED", "EACCES"]
    write(solo, "portals/kv/allowed_hosts", "any")
    # A channel takes more than that.
    write(solo, "hosts/local/max_channels", "1")
    holder = start(solo, "hold", "local", "kv")
    wait_for(lambda: "open" in holder.text, 60, "the channel is open")
    assert connects() == ["ECONNREFUSED", "EDQUOT"]
    assert counts("portals/kv") == {"unbound": 1, "rule": 1, "limit": 1}
    assert counts("hosts/local") == counts("portals/kv")
    assert counts("sessions/local") == {"unbound": 1, "rule": 2, "limit": 1}
    # The portal was not bound at first.
    heading, row = (line.split() for line in ibmsg("portals").splitlines())
    assert row[heading.index("REFUSED")] == "2"
    shown = ibmsg("show kv").splitlines()
    assert {"refused_rule: 1", "refused_limit: 1", "refused_unbound: 0"} <= set(shown)
    # Long enough for a program to start on a busy machine.
    stat = solo.start(f"exec {MESSAGES} stat --interval 20s --count 1")
    time.sleep(2)
    assert connects() == ["ECONNREFUSED", "EDQUOT"]
    assert stat.wait(120).ok and "channels refused: limit 1" in stat.text, stat.text
    holder.kill()
    holding.kill()
    solo.run(f"rmdir {RULES}/*/*")


@pytest.mark.fast
def test_rules_of_a_file(solo):
    """The command makes them, says what it does, and changes nothing twice."""
    solo.run("[ ! -e /sys/module/ibmsg ] || busybox rmmod ibmsg")
    ibmsg = Tool(solo, MESSAGES)
    assert "remedy: modprobe ibmsg" in ibmsg.refused("rules show", 4)
    load(solo)
    assert ibmsg("rules show") == ""
    file = "/tmp/messages.toml"
    solo.push(file, '[portal.kv]\nusers = ["daemon", 1000]\nhosts = ["local", "web1"]\n'
                    '[portal.open]\n[session.local]\ngroups = ["any"]\n[host.web1]\nmax_channels = 5\n')
    solo.run("grep -q ^daemon: /etc/passwd || echo daemon:x:1:1::/:/bin/false >> /etc/passwd; command -v getent")
    added = ["portal kv: added", 'portal kv: hosts = ["local", "web1"]', "portal kv: users = [1, 1000]", "portal open: added",
             "session local: added", 'session local: groups = ["any"]', "host web1: added", "host web1: max_channels = 5"]
    assert ibmsg(f"rules apply {file} --dry-run").splitlines() == added
    assert solo.run(f"ls {RULES}/portals") == ""
    assert ibmsg(f"rules apply {file}").splitlines() == added
    assert ibmsg(f"rules apply {file}") == ""
    assert solo.run(f"cat {RULES}/portals/kv/allowed_uids {RULES}/portals/kv/allowed_hosts") == "1 1000\nlocal web1"
    assert case(solo, "as_user", "1000:1000", "try_to_bind", "kv") == "bound"
    # What is shown can be applied.
    solo.run(f"{MESSAGES} rules show > {file}")
    assert ibmsg(f"rules apply {file}") == ""
    solo.push(file, '[portal.kv]\nhosts = []\n')
    assert ibmsg(f"rules apply {file}").splitlines() == [
        "portal kv: hosts = []", "portal kv: users = []", "portal open: removed", "session local: removed", "host web1: removed"]
    assert case(solo, "as_user", "1000:1000", "try_to_bind", "kv") == "EACCES"
    # Nothing of a file that is wrong is applied.
    solo.push(file, '[portal.other]\n[portal.kv]\nusers = ["nobody-here"]\n')
    assert 'there is no user "nobody-here"' in ibmsg.refused(f"rules apply {file}")
    solo.push(file, '[portal.kv]\nuser = [1]\n')
    assert "line 2, column 1" in ibmsg.refused(f"rules apply {file}")
    assert solo.run(f"ls {RULES}/portals") == "kv"
    solo.push(file, "[portal.kv]\nmax_channels = 70000\n")
    refused = ibmsg.refused(f"rules apply {file}")
    assert "max_channels" in refused and "kernel log" in refused
    assert "user may not bind that portal" in solo.run(
        f"setpriv --reuid 1000 --clear-groups {MESSAGES} listen kv 2>&1", check=False)


@pytest.mark.fast
def test_limits(solo):
    """Of a portal, a session and a host."""
    load(solo)
    solo.run(f"mkdir {RULES}/portals/kv {RULES}/sessions/local {RULES}/hosts/local")
    portal = start(solo, "accept_all", "kv")
    wait_for(lambda: "bound" in portal.text, 60, "the portal is bound")

    def opens(count: int, size: int = 0):
        program = start(solo, "open_many", "local", "kv", count, size)
        wait_for(lambda: program.text.strip(), 60, "channels are open")
        return program

    for folder, why in (("portals/kv", "3 ECONNREFUSED EDQUOT"), ("sessions/local", "3 EDQUOT"), ("hosts/local", "3 ECONNREFUSED EDQUOT")):
        write(solo, f"{folder}/max_channels", "3")
        program = opens(5)
        assert program.text.strip() == why
        assert used(solo, folder)[0] == 3
        # Raised, more can be opened; lowered, what is open stays.
        write(solo, f"{folder}/max_channels", "4")
        another = opens(1)
        assert another.text.strip() == "1"
        write(solo, f"{folder}/max_channels", "1")
        assert used(solo, folder)[0] == 4
        for each in (program, another):
            each.kill()
        solo.wait_until(f"[ $(cat {RULES}/{folder}/channels) = 0 ]", 60)
        assert used(solo, folder) == (0, 0)
        write(solo, f"{folder}/max_channels", "0")
    solo.wait_for_log("local: portal kv: channel refused: limit of the portal (EDQUOT)")
    solo.wait_for_log("local: portal kv: channel refused: limit of the host (EDQUOT)")
    write(solo, "sessions/local/max_memory_mib", "5")
    program = opens(5, 1 << 20)
    assert program.text.strip() == "2 EDQUOT" and 4 << 20 < used(solo, "sessions/local")[1] <= 5 << 20
    # A rule that is removed while there are channels.
    solo.run(f"rmdir {RULES}/sessions/local && mkdir {RULES}/sessions/local")
    assert used(solo, "sessions/local") == (0, 0)
    program.kill()
    portal.kill()
    solo.wait_until(f"[ $(cat {RULES}/hosts/local/channels) = 0 ]", 60)
    assert used(solo, "sessions/local") == (0, 0)


@pytest.mark.fast
def test_a_portal_of_this_machine_only(solo):
    load(solo)
    solo.run(f"mkdir {RULES}/portals/kv")
    portal = start(solo, "accept_all", "kv")
    wait_for(lambda: "bound" in portal.text, 60, "the portal is bound")
    channel = start(solo, "hold", "local", "kv")
    wait_for(lambda: "open" in channel.text, 60, "the channel is open")
    write(solo, "portals/kv/allowed_hosts", "local web1")
    time.sleep(0.5)
    assert channel.running, channel.text
    write(solo, "portals/kv/allowed_hosts", "web1")
    assert channel.wait(60).ok and "closed EACCES" in channel.text
    solo.wait_for_log("local: portal kv: channels closed: 1: its session is not in allowed_hosts")
    assert case(solo, "try_to_connect", "local", "kv").split() == ["ECONNREFUSED", "EACCES"]
    solo.wait_for_log("local: portal kv: channel refused: its session is not in allowed_hosts (EACCES)")
    write(solo, "portals/kv/allowed_hosts", "any")
    assert case(solo, "try_to_connect", "local", "kv") == "connected"


@pytest.mark.fast
@pytest.mark.links(2)
class TestHosts:
    """Clients of another machine."""

    @pytest.fixture
    def proved(self, pair, stack):
        for guest in pair:
            keyring.load(guest)
            load(guest)
        blockdev.map_two_paths(pair, stack)
        return pair

    def test_a_host_that_is_not_admitted_any_more(self, proved):
        pair = proved
        pair.server.run(f"mkdir {RULES}/portals/kv {RULES}/hosts/demo")
        server = start(pair.server, "hold_accepted", "kv")
        pair.server.wait_until("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal", 60)
        client = start(pair.client, "hold", "demo", "kv")
        for program in (client, server):
            wait_for(lambda program=program: "open" in program.text, 60, "the channel is open")
        assert used(pair.server, "hosts/demo")[0] == 1
        write(pair.server, "portals/kv/allowed_hosts", "other demo")
        # Both programs learn why; disks and the session go on.
        write(pair.server, "portals/kv/allowed_hosts", "other")
        for program in (client, server):
            assert program.wait(60).ok and "closed EACCES" in program.text, program.text
        pair.server.wait_for_log("demo: portal kv: channels closed: 1: its session is not in allowed_hosts")
        pair.server.wait_until(f"[ $(cat {RULES}/hosts/demo/channels) = 0 ]", 60)
        assert blockdev.connected(pair.client) == 2
        tries = case(pair.client, "try_to_connect", "demo", "kv")
        assert tries.split() == ["ECONNREFUSED", "EACCES"]
        pair.server.wait_for_log("demo: portal kv: channel refused: its session is not in allowed_hosts (EACCES)")

    def test_an_offer_that_is_not_admitted_any_more(self, proved):
        pair = proved
        pair.server.run(f"mkdir {RULES}/portals/silent")
        silent = start(pair.server, "bind_and_wait", "silent")
        pair.server.wait_until("ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q ibmsg-portal", 60)
        waiting = start(pair.client, "try_to_connect", "demo", "silent", 0)
        wait_for(lambda: "offered" in silent.text, 60, "the channel is offered")
        write(pair.server, "portals/silent/allowed_hosts", "")
        assert waiting.wait(60).ok and waiting.text.split() == ["ECONNREFUSED", "EACCES"]
        assert silent.wait(60).ok and "gone" in silent.text

    def test_clients_without_a_key(self, pair, stack):
        """Both the operator and the program must want them, and a name that was not proved is nobody's."""
        for guest in pair:
            load(guest)
        blockdev.map_two_paths(pair, stack)
        asks = start(pair.server, "accept_all", "asks", 4)
        silent = start(pair.server, "accept_all", "silent")
        wait_for(lambda: "bound" in asks.text and "bound" in silent.text, 60, "the portals are bound")

        def tries(name: str) -> list[str]:
            return case(pair.client, "try_to_connect", "demo", name).split()

        assert (tries("asks"), tries("silent")) == (["connected"], ["ECONNREFUSED", "EACCES"])
        pair.server.wait_for_log("demo: portal silent: channel refused: the client has not authenticated, and the portal was bound")
        channel = start(pair.client, "hold", "demo", "asks")
        wait_for(lambda: "open" in channel.text, 60, "the channel is open")
        # A directory asks the operator as well.
        pair.server.run(f"mkdir {RULES}/portals/asks {RULES}/portals/silent {RULES}/hosts/demo")
        assert channel.wait(60).ok and "closed EACCES" in channel.text
        assert tries("asks") == ["ECONNREFUSED", "EACCES"]
        pair.server.wait_for_log("demo: portal asks: channel refused: the client has not authenticated, and allow_unauthenticated is 0")
        for name in ("asks", "silent"):
            write(pair.server, f"portals/{name}/allow_unauthenticated", "1")
        write(pair.server, "hosts/demo/max_channels", "1")
        opened = start(pair.client, "open_many", "demo", "asks", 3)
        wait_for(lambda: opened.text.strip(), 60, "channels are open")
        assert opened.text.strip() == "3" and used(pair.server, "hosts/demo") == (0, 0)
        assert tries("silent") == ["ECONNREFUSED", "EACCES"]
