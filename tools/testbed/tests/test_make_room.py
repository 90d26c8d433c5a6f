# SPDX-License-Identifier: GPL-2.0
"""A cache without room loses the builds of other checkouts, and nothing that is used or shared."""

import hashlib
import os
import pathlib
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[3]
# What a made-up checkout's builds take, and what is free beside them.
FREE_MIB, BUILD_MIB = 500, 1000
DAY = 86400
# This checkout's key, as scripts/env.sh makes it.
OWN = hashlib.sha256(f"{TOP}\n".encode()).hexdigest()[:12]


class Cache:
    def __init__(self, folder):
        self.folder = folder
        self.programs = folder.parent / "programs"
        self.programs.mkdir()
        df = self.programs / "df"
        df.write_text(f"#!/bin/sh\necho Avail\necho $(({FREE_MIB} + {BUILD_MIB} *"
                      f" ($(cat {folder.parent}/made) - $(ls {folder}/modules | wc -l))))\n")
        df.chmod(0o755)
        self.made = 0

    def add(self, key, days):
        """Builds of another checkout, whose latest file is that many days old."""
        for kind in ("modules", "cargo"):
            made = self.folder / kind / key / "fast" / "ibtrs.ko"
            made.parent.mkdir(parents=True)
            made.write_text("")
            for path in (made, made.parent, made.parent.parent):
                os.utime(path, (0, path.stat().st_mtime - days * DAY))
        self.made += 1
        (self.folder.parent / "made").write_text(str(self.made))

    def keys(self):
        return {kind: sorted(os.listdir(self.folder / kind)) for kind in ("modules", "cargo")}

    def make_room(self, mib):
        environment = {**os.environ, "IBTRS_CACHE": str(self.folder),
                       "PATH": f"{self.programs}:{os.environ['PATH']}"}
        return subprocess.run([TOP / "scripts/make-room.sh", str(mib)], env=environment, text=True,
                              capture_output=True, timeout=60)


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path / "cache")
    cache.add("aaaa", days=2)
    cache.add("bbbb", days=3)
    cache.add("cccc", days=0)
    cache.add(OWN, days=9)
    kernel = cache.folder / "kernel" / "fast"
    kernel.mkdir(parents=True)
    os.utime(kernel, (0, 0))
    return cache


def both(*keys):
    return dict.fromkeys(("modules", "cargo"), sorted([*keys, OWN]))


def test_nothing_is_removed_where_there_is_room(cache):
    done = cache.make_room(FREE_MIB)
    assert done.returncode == 0, done.stderr
    assert cache.keys() == both("aaaa", "bbbb", "cccc")


def test_the_longest_unused_goes_first(cache):
    done = cache.make_room(FREE_MIB + BUILD_MIB)
    assert done.returncode == 0, done.stderr
    assert "another checkout (bbbb)" in done.stdout
    assert cache.keys() == both("aaaa", "cccc")


def test_what_is_in_use_or_shared_stays_and_the_failure_says_how_much_is_needed(cache):
    needed = FREE_MIB + 3 * BUILD_MIB
    done = cache.make_room(needed)
    assert done.returncode != 0
    assert f"has {FREE_MIB + 2 * BUILD_MIB} MiB free, and {needed} are needed" in done.stderr
    assert cache.keys() == both("cccc")
    assert (cache.folder / "kernel" / "fast").is_dir()
