# SPDX-License-Identifier: GPL-2.0
"""Loads authentication keys in guests, in the same way as `ibnbd key load`."""

import hashlib

from .guest import Guest

DEFAULT_ID = "default"

# Does something with the key of a description. Root sees it by the keyring that it is in, but may not search for it.
_WITH_KEY = ("for key in $(keyctl rlist %%:.ibtrs); do case $(keyctl rdescribe $key) in *';ibtrs:%s') %s; exit;; esac; "
             "done; false")


def secret(seed: str) -> bytes:
    """A key of 32 bytes, always the same for the same seed."""
    return hashlib.sha256(seed.encode()).digest()


def _octal(seed: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in secret(seed))


def load(guest: Guest, seed: str = "right", session: str = "demo", key_id: str = DEFAULT_ID,
         writable: bool = False) -> None:
    """Loads a key of a session; another one of that id is replaced, which only a link can do. Root, who does not
    possess the key, may write to it if told so."""
    write = "keyctl setperm $key 0x3f3f0000;" if writable else ""
    add = f"key=$(keyctl padd logon ibtrs:{key_id}:{session} @s); {write} keyctl link $key %:.ibtrs"
    # The keyring comes with this module.
    guest.run(f"modprobe ibtrs_core; printf '{_octal(seed)}' | keyctl session - sh -c '{add}' 2> /dev/null")


def load_for_all(guest: Guest, sessions: str, seed: str = "right") -> None:
    """Loads the same key for many sessions, whose names are what the shell makes of a word, as in `s{0..99}`."""
    guest.push("/tmp/load-keys", f"""modprobe ibtrs_core
for session in {sessions}; do
	key=$(printf '{_octal(seed)}' | keyctl padd logon ibtrs:{DEFAULT_ID}:$session @s) && keyctl link $key %:.ibtrs || exit 1
done
""")
    guest.run("keyctl session - bash /tmp/load-keys 2> /dev/null", 3600)


def change_in_place(guest: Guest, seed: str, session: str = "demo", key_id: str = DEFAULT_ID) -> None:
    """Gives another secret to a key that was loaded as writable."""
    guest.run(_WITH_KEY % (f"{key_id}:{session}", f"printf '{_octal(seed)}' | keyctl pupdate $key"))


def remove(guest: Guest, session: str = "demo", key_id: str = DEFAULT_ID) -> None:
    """Takes a key out, which has to be there."""
    guest.run(_WITH_KEY % (f"{key_id}:{session}", "keyctl unlink $key %:.ibtrs"))


def key_ids(guest: Guest, side: str, session: str = "demo") -> list[str]:
    """The key of each connected path of a session, as that side shows it; empty for one that did not
    authenticate."""
    return _of_paths(guest, side, session, "key_id")


def suites(guest: Guest, side: str, session: str = "demo") -> list[str]:
    """Likewise the suite of each path."""
    return _of_paths(guest, side, session, "suite")


def _of_paths(guest: Guest, side: str, session: str, file: str) -> list[str]:
    files = f"/sys/class/ibtrs-{side}/{session}/paths/*/{file}"
    return [line[1:-1] for line in guest.run(f'for file in {files}; do echo "[$(< $file)]"; done').splitlines()]
