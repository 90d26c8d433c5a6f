# SPDX-License-Identifier: GPL-2.0
"""The scenarios try exactly the files that the documents describe."""

from testbed import abi, sysfs_walk

DOCUMENT = """\
What:		/sys/class/things/<name>/one
What:		/sys/class/things/<name>/two
Date:		November 2026
Description:	(RW, 0644) A write of one
		does something.

What:		/sys/class/things/<name>
Date:		November 2026
Description:	A folder. (RW, 0644) is no mode here.
"""


def test_entries_of_a_document():
    found = abi.parse(DOCUMENT)
    assert [(entry.what.rsplit("/", 1)[1], entry.mode) for entry in found] == [
        ("one", 0o644), ("two", 0o644), ("<name>", None)]
    assert found[0].fits("/sys/class/things/some:name.x/one")
    assert not found[0].fits("/sys/class/things/some/name/one")
    assert not found[0].fits("/sys/class/things//one")
    assert not found[0].fits("/sys/class/things/name/one2")


def test_what_is_documented_is_tried():
    tried = {}
    for kind in sysfs_walk.KINDS:
        tried |= sysfs_walk.documented(kind)
    assert {entry.what: entry.mode for entry in abi.entries() if entry.mode is not None} == tried


def test_folders_and_links_have_no_mode():
    entries = abi.entries()
    folders = [entry.what for entry in entries if entry.mode is None]
    bare = [what for what in folders if not any(entry.what.startswith(f"{what}/") for entry in entries)]
    # Links to hosts, a device, links to disks, and the other names of sessions' folders.
    assert bare == ["/sys/kernel/config/ibnbd/exports/<export>/allowed_hosts", "/dev/ibmsg",
                    "/sys/class/ibnbd-client/ctl/devices/<device_path>@<session>",
                    "/sys/class/ibnbd-server/ctl/devices/<device>/block_dev",
                    "/sys/devices/virtual/ibtrs-client/<session>", "/sys/devices/virtual/ibtrs-server/<session>"]
