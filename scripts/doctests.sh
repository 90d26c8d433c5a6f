#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# doctests.sh KERNEL OUT: compiles the examples in the documentation of rust/kx,
# rust/rdma and ibmsg, as users of the crates have them; nothing runs.  KERNEL is the
# kernel's build folder, OUT that of our built modules.  Ends with 1 if an
# example does not compile.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

kernel=${1:?usage: doctests.sh KERNEL OUT}
out=${2:?usage: doctests.sh KERNEL OUT}
CRATES_WITH_EXAMPLES="kx rdma ibmsg"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# rustdoc knows neither that examples are for a kernel nor that its panic handler is in the kernel crate.
cat >"$work/rustc" <<'END'
#!/bin/sh
exec /usr/bin/rustc -Zunstable-options -Aunused_features -Cpanic=abort --extern force:kernel "$@"
END
chmod +x "$work/rustc"

# examples NAME ROOT USES...: compiles those of a crate.
examples() {
	local name=$1 root=$2
	shift 2
	IBTRS_OBJ=$out RUST_MODFILE=$name OBJTREE=$kernel RUSTC_BOOTSTRAP=1 /usr/bin/rustdoc \
		--test --no-run --test-builder "$work/rustc" -Zunstable-options \
		--edition 2021 --crate-name "$name" --target="$kernel/scripts/target.json" \
		-Zcrate-attr=no_std -Zcrate-attr='feature(arbitrary_self_types,used_with_arg)' \
		--sysroot=/dev/null -L "$kernel/rust" -L "$out/rust/meta" \
		--extern kernel --extern pin_init --extern "$name" "${@/#/--extern=}" \
		--cfg MODULE "@$kernel/include/generated/rustc_cfg" \
		-Cunsafe-allow-abi-mismatch=fixed-x18,sanitizer -Cpanic=abort "$root"
}

# A check that nothing fails says nothing.
cat >"$work/wrong.rs" <<'END'
//! ```
//! kx::there_is_no_such_function();
//! ```
#![no_std]
END
if examples kx "$work/wrong.rs" >"$work/log" 2>&1 || ! grep -q there_is_no_such_function "$work/log"; then
	cat "$work/log"
	die "a wrong example is not found"
fi

# shellcheck disable=SC2086 # names of crates
"$(dirname "$0")/crates.py" | while read -r name folder uses; do
	[[ " $CRATES_WITH_EXAMPLES " != *" $name "* ]] || examples "$name" "$TOP/$folder/lib.rs" $uses
done
