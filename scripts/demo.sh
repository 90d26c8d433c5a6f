#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# demo.sh [--stack ibtrs|mainline] [--shell]: from a bare machine to a disk
# that is mapped over soft-RoCE between two guests.  See tools/testbed/demo.py.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

case " $* " in
*mainline*) NO_MODULES=1 "$TOP/scripts/setup.sh" fast ;;
*) "$TOP/scripts/setup.sh" fast ;;
esac
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 -m testbed.demo "$@"
