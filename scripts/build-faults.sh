#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-faults.sh FLAVOUR: builds the module that makes functions fail in tests,
# for a cached test kernel; prints its path as the last line.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/c-modules.sh
. "$TOP/scripts/c-modules.sh"

build_c_modules "${1:?usage: build-faults.sh FLAVOUR}" tools/testbed/faults faults
echo "$out/ibtrs_faults.ko"
