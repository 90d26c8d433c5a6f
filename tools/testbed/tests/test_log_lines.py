# SPDX-License-Identifier: GPL-2.0
"""The texts of kernel log lines in the source: errors have the names that operators know."""

import re

from testbed.paths import TOP

CLIENT = ("ibtrs-client", "ibnbd/client")
# Text with the number of an error, or of something else, as Rust shows it to its programmers.
DEBUG = re.compile(r'"[^"]*\{[a-z_]*:[#0-9]*\?\}[^"]*"')


def test_the_client_names_errors_as_the_operators_guide_does():
    files = [file for folder in CLIENT for file in (TOP / folder).rglob("*.rs")]
    assert len(files) > 30
    assert [f"{file.name}: {text}" for file in files for text in DEBUG.findall(file.read_text())] == []
