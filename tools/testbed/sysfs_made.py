# SPDX-License-Identifier: GPL-2.0
"""A machine with many disks, for the command `ibnbd`: the files of sysfs that it reads, in a folder."""

import io
import tarfile

from .guest import Guest

# For --root.
ROOT = "/tmp/sysfs"


def unpack(guest: Guest, disks: int, sessions: int, root: str = ROOT) -> None:
    """Makes the folder in a guest."""
    (guest.share / "sysfs.tar").write_bytes(archive(disks, sessions))
    guest.run(f"mkdir {root} && tar -C {root} -xf /mnt/share/sysfs.tar")


def archive(disks: int, sessions: int) -> bytes:
    """An archive of the files of a client with two paths for each session, as our modules make them."""
    files = {"sys/class/ibnbd-client/ctl/map_device": "Usage", "sys/module/ibnbd_client/srcversion": "0"}
    for number in range(sessions):
        folder = f"sys/class/ibtrs-client/s{number}"
        files[f"{folder}/queue_timeout_s"] = "600"
        for link in (1, 2):
            files[f"{folder}/paths/ip:10.0.{link}.2@ip:10.0.{link}.1/state"] = "connected"
    for number in range(disks):
        block = f"sys/block/ibnbd{number}"
        files[f"{block}/size"] = "131072"
        for name, text in {"state": "open", "session": f"s{number % sessions}", "mapping_path": f"disk{number}",
                           "access_mode": "rw"}.items():
            files[f"{block}/ibnbd/{name}"] = text
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text) + 1
            archive.addfile(entry, io.BytesIO(f"{text}\n".encode()))
    return packed.getvalue()
