#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# check-layers.sh: checks that a crate names only crates of the layers below it,
# and a module only those of the layers below it in its crate, and that drivers
# have no unsafe code.  Prints each line that breaks a rule, and ends with 1 if
# there are any.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0

# sources PATH...: the Rust files below, as FILE:LINE:CODE without comments and
# the contents of strings.
sources() {
	local folder
	# shellcheck disable=SC2016 # a program of awk's
	for folder in "$@"; do
		[ ! -d "$folder" ] || find "$folder" -name '*.rs' -not -path '*/target/*'
	done | sort | xargs -r awk '{
		gsub(/\\"/, "")
		gsub(/"[^"]*"/, "\"\"")
		sub(/\/\/.*/, "")
		if ($0 ~ /[^[:space:]]/) print FILENAME ":" FNR ":" $0
	}'
}

# forbid WHY PATTERN PATH...: no line of code below PATH may match.
forbid() {
	local why=$1 pattern=$2 found
	shift 2
	found=$(sources "$@" | grep -E "^[^:]+:[0-9]+:.*$pattern" || true)
	[ -n "$found" ] || return 0
	printf '%s:\n%s\n' "$why" "$found"
	bad=1
}

word() { printf '\\b(%s)\\b' "$1"; }
drivers=(ibtrs-client ibtrs-server ibnbd ibmsg rust/ibtrs-core rust/proto rust/samples)

forbid "unsafe code outside rust/kx, rust/rdma, rust/bindings" "$(word unsafe)" "${drivers[@]}"
for file in $(grep -lrE --include='*.rs' 'allow\(.*unsafe_code' "${drivers[@]}" 2>/dev/null || true); do
	grep -q '^module!' "$file" || {
		printf 'unsafe code is allowed by a file without module!:\n%s\n' \
			"$(grep -nE 'allow\(.*unsafe_code' "$file" | sed "s|^|$file:|")"
		bad=1
	}
done

forbid "rust/proto names the kernel" "$(word 'kernel|bindings')(::|;| as )" rust/proto

# Each crate names only those that Kbuild hands to it.
graph=$(scripts/crates.py)
while read -r name folder uses; do
	others=$(cut -d' ' -f1 <<<"$graph" | grep -vxF -e "$name" -e "${uses// /$'\n'}" | paste -sd'|')
	forbid "$name names a crate that Kbuild does not hand to it" "$(word "$others")(::|;| as )" "$folder"
done <<<"$graph"

# Inside a crate.
scripts/layers.py || bad=1

exit $bad
