#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# generated.sh: writes what is generated from declarations in rust/proto and tools/ibnbd: rows of tables in the
# documentation, entries of its ABI, the schema of the JSON documents, and the testbed's lists of counters and settings. The tests
# that do that compare the same parts otherwise.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

cd "$TOP"
export IBNBD_WRITE_GENERATED=1
cargo test --quiet --locked -p ibnbd --test cli schema
cargo test --quiet --locked -p ibnbd --test metrics table
# Two of them write the same file.
cargo test --quiet --locked -p ibnbd --test counters has_each_counter -- --test-threads=1
cargo test --quiet --locked -p ibnbd --test settings has_each_setting
cargo test --quiet --locked -p ibmsg_proto --test refused the_page
git status --short -- Documentation tools/testbed
