#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# test-modversions.sh [PYTEST-ARGUMENTS]: runs the scenarios of versions of symbols, on a
# kernel with CONFIG_MODVERSIONS, which is built first.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

"$TOP/scripts/setup.sh" versions
exec "$TOP/scripts/pytest.sh" "$TOP/tools/testbed/scenarios/test_modversions.py" "$@" --kernel versions
