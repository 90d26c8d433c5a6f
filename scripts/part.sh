#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# part.sh: prints which part of the scenarios that take turns a run has, as in 3/36:
# that of IBTRS_PART, or the one that follows from the commit's number.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

# As many as in tools/testbed/scenarios/rotation.py.
PARTS=36
commit=$(git -C "$TOP" rev-parse HEAD 2>/dev/null || echo 00000000)
part=${IBTRS_PART:-$((16#${commit:0:8} % PARTS + 1))/$PARTS}
[[ $part =~ ^[0-9]+/[0-9]+$ ]] || die "IBTRS_PART is $part, and must be a part and their number, as in 3/$PARTS"
echo "$part"
