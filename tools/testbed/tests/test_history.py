# SPDX-License-Identifier: GPL-2.0
"""Histories of blocks are judged as one disk would have them."""

import errno
import json

import pytest

from testbed import history, register

BLOCK = 5


def lines(*operations) -> str:
    """(what, version) or (what, version, errno), a second each."""
    entries = []
    for second, (what, version, *failed) in enumerate(operations):
        entries.append({"what": what, "version": version, "began": second, "ended": second + 1,
                        **({"errno": failed[0]} if failed else {})})
    return "\n".join(map(json.dumps, entries))


def judged(end: int, *operations):
    return history.judge(lines(*operations), BLOCK, register.content(end, BLOCK) if end else bytes(register.BLOCK))


def test_the_last_version_is_right():
    judgement = judged(2, ("write", 1), ("read", 1), ("write", 2), ("read", 2))
    assert judgement == history.Judgement(1, 2, [], None, [])
    assert judgement.is_right


def test_an_old_version_at_the_end_is_wrong():
    judgement = judged(1, ("write", 1), ("read", 1), ("write", 2), ("read", 2))
    assert judgement.wrong_end == (1, 2) and not judgement.is_right


@pytest.mark.parametrize("found", [0, 1, None])
def test_a_read_of_another_version_is_wrong(found):
    judgement = judged(2, ("write", 1), ("write", 2), ("read", found), ("read", 2))
    assert judgement.wrong_reads == [(found, 2)] and not judgement.is_right


@pytest.mark.parametrize("end", [1, 2])
def test_a_write_that_failed_may_be_there_or_not(end):
    judgement = judged(end, ("write", 1), ("read", 1), ("write", 2, errno.EIO))
    assert judgement.is_right and judgement.errors == [errno.EIO] and judgement.acknowledged == 1


def test_a_first_write_that_failed():
    judgement = judged(0, ("write", 1, errno.ETIMEDOUT))
    assert judgement.is_right and judgement.first_write_s is None


def test_a_torn_block_or_that_of_another_place_has_no_version():
    whole, other = register.content(1, BLOCK), register.content(2, BLOCK)
    assert register.version_of(whole, BLOCK) == 1
    assert register.version_of(bytes(register.BLOCK), BLOCK) == 0
    assert register.version_of(whole[:2048] + other[2048:], BLOCK) is None
    assert register.version_of(whole, BLOCK + 1) is None


def test_a_register_keeps_its_history(tmp_path, monkeypatch):
    """Against a file; tmpfs may have no direct I/O, which is no matter here."""
    monkeypatch.setattr(register.os, "O_DIRECT", 0)
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(8 * register.BLOCK))
    written = register.Register(str(disk), BLOCK)
    for version in (1, 2):
        assert written.write(version) and written.read()
    text = "\n".join(map(json.dumps, written.history))
    judgement = history.judge(text, BLOCK, disk.read_bytes()[BLOCK * register.BLOCK:][:register.BLOCK])
    assert judgement.is_right and judgement.acknowledged == 2 and len(written.history) == 4
