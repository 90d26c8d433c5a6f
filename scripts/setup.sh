#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# setup.sh [FLAVOUR...]: everything up to guests that can boot: packages,
# toolchain, and for each flavour (fast, debug) the kernel and our modules.
# Each step is skipped where its result is in the cache.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

"$TOP/scripts/setup-packages.sh"
# Asked again: rustc may only be there since the line above.
# shellcheck source=scripts/env.sh
. "$TOP/scripts/env.sh"
for flavour in "${@:-fast}"; do
	"$TOP/scripts/build-kernel.sh" "$flavour"
	[ -n "${NO_MODULES:-}" ] || make --no-print-directory -C "$TOP" modules "FLAVOUR=$flavour"
done
