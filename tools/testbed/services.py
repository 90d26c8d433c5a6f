# SPDX-License-Identifier: GPL-2.0
"""Guests whose services map and export disks as the files in /etc/ibtrs say, also after a reboot."""

from pathlib import Path

from .lab import Lab

SERVER = """[ibnbd_server]
dev_search_path = "/dev/ibnbd-exports"

[[export]]
name = "data"
device = "/dev/disk/by-id/virtio-data"
"""
IN_CONFIGFS = """[[host]]
name = "demo"

[[export]]
name = "data"
device = "/dev/disk/by-id/virtio-data"
hosts = ["demo"]
"""
# The first host may come from two addresses, by one path; the second one may open nothing.
LIMITED = """[[host]]
name = "demo"
addresses = ["10.0.1.2/31"]
max_paths = 1

[[host]]
name = "other"

[[export]]
name = "data"
device = "/dev/disk/by-id/virtio-data"
hosts = ["demo"]
"""
PORT = """
[[port]]
name = "left"
address = "10.0.1.1"
"""
CLIENT = """[[session]]
name = "demo"
servers = ["10.0.1.1"]

[[session.disk]]
device = "data"
"""
# Another disk of the same session, which has a unit of its own, and a character in its name that
# systemd escapes.
FURTHER_EXPORT = """
[[export]]
name = "a-b"
device = "/dev/nullb0"
"""
FURTHER_DISK = """
[[session.disk]]
device = "a-b"
auto = false   # its unit maps it
"""
UNIT = r"ibnbd@demo-a\x2db.service"
# Its name by udev on the client.
DISK = "/dev/disk/by-ibnbd/demo/data"
FURTHER = "/dev/disk/by-ibnbd/demo/a-b"
# As tool.md has it: the machine boots without the disk, and mounts it when it comes.
FSTAB = "UUID={uuid} /mnt/disk ext4 _netdev,nofail,x-systemd.device-timeout=0 0 0\n"
# The same of a disk that has a unit; and one that is mapped when somebody looks into the folder.
FSTAB_UNIT = f"UUID={{uuid}} /mnt/disk ext4 _netdev,nofail,x-systemd.requires={UNIT},x-systemd.device-timeout=0 0 0\n"
FSTAB_AUTOMOUNT = f"UUID={{uuid}} /mnt/disk ext4 _netdev,noauto,x-systemd.automount,x-systemd.requires={UNIT} 0 0\n"


def image(lab: Lab, size_mb: int) -> Path:
    """A disk for the server that outlives it; its serial number is "data"."""
    file = lab.folder / "data.img"
    with open(file, "wb") as made:
        made.truncate(size_mb << 20)
    return file


def keep(lab: Lab, name: str, path: str, text: str) -> None:
    """Writes a file in a guest that is there after its next boot, too."""
    lab.files.setdefault(name, {})[path] = text
    lab.guests[name].run(f"mkdir -p {Path(path).parent}")
    lab.guests[name].push(path, text)


# What `systemctl enable` would leave.
WANTS_KEY = """[Unit]
Wants=ibnbd-key@{name}.service
"""


def keep_key(lab: Lab, guest: str, name: str, text: str) -> None:
    """Has a guest load the key of the session `name` at each boot: from a file, as the machine's secret, with which a
    credential is encrypted, does not survive a boot of the guest."""
    units = "/etc/systemd/system"
    keep(lab, guest, f"/etc/ibtrs/keys/{name}.key", f"{text}\n")
    keep(lab, guest, f"{units}/ibnbd-{guest}.service.d/{name}.conf", WANTS_KEY.format(name=name))


def configure(lab: Lab) -> None:
    keep(lab, "server", "/etc/ibtrs/server.toml", SERVER)
    keep(lab, "client", "/etc/ibtrs/client.toml", CLIENT)


def add_to_fstab(lab: Lab, uuid: str) -> None:
    """Has the client mount the disk, now and at each boot."""
    keep(lab, "client", "/etc/fstab", FSTAB.format(uuid=uuid))
    lab.guests["client"].run("mkdir -p /mnt/disk && systemctl daemon-reload && mount /mnt/disk")
