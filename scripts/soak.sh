#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# soak.sh HOURS [--kernel debug|fast] [--seed N]: loads with verification, while
# paths fail, calls fail and disks come and go; see Documentation/testing.md.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

hours=${1:?usage: soak.sh HOURS [--kernel debug|fast] [--seed N]}
shift
kernel=debug
case " $* " in *" --kernel fast "*) kernel=fast ;; esac
"$TOP/scripts/setup.sh" "$kernel"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 -m testbed.soak "$hours" "$@"
