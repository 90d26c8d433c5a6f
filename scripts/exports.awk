# SPDX-License-Identifier: GPL-2.0
#
# Reads `nm -u` of the users, a line DEFINED, and `nm --defined-only` of the
# providers; prints an export line for each Rust or helper symbol that is both.
# Of providers whose interface is public, the variable `public` has a pattern:
# what matches it is exported for users outside of this tree.
/^DEFINED$/ { defined = 1; next }
!defined { if ($NF ~ /^(_R|rust_helper_)/) needed[$NF] = 1; next }
$2 ~ /[TRDB]/ && ($3 in needed || (public && $3 ~ public)) && $3 !~ /_(init|cleanup)_module$/ && $3 !~ /__(pfx|cfi|odr_asan)/ {
	printf "EXPORT_SYMBOL_RUST_GPL(%s);\n", $3
}
