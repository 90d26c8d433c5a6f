#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# qualify.sh ARGUMENT...: tries two machines over ssh; see Documentation/qualify.md, and options.py of
# tools/qualify for the arguments.
set -euo pipefail
unset CDPATH
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tools" && pwd)
python=/usr/bin/python3
"$python" -c 'import matplotlib' 2>/dev/null || {
	echo "error: the report has plots by matplotlib, which this machine does not have: apt install python3-matplotlib" >&2
	exit 2
}
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tools exec "$python" -m qualify "$@"
