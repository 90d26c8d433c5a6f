#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# test-stock.sh [PYTEST-ARGUMENTS]: runs scenarios on Debian's own kernel, all of them
# unless some are named; those that must run alone come last.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

"$TOP/scripts/setup.sh" stock
folder=$TOP/tools/testbed/scenarios
# The files first: the options are known once pytest has seen them.
pytest() { "$TOP/scripts/pytest.sh" "$@" --kernel stock --durations=10; }

if [ $# != 0 ]; then
	pytest "$@"
	exit
fi
failed=
pytest "$folder" -m "not quiet" -n $(($(nproc) + 1)) --dist loadgroup || failed=yes
pytest "$folder" -m quiet || failed=yes
[ -z "$failed" ] || die "scenarios failed on Debian's own kernel"
