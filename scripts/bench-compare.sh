#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# bench-compare.sh COMMIT [ARGUMENT...]: measures the modules of that commit and
# those of this checkout, one after the other, on one kernel and with this
# checkout's bench; fails if a figure is worse by more than 1 %.  Figures of a
# commit are measured once.  The arguments go to tools/bench.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

name=${1:?usage: bench-compare.sh COMMIT [ARGUMENT...]}
shift
commit=$(git -C "$TOP" rev-parse --verify --quiet --short=12 "$name^{commit}") || die "no such commit: $name"
flavour=fast
case " $* " in
*" --kernel stock "*) flavour=stock ;;
esac
# Figures belong to a kernel, a bench and its arguments.
bench=$(cd "$TOP/tools/bench" && { cat ./*.py floor/*; echo "$*"; } | sha256sum | cut -c1-12)

"$TOP/scripts/setup.sh" "$flavour"
kernel=$(basename "$("$TOP/scripts/build-kernel.sh" "$flavour" | tail -n 1)")
figures=$IBTRS_CACHE/bench/$commit-$kernel-$bench.json
mkdir -p "$IBTRS_CACHE/bench"

run_bench() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$TOP/tools /usr/bin/python3 -m bench "$@"; }

measure_base() {
	local tree=$IBTRS_CACHE/bench/tree modules
	git -C "$TOP" worktree prune
	[ ! -e "$tree" ] || git -C "$TOP" worktree remove --force "$tree"
	git -C "$TOP" worktree add --quiet --detach "$tree" "$commit"
	make --no-print-directory -C "$tree" modules "FLAVOUR=$flavour"
	# The folder that env.sh there calls $MODULES.
	modules=$IBTRS_CACHE/modules/$(sha256sum <<<"$tree" | cut -c1-12)/$flavour
	run_bench "$@" --modules "$modules" --commit "$commit" --json "$figures.part"
	mv "$figures.part" "$figures"
	git -C "$TOP" worktree remove --force "$tree"
}

exec 9>"$IBTRS_CACHE/bench/.lock"
flock 9
[ -e "$figures" ] || measure_base "$@"
run_bench "$@" --base "$figures"
