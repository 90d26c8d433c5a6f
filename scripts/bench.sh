#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# bench.sh [ARGUMENT...]: the bench; see Documentation/performance.md, and
# tools/bench/__main__.py for the arguments.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

kernel=fast
case " $* " in
*" --kernel stock "*) kernel=stock ;;
esac
"$TOP/scripts/setup.sh" "$kernel"
case " $* " in
*" --report "*) "$TOP/scripts/setup-packages.sh" bench ;;
esac
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 -m bench "$@"
