#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# bench.sh [ARGUMENT...]: the bench of disks, or with the argument `messages' or `sessions' that of these; see
# Documentation/performance.md and sizing.md, and __main__.py of tools/bench and tools/bench/messages, and
# sessions.py, for the arguments.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

bench=bench
case ${1:-} in
messages | sessions)
	bench=bench.$1
	shift
	;;
esac
kernel=fast
case " $* " in
*" --kernel stock "*) kernel=stock ;;
esac
"$TOP/scripts/setup.sh" "$kernel"
case " $* " in
*" --report "*) "$TOP/scripts/setup-packages.sh" bench ;;
esac
case " $* " in
*" --functions "*)
	# Only these name the functions that were inlined into others.
	IBTRS_LINES=1 "$TOP/scripts/build-modules.sh" "$kernel"
	set -- --modules "$MODULES/$kernel-lines" "$@"
	;;
esac
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 -m "$bench" "$@"
