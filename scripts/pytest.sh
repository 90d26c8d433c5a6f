#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# pytest.sh ARGUMENTS...: runs pytest with the testbed set up, for single scenarios.
unset CDPATH
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tools" && pwd)
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tools exec /usr/bin/python3 -m pytest -p no:cacheprovider -v "$@"
