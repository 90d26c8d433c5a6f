# SPDX-License-Identifier: GPL-2.0
"""The alert rules for Prometheus, judged by its own program promtool."""

import shutil
import subprocess

import pytest

from testbed.paths import TOP, cache

RULES = TOP / "tools/grafana"
# Set-up takes it out of Debian's package.
PROMTOOL = cache() / "promtool"
pytestmark = pytest.mark.skipif(not PROMTOOL.exists(), reason="promtool is not there: scripts/setup-packages.sh gets it")


def promtool(*words: str, folder=RULES) -> subprocess.CompletedProcess:
    return subprocess.run([PROMTOOL, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_prometheus_takes_the_rules():
    ran = promtool("check", "rules", "--lint-fatal", "alerts.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_rule_fires_when_it_should():
    ran = promtool("test", "rules", "alerts.test.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # None is left out.
    names = [line.split()[-1] for line in (RULES / "alerts.yml").read_text().splitlines() if "- alert:" in line]
    tested = (RULES / "alerts.test.yml").read_text()
    assert names and all(tested.count(f"alertname: {name}\n") >= 2 for name in names), names


def test_a_rule_that_never_fires_is_found(tmp_path):
    for name in ("alerts.yml", "alerts.test.yml"):
        shutil.copy(RULES / name, tmp_path)
    rules = (tmp_path / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(rules.replace("ibnbd_disk_open == 0", "ibnbd_disk_open == 2"))
    assert promtool("test", "rules", "alerts.test.yml", folder=tmp_path).returncode != 0
