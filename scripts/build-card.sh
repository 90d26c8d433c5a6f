#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-card.sh FLAVOUR: builds the strict RDMA device in software and its tests,
# for a test kernel; prints the folder with the modules as the last line.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"
# shellcheck source=scripts/c-modules.sh
. "$TOP/scripts/c-modules.sh"

build_c_modules "${1:?usage: build-card.sh FLAVOUR}" tools/card card
echo "$out"
