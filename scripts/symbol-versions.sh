#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# symbol-versions.sh GENDWARFKSYMS [OPTION...] OBJECT...: reads the names of symbols that the
# objects define, and prints the version of each, for a kernel with CONFIG_MODVERSIONS.
#
# gendwarfksyms makes versions of types, but not for all functions of Rust. It does not look for
# the methods of enumerations without fields (DW_TAG_enumeration_type), and a function that the
# compiler has merged with another is not in the debugging information. It gives these 0, which
# would be the same in every build. Here they get the checksum of the objects, which changes more
# often than their types do, and never less.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$work/names"
if ! "$@" <"$work/names" >"$work/versions" 2>"$work/warnings"; then
	cat "$work/warnings" >&2
	exit 1
fi
grep -v 'no information for symbol' "$work/warnings" >&2 || true
for object; do
	case $object in
	*.o) cat "$object" ;;
	esac
done | cksum >"$work/sum"
read -r sum _ <"$work/sum"
# Not 0 either.
sed "s/ 0x00000000\$/ $(printf '0x%08x' $((sum | 1)))/" "$work/versions"
