#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# test.sh [--after SUITES] [SUITE...]: runs the suites (all without an argument) and ends with the
# counts of all of them together, and of those that ran before, whose names --after has.
# A suite that ran no test has failed.  With
# IBTRS_ALL=1 all scenarios run; without, those that tools/testbed/scenarios/rotation.py lists, and one
# part of all others but those marked `thorough`, and of the tables of hostile peers.  Which part
# runs is the commit's, or IBTRS_PART's.  With IBTRS_FAST=stock, Debian's own
# kernel is used in the place of the fast one.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

SUITES=(host testbed kunit scenarios)
export PYTHONPATH=$TOP/tools PYTHONDONTWRITEBYTECODE=1
results=$IBTRS_CACHE/test
counts=() host=
if [ "${1:-}" = --after ]; then
	for suite in $2; do counts+=("$results/$suite"); done
	shift 2
else
	rm -rf "$results"
fi
[ $# = 0 ] || SUITES=("$@")
mkdir -p "$results"

python() { /usr/bin/python3 "$@"; }
# pytest NAME ARGUMENTS...: leaves the counts under that name.
pytest() {
	local name=$1
	shift
	"$TOP/scripts/pytest.sh" --durations=10 --junitxml="$results/$name.xml" "$@" || true
	python -m testbed.tally junit "$results/$name.xml" "$results/$name"
	counts+=("$results/$name")
}

# A test that hangs takes its suite with it, not those that follow.
cargo_tests() {
	cd "$TOP" || return 1
	export CARGO_TARGET_DIR=$CRATES
	local rc=0
	timeout 1800 cargo test --workspace --all-features --no-fail-fast || rc=$?
	[ "$rc" != 124 ] || echo "error: the tests of the host crates did not end within 30 minutes"
}

# The crates that also build on the host, and a minute of random bytes against them.
run_host() {
	local log=$results/host.log fuzzed="FAILED. 0 passed; 1 failed"
	(cargo_tests) 2>&1 | tee "$log" || true
	if "$TOP/scripts/fuzz-host.sh" 60; then fuzzed="ok. 1 passed; 0 failed"; fi
	printf 'test result: %s (fuzzing)\n' "$fuzzed" | tee -a "$log"
	python -m testbed.tally cargo "$log" "$results/host"
}

# The testbed's own parts, without guests.
run_testbed() { pytest testbed "$TOP/tools/testbed/tests"; }

# The suites inside our modules; these are built for it apart.
run_kunit() {
	counts+=("$results/kunit")
	make --no-print-directory -C "$TOP" modules FLAVOUR=debug IBTRS_KUNIT=1 || return 0
	python -m testbed.kunit --modules "$MODULES/debug-kunit" \
		--tally "$results/kunit" || true
}

# Guests.  They wait for one another much of the time, so more of them than
# there are processors are done sooner.  Not so those that the kernel's own
# transport is in, which times out on slow guests, nor those
# that are never idle.
run_scenarios() {
	local what=("$TOP/tools/testbed/scenarios" --fast "${IBTRS_FAST:-fast}") these=''
	if [ -z "${IBTRS_ALL:-}" ]; then
		IBTRS_PART=$("$TOP/scripts/part.sh")
		export IBTRS_PART
		say "Scenarios of every run, and part $IBTRS_PART of the others; make test-all runs all"
		these=" and not thorough"
		what+=(--part "${IBTRS_PART%/*}")
	fi
	pytest scenarios "${what[@]}" -m "not quiet$these" -n $(($(nproc) + 1)) --dist loadgroup
	pytest scenarios-quiet "${what[@]}" -m "quiet$these"
}

case " ${SUITES[*]} " in
*" scenarios "*) "$TOP/scripts/setup.sh" debug "${IBTRS_FAST:-fast}" ;;
*" kunit "*) "$TOP/scripts/setup.sh" debug ;;
*) "$TOP/scripts/setup-packages.sh" ;;
esac

run() {
	local started
	started=$(date +%s)
	say "Suite $1"
	"run_$1"
	say "Suite $1 took $(($(date +%s) - started)) s"
}

# The host's suite has one processor busy most of the time; those before the scenarios, the other.
begin_host() {
	run host >"$results/host.out" 2>&1 &
	host=$!
	counts+=("$results/host")
}
end_host() {
	[ -n "$host" ] || return 0
	wait "$host" || true
	host=
	cat "$results/host.out"
}

for suite in "${SUITES[@]}"; do
	case $suite in
	host)
		begin_host
		continue
		;;
	scenarios) end_host ;;
	esac
	run "$suite"
done
end_host
say "All suites"
python -m testbed.tally sum "${counts[@]}"
