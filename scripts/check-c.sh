#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# check-c.sh: checks the style of all C sources with the kernel's checkpatch.pl.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
cd "$TOP"

# EXPORT_SYMBOL: functions of Rust are exported, which are defined elsewhere.
# IN_ATOMIC: rust/helpers/sync.c says when the kernel can tell.
# MULTISTATEMENT_MACRO_USE_DO_WHILE: outside functions there are no loops.
git ls-files '*.c' '*.h' | xargs "$IBTRS_CACHE/src/current/scripts/checkpatch.pl" --no-tree --terse --no-summary \
	--max-line-length=118 --ignore EXPORT_SYMBOL,IN_ATOMIC,MULTISTATEMENT_MACRO_USE_DO_WHILE -f
