# SPDX-License-Identifier: GPL-2.0
"""Who uses two machines besides a run. An answer that is missing, or that cannot be read, does not mean nobody."""

from .probe import Facts

# For each kind of user: the section, its lists, what names an entry, and what to do.
USES = (
    ("clients", ("clients",), "session",
     "clients are connected ({}), and the run stops the server for a moment: disconnect them first"),
    ("export list", ("configfs", "exports"), "name",
     "there are exports ({}), whose clients the run would disturb: remove them first (`ibnbd export list`)"),
    ("list", ("disks",), "name", "disks are mapped ({}), whose paths the run would disturb: unmap them first"),
    ("sessions", ("sessions",), "name",
     "there are sessions ({}), whose paths the run would disturb: end the programs that use them"))


def _names(facts: Facts, section: str, lists: tuple[str, ...], key: str, own: frozenset[str]) -> list[str] | None:
    """The names of those that are not the run's `own`."""
    items = facts.items(section, *lists)
    if items is None or not all(isinstance(item.get(key), str) for item in items):
        return None
    return [item[key] for item in items if item[key] not in own and item.get("session") not in own]


def of(facts: Facts, own: frozenset[str] = frozenset()) -> list[str]:
    """Whom a run would disturb on this machine, and what does not say whether there is somebody."""
    found: list[str] = []
    for section, lists, key, words in USES:
        names = _names(facts, section, lists, key, own)
        if names is None:
            found.append(f"it cannot be found out who uses this machine: `ibnbd {section} --output json` gives no answer that "
                         "can be read. Run it there, and mend what it complains about")
        # A client and a disk have a session as well: one reason is enough.
        elif names and not (section == "sessions" and found):
            found.append(f"{words.format(', '.join(names))}, or take another machine")
    return [f"{facts.name}: {reason}" for reason in found]


def _searched(server: Facts) -> list[str]:
    """Whether the server exports a directory."""
    if not server.said("now"):
        return ["server: it cannot be found out who uses this machine: /proc/modules cannot be read"]
    if "ibnbd_server" not in server.words("now"):
        return []
    if not server.said("search_path"):
        return ["server: it cannot be found out whether ibnbd_server exports a directory: its parameter dev_search_path "
                "cannot be read. Unload the module"]
    if server.text("search_path") not in ("", "(null)"):
        return ["server: ibnbd_server exports a directory (dev_search_path), which an export of the run would switch off: "
                "unload the module, or load it without that"]
    return []


def before(server: Facts, client: Facts) -> list[str]:
    """Why two machines must not be tried: a run drains the server, and takes paths down."""
    return of(server) + _searched(server) + of(client)


def queue_pairs(client: Facts, session: str, paths: int) -> int | None:
    """How many queue pairs a session has at each end while all of its paths are connected; None if that is not known."""
    disks, known = client.items("list", "disks"), client.items("paths", "paths")
    queues = [disk.get("queues") for disk in disks or [] if disk.get("session") == session]
    polled = [disk.get("poll_queues") or 0 for disk in disks or [] if disk.get("session") == session]
    if known is None or not queues or not isinstance(queues[0], int):
        return None
    messages = sum(path.get("message_connections") or 0 for path in known
                   if path.get("session") == session and path.get("side") == "client")
    return paths * (1 + queues[0] + polled[0]) + messages
