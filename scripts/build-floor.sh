#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-floor.sh FLAVOUR: builds the floor of the bench, a block device with two
# messages for each I/O, for a test kernel; prints its path as the last line.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/c-modules.sh
. "$TOP/scripts/c-modules.sh"

build_c_modules "${1:?usage: build-floor.sh FLAVOUR}" tools/bench/floor floor
echo "$out/rdma_floor.ko"
