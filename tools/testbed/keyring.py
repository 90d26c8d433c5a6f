# SPDX-License-Identifier: GPL-2.0
"""Keys of authentication in guests, loaded as `ibnbd key load` does."""

import hashlib

from .guest import Guest

DEFAULT_ID = "default"


def secret(seed: str) -> bytes:
    """A key of 32 bytes, always the same for the same seed."""
    return hashlib.sha256(seed.encode()).digest()


def _unlink(session: str, key_id: str) -> str:
    """The command that takes a key out, and fails if there is none. Root sees a key by the keyring that
    it is in, but may neither search for it nor change it."""
    return ("for key in $(keyctl rlist %:.ibtrs | grep -v empty); do case $(keyctl rdescribe $key) in "
            f"*';ibtrs:{key_id}:{session}') exec keyctl unlink $key %:.ibtrs;; esac; done; false")


def load(guest: Guest, seed: str = "right", session: str = "demo", key_id: str = DEFAULT_ID) -> None:
    """Loads a key of a session; another one of that id is replaced."""
    octal = "".join(f"\\{byte:03o}" for byte in secret(seed))
    # The keyring comes with this module.
    guest.run(f"modprobe ibtrs_core; ({_unlink(session, key_id)}) > /dev/null; "
              f"printf '{octal}' | keyctl padd logon ibtrs:{key_id}:{session} %:.ibtrs > /dev/null")


def remove(guest: Guest, session: str = "demo", key_id: str = DEFAULT_ID) -> None:
    guest.run(_unlink(session, key_id))


def key_ids(guest: Guest, side: str, session: str = "demo") -> list[str]:
    """The key of each connected path of a session, as that side shows it; empty for one that did not
    authenticate."""
    files = f"/sys/class/ibtrs-{side}/{session}/paths/*/key_id"
    return [line[1:-1] for line in guest.run(f'for file in {files}; do echo "[$(< $file)]"; done').splitlines()]
