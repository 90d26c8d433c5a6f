# SPDX-License-Identifier: GPL-2.0
"""Words that have given way to terms of the glossary, and phrases that stop a reader, appear in no source file and on
no page."""

import re
from pathlib import Path

import pytest

from testbed.paths import TOP

FOLDERS = ("ibnbd", "ibtrs-client", "ibtrs-server", "rust", "scripts", "tools")
SOURCES = ("*.rs", "*.c", "*.h", "*.S", "*.sh", "*.awk", "*.mk", "*.config", "Kbuild*", "*.py", "*.toml", "*.rules",
           "*.service", "*.spec")


def as_type(name: str) -> str:
    """The name of a type, as code and its documentation write it; not the first word of a sentence."""
    return rf"\b(struct|enum|trait|type|impl) {name}\b|\b{name}(::|<|>)|`{name}`|(-> |[<&]){name}\b"


# Each old word: a pattern for its old meaning, and a text that has it. Most words are ordinary English as well; their
# patterns match names of types, functions and modules, and phrases.
OLD = {
    "Active": (as_type("Active"), "active: Arc<Active>"),
    "Set": (as_type("Set"), "impl Set {"),
    "Members": (r"\bMembers\b", "struct Members"),
    "Turns": (as_type("Turns"), "turns: Arc<Turns>,"),
    "Start": (as_type("Start"), "Start::new()"),
    "Made": (as_type("Made"), "Result<Made>"),
    "hurry": (r"\bhurr(y|ies|ied)\b", "path.hurry()"),
    "Turn": (as_type("Turn"), "fn turn(&self) -> Turn"),
    "heart": (r"\bheart(s|_\w+)?\b", "mod heart;"),
    "beat": (r"\bbeat(s|en|_\w+)?\b", "self.beat()"),
    "ask": (r"\bfn ask_(path|peer|server)\b|\bmod ask\b", "fn ask_peer("),
    "overdue": (r"\bmod overdue\b|\boverdue\.rs\b|\brequests? (is|are) overdue\b|\boverdue requests?\b", "mod overdue;"),
    "path given up": (r"\bpaths? (is|are|was|were|be|been) given up|path_given_up", "the path was given up"),
    "given up by the client": (r"\bgiven up by the client", "given up by the client"),
    "News": (r"\bNews\b|\bmod news\b|\bnews\.rs\b", "news: News"),
    "telling": (r"`telling`|\.telling\b|\b(fn|mod) telling\b", "the work `telling`"),
    "untold": (r"\buntold\b", "self.untold.take()"),
    "LinkEvents": (r"\bLinkEvents\b|\blink_events\b", "trait LinkEvents"),
    "Link": (r"\bdyn Link\b|\bimpl Link for\b", "impl Link for Session"),
    "fresh": (r"\bup\((&self, )?fresh", "fn up(&self, fresh: bool)"),
    "forgotten": (r"\bfn forgotten\b|\bforgotten:|\.forgotten\b", "self.forgotten()"),
    "share": (r"\bshares? of (the )?(tags|queue)\b", "heartbeat, shares of the queue"),
    "Flight": (r"\bFlight\b|\bmod flight\b", "struct Flight"),
    "Room": (as_type("Room"), "Room::of(1)"),
    "disk_io": (r"\bdisk_io\b", "ibnbd_proto::disk_io"),
    "Verdict": (r"\bVerdict\b", "Verdict::Send"),
    "Gate": (r"\bGate\b|\bgate_\w+|\w+_gate\b|\bmod gate\b", "fn gate_opens("),
    "hold": (r"\bhold(s|ing)? (its|the|all|their) (I/O|requests)\b|\bfn hold\(|\.hold\(\)", "and holds its I/O meanwhile"),
    "Share": (as_type("Share"), "Arc<Share>"),
    "Neighbours": (r"\bNeighbours\b", "struct Neighbours"),
    "park": (r"\bpark(s|ing)?\b", "fn park("),
    "parked": (r"(\b|_)[Pp]arked(\b|_)", "what_was_parked_stays"),
    "pump": (r"\bpump(s|ed|ing)?\b", "mod pump;"),
    "patience": (r"\b(im)?patien(ce|t|tly)\b", "mod patience;"),
    "given up": (r"\brequests? (is|are|was|were|be|been) given up|(is|was|been)_given_up", "fn read_is_given_up("),
    "ghost": (r"\bghosts?\b(?![- ]writes?\b)|_ghosts?\b", "a request leaves a ghost"),
    "barred": (r"\bbarred\b", "the epoch is barred"),
    "reap": (r"\breap(s|ed|ing)?\b", "cq.reap()"),
    "sweep": (r"\bsweeps?\b|\bswept\b", "mod sweep;"),
    "op": (r"\bmod op\b|\bdyn Op\b|\bstruct Op\b", "mod op;"),
    "owner": (r"\bproto::owner\b|\bmod owner\b|\[`owner`\]", "| [`owner`], [`serving`] |"),
    "Parked": (r"\bParked\b", "struct Parked"),
    "Line": (r"\bserver::Line\b|\bmod line\b|\bline: Line\b", "line: Line,"),
    "admit": (r"\b(mod|fn) admit|\badmit\.rs\b|\.admit\(|\badmitted\b", "mod admit;"),
    "end": (r"\bmod end\b|\bend\.rs\b|\bfn end_path\b", "mod end;"),
    "run": (r"\brun of the (server|module)\b|\brun: (u8|u16|u32|u64|u128|Identity|\[u8)|\bserver'?s run\b",
            "sessions of this run of the server"),
    "life": (r"\bthe life before\b|\bof (an|the) (earlier|previous|last) life\b|life_before|\blife: u\d", "stays_of_the_life_before()"),
    "stage": (r"\bFailover::stage\b|\bstage: u\d|\bfo\.stage\(|\bsession stage\b", "fo.stage()"),
    "cache": (r"\bmod cache\b|\bcache: CacheRun\b", "mod cache;"),
    "cache run": (r"\bCacheRun\b|\bcache runs?\b|\bruns? of (a|the) cache\b|\bruns_of_a_cache\b", "runs of a cache"),
    "room": (r"\brooms\b", "the rooms of the tree"),
    "door": (r"\bdoors?\b", "check-doors.sh"),
    "house": (r"\bhouse\b", "the whole house"),
    "shell": (r"_shells?(\b|_)|\bthin shell\b|\bshells (of|around|over)\b", "fn broken_shells_are_caught("),
    "Driver": (r"\bblk::(\{[^}]*\b)?Driver\b", "kx::blk::Driver"),
    "Disk": (r"\bblk::(\{[^}]*\b)?Disk\b", "kx::blk::Disk"),
}

# Phrases that read as if they were translated.
PHRASES = re.compile(r"\b(so many|anew|(is|are|was|were) looked at|be it|[Ww]hoever|what becomes of)\b")

ENGLISH = """
    It must hold a lock. A set of flags. Turns an error into a number. Start the timer. The network link.
    The stages of a handshake. The life of an object. A test run. Room for an entry. The end of a request.
    An attempt was given up. In a shell. BTreeSet<u32> HashSet<Setting> InFlight struct ChunkOwner
"""


def texts() -> dict[str, str]:
    """Each source file, page and picture, by its name."""
    files = [file for folder in FOLDERS for kind in SOURCES for file in (TOP / folder).rglob(kind)]
    files += [TOP / "README.md", *(TOP / "Documentation").rglob("*.md"), *(TOP / "Documentation").rglob("*.dot"),
              *(file for file in (TOP / "Documentation/ABI").rglob("*") if file.is_file())]
    return {str(file.relative_to(TOP)): file.read_text() for file in files
            if file != Path(__file__) and "target" not in file.relative_to(TOP).parts}


@pytest.mark.parametrize("word", OLD)
def test_an_old_word_is_found_and_english_is_not(word):
    pattern, example = OLD[word]
    assert re.search(pattern, example)
    assert re.search(pattern, ENGLISH) is None


def test_old_words_are_gone():
    found = texts()
    assert len(found) > 300
    left = [f"{name}: {word}: ...{text[max(hit.start() - 40, 0):hit.end() + 40]}..." for word, (pattern, _) in OLD.items()
            for name, text in found.items() for hit in re.finditer(pattern, text)]
    assert left == []


def test_phrases_that_stop_a_reader_are_gone():
    assert PHRASES.search("A queue of so many values.") and PHRASES.search("Whoever waits is woken.")
    left = [f"{name}: ...{text[max(hit.start() - 40, 0):hit.end() + 40]}..." for name, text in texts().items()
            for hit in PHRASES.finditer(text)]
    assert left == []
