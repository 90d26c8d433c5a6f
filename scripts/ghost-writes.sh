#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# ghost-writes.sh [--runs N]: looks for ghost writes of this project, of NVMe-oF and of RNBD, ten runs of each
# variant unless told otherwise; see Documentation/failover.md. Takes some hours.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

"$TOP/scripts/setup.sh" stock
# RNBD is not part of Debian's kernel.
"$TOP/scripts/setup.sh" fast
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools
for target in "ibnbd stock" "NVMe-oF stock" "RNBD fast"; do
	/usr/bin/python3 -m testbed.ghost_writes --target "${target% *}" --kernel "${target#* }" "$@"
done
