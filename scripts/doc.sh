#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# doc.sh KERNEL OUT: documentation of our crates with rustdoc, into OUT/doc.
# KERNEL is the kernel's build folder, OUT that of our modules, built.
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

document kx rust/kx/lib.rs ibtrs_bindings
document rdma rust/rdma/lib.rs ibtrs_bindings kx
document ibtrs_proto rust/proto/ibtrs/lib.rs
document ibnbd_proto rust/proto/ibnbd/lib.rs ibtrs_proto
document ibtrs_core rust/ibtrs-core/lib.rs kx rdma ibtrs_proto
document ibtrs_client ibtrs-client/lib.rs kx rdma ibtrs_proto ibtrs_core
document ibtrs_server ibtrs-server/lib.rs kx rdma ibtrs_proto ibtrs_core
document ibnbd_client ibnbd/client/lib.rs kx ibtrs_proto ibnbd_proto ibtrs_core ibtrs_client
document ibnbd_server ibnbd/server/lib.rs kx ibtrs_proto ibnbd_proto ibtrs_core ibtrs_server
echo "documentation is in $out/doc; begin with $out/doc/ibtrs_client/index.html"
