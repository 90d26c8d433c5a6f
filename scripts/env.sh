# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Sourced by the other scripts: the cache, the tools that build the kernel, and
# the display of progress.  Everything built lives below $IBTRS_CACHE, outside
# the repository.

set -euo pipefail
# No script ends without a word.
trap 'printf "error: %s, line %s: exit status %s\n" "${BASH_SOURCE[0]}" "$LINENO" "$?" >&2' ERR

# cd prints the folders that it finds there.
unset CDPATH
# Variables given to an outer make must not reach the kernel's build.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES MAKELEVEL

# shellcheck disable=SC2034 # used by the scripts that source this one
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
IBTRS_CACHE=${IBTRS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ibtrs}
# Each checkout has modules and host crates of its own: cargo goes by the times of the sources, and would
# take those of another checkout for this one's.
CHECKOUT=$(sha256sum <<<"$TOP" | cut -c1-12)
# shellcheck disable=SC2034 # used by the scripts that source this one
MODULES=$IBTRS_CACHE/modules/$CHECKOUT
# shellcheck disable=SC2034 # used by the scripts that source this one
CRATES=${CARGO_TARGET_DIR:-$IBTRS_CACHE/cargo/$CHECKOUT}
JOBS=${JOBS:-$(nproc)}
# Clang must be of the LLVM that rustc was built with, or helpers in C cannot
# become inline code in Rust.  Says nothing where rustc is not installed yet.
llvm_of_rustc() {
	[ ! -x /usr/bin/rustc ] || /usr/bin/rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p'
}
LLVM_MAJOR=$(llvm_of_rustc)
LLVM_MAJOR=${LLVM_MAJOR:-22}
BINDGEN_VERSION=0.73.2
BINDGEN_ROOT=$IBTRS_CACHE/bindgen-$BINDGEN_VERSION
export LIBCLANG_PATH=/usr/lib/llvm-$LLVM_MAJOR/lib
mkdir -p "$IBTRS_CACHE/logs"

# The kernel is built with the distribution's compiler, by its full path, so
# that a rustup shim earlier in PATH does not get in the way.
# shellcheck disable=SC2034 # used by the scripts that source this one
KERNEL_MAKE_ARGS=(
	"LLVM=-$LLVM_MAJOR"
	RUSTC=/usr/bin/rustc HOSTRUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc
	RUSTFMT=/usr/bin/rustfmt CLIPPY_DRIVER=/usr/bin/clippy-driver
	BINDGEN="$BINDGEN_ROOT/bin/bindgen"
	KBUILD_BUILD_USER=ibtrs KBUILD_BUILD_HOST=ibtrs
	KBUILD_BUILD_TIMESTAMP='Thu Jan  1 00:00:00 UTC 1970'
)

say() { printf '==> %s\n' "$*"; }
die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# Runs a command as root: directly, or through sudo.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

# with_progress TITLE UNITS COMMAND...
#
# Runs COMMAND with its output in a log and a line of progress twice a minute,
# or every IBTRS_PROGRESS_S seconds, on ours.  Progress is counted in lines of
# the log out of the expected UNITS; from it comes the estimate of the time left.
with_progress() {
	local title=$1 units=$2 log start pid now lines next=0 left rc=0
	shift 2
	log=$IBTRS_CACHE/logs/$(tr -cs '[:alnum:]' - <<<"$title" | sed 's/-$//').log
	say "$title (log: $log)"
	start=$(date +%s)
	"$@" >"$log" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		sleep 1
		now=$(($(date +%s) - start))
		[ "$now" -ge "$((next + ${IBTRS_PROGRESS_S:-30}))" ] || continue
		next=$now
		lines=$(wc -l <"$log")
		left='?'
		if [ "$lines" -gt 20 ] && [ "$lines" -lt "$units" ]; then
			left=$((now * (units - lines) / lines))
		fi
		printf '    %s: %d of about %d steps, %d s so far, about %s s left\n' \
			"$title" "$lines" "$units" "$now" "$left"
	done
	wait "$pid" || rc=$?
	if [ "$rc" != 0 ]; then
		tail -n 40 "$log" >&2
		die "$title failed with status $rc; the whole log is $log"
	fi
	printf '    %s: done in %d s\n' "$title" "$(($(date +%s) - start))"
}
