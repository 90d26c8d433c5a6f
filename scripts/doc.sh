#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# doc.sh KERNEL OUT: makes the documentation of our crates with rustdoc, in
# OUT/doc.  KERNEL is the kernel's build folder, OUT that of our built modules.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

kernel=${1:?usage: doc.sh KERNEL OUT}
out=${2:?usage: doc.sh KERNEL OUT}

document() {
	local name=$1 root=$2
	shift 2
	IBTRS_OBJ=$out RUST_MODFILE=$name OBJTREE=$kernel RUSTC_BOOTSTRAP=1 /usr/bin/rustdoc \
		--edition 2021 --crate-name "$name" --target="$kernel/scripts/target.json" \
		-Zunstable-options -Zcrate-attr=no_std \
		-Zcrate-attr='feature(arbitrary_self_types,asm_goto,generic_arg_infer,used_with_arg)' \
		--sysroot=/dev/null -L "$kernel/rust" -L "$out/rust/meta" \
		--extern kernel --extern pin_init "${@/#/--extern=}" \
		--cfg MODULE "@$kernel/include/generated/rustc_cfg" \
		-Cunsafe-allow-abi-mismatch=fixed-x18 \
		-Arustdoc::private_intra_doc_links --document-private-items -o "$out/doc" "$TOP/$root"
}

# shellcheck disable=SC2086 # names of crates
"$(dirname "$0")/crates.py" | while read -r name folder uses; do
	[ "$name" = ibtrs_bindings ] || document "$name" "$folder/lib.rs" $uses
done
echo "documentation is in $out/doc; begin with $out/doc/ibtrs_client/index.html"
