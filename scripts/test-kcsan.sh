#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# test-kcsan.sh [PYTEST-ARGUMENTS]: runs the most concurrent scenarios on the kernel
# that detects data races (KCSAN), which is built first.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

"$TOP/scripts/setup.sh" kcsan
folder=$TOP/tools/testbed/scenarios
[ $# != 0 ] || set -- "$folder"/test_{races,data,failover,changes,queues,life}.py
# The files first: the options are known once pytest has seen them.
exec "$TOP/scripts/pytest.sh" "$@" --kernel kcsan --durations=10
