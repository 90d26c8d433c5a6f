#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# bench.sh [ARGUMENT...]: the bench of disks, or with the argument `messages' that of messages; see
# Documentation/performance.md, and __main__.py of tools/bench and tools/bench/messages for the arguments.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

bench=bench
if [ "${1:-}" = messages ]; then
	bench=bench.messages
	shift
fi
kernel=fast
case " $* " in
*" --kernel stock "*) kernel=stock ;;
esac
"$TOP/scripts/setup.sh" "$kernel"
case " $* " in
*" --report "*) "$TOP/scripts/setup-packages.sh" bench ;;
esac
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 -m "$bench" "$@"
