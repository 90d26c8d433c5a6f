#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# make-room.sh MIB: where the cache has less than MIB free, removes the builds of other checkouts, the longest
# unused first, until it has.  Fails with the reason if that is not enough.  A build that was written to within
# the last hour may be in use, and stays; so do kernels and packages, which all checkouts share.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

needed=${1:?usage: make-room.sh MIB}

free_mib() { df --output=avail -m "$IBTRS_CACHE" | tail -n 1 | tr -d ' '; }
is_in_use() { [ -n "$(find "$1" -mmin -60 -print -quit)" ]; }
last_written() { find "$1" -printf '%T@\n' | sort -n | tail -n 1; }

# One line for each checkout but this one: when it was last written to, and its key.
others() {
	local key folder
	for key in $(find "$IBTRS_CACHE/modules" "$IBTRS_CACHE/cargo" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' \
		2>/dev/null | sort -u); do
		[ "$key" != "$CHECKOUT" ] || continue
		for folder in "$IBTRS_CACHE/modules/$key" "$IBTRS_CACHE/cargo/$key"; do
			[ ! -d "$folder" ] || last_written "$folder"
		done | sort -n | tail -n 1 | sed "s/\$/ $key/"
	done | sort -n
}

remove() {
	local folder
	for folder in "$IBTRS_CACHE/modules/$1" "$IBTRS_CACHE/cargo/$1"; do
		[ ! -d "$folder" ] || ! is_in_use "$folder" || return 0
	done
	say "Removing the builds of another checkout ($1) to make room in $IBTRS_CACHE"
	rm -rf "$IBTRS_CACHE/modules/$1" "$IBTRS_CACHE/cargo/$1"
}

if [ "$(free_mib)" -lt "$needed" ]; then
	while read -r _ key; do
		[ "$(free_mib)" -lt "$needed" ] || break
		remove "$key"
	done < <(others)
fi
free=$(free_mib)
say "$IBTRS_CACHE has $free MiB free"
[ "$free" -ge "$needed" ] || die "$IBTRS_CACHE has $free MiB free, and $needed are needed: make room, or set IBTRS_CACHE"
