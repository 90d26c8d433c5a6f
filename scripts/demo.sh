#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# demo.sh [--kernel fast|stock] [--stack ibtrs|mainline] [--shell]: takes a bare
# machine to a disk that is mapped over soft-RoCE between two guests.  See
# tools/testbed/demo.py.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

kernel=stock
case " $* " in
*" --kernel fast "*) kernel=fast ;;
esac
case " $* " in
*mainline*)
	[ "$kernel" != stock ] || die "Debian's kernel has no RTRS and RNBD: STACK=mainline needs KERNEL=fast"
	NO_MODULES=1 "$TOP/scripts/setup.sh" fast
	;;
*)
	"$TOP/scripts/setup.sh" "$kernel"
	"$TOP/scripts/setup-packages.sh" tool
	# As for the tests of the command, which build most of it.
	(cd "$TOP" && CARGO_TARGET_DIR=$CRATES with_progress "Building the command ibnbd" 180 \
		cargo build --locked --package ibnbd)
	;;
esac
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools exec /usr/bin/python3 -m testbed.demo "$@"
