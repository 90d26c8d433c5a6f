#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# setup.sh [FLAVOUR...]: does everything that guests need to boot: packages,
# toolchain, and for each flavour (fast, debug, kcsan, versions, stock) the kernel
# and our modules.
# Steps whose results are in the cache are skipped.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

[ $# != 0 ] || set -- fast

modules() {
	[ -z "${NO_MODULES:-}" ] || return 0
	with_progress "Building the modules for the $1 kernel" 80 \
		env IBTRS_STEPS=1 make --no-print-directory -C "$TOP" modules "FLAVOUR=$1"
}

# Of scripts that print their result behind their progress: the progress.
progress_of() { "$@" | sed -u -n '/^\(==>\|    \)/p'; }

case " $* " in
*" stock "*) "$TOP/scripts/setup-packages.sh" stock-tools ;;
*" versions "*) "$TOP/scripts/setup-packages.sh" versions ;;
esac
if [ "$*" = stock ]; then
	# Nothing of the one is needed for the other: two processors are kept busy, and the network.
	progress_of "$TOP/scripts/stock-kernel.sh" --release
	modules stock &
	modules=$!
	progress_of "$TOP/scripts/stock-kernel.sh" &
	kernel=$!
	"$TOP/scripts/setup-packages.sh" stock
	wait "$kernel" || die "could not get Debian's kernel; what failed is above"
	wait "$modules" || die "no modules for Debian's kernel; what failed is above"
	exit 0
fi
"$TOP/scripts/setup-packages.sh"
# Asked again: rustc may only be there since the line above.
# shellcheck source=scripts/env.sh
. "$TOP/scripts/env.sh"
for flavour in "$@"; do
	progress_of "$TOP/scripts/build-kernel.sh" "$flavour"
	modules "$flavour"
done
