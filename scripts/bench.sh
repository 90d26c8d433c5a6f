#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# bench.sh [--smoke] [--only NAME]: the counting bench; see tools/bench/count.py.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

"$TOP/scripts/setup.sh" fast
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 "$TOP/tools/bench/count.py" "$@"
