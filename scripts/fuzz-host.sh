#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# fuzz-host.sh [SECONDS [ARGUMENT...]]: feeds random bytes to decoders, parsers and state machines, guided by
# code coverage (libFuzzer), for a minute or for SECONDS. Further arguments go to libFuzzer, such as -runs=N.
# Ends with 1 if it found a fault; the input is then in a file crash-* in $IBTRS_CACHE/fuzz.
#
# fuzz-host.sh FILE: runs the input in that file again.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

folder=$IBTRS_CACHE/fuzz
mkdir -p "$folder/corpus"

# libFuzzer itself is C++, and built with the crate.
export CXX=clang++-$LLVM_MAJOR
export CARGO_TARGET_DIR=$CRATES/fuzz
# With a target that is named, programs of the build are not instrumented.
target=x86_64-unknown-linux-gnu
coverage=(level=4 inline-8bit-counters pc-table trace-compares)
flags="-Cpasses=sancov-module -Ccodegen-units=1 --cfg=fuzzing"
for each in "${coverage[@]}"; do
	flags+=" -Cllvm-args=-sanitizer-coverage-$each"
done
RUSTFLAGS=$flags cargo build --locked --release --target "$target" --manifest-path "$TOP/tools/fuzz/Cargo.toml"

program=$CARGO_TARGET_DIR/$target/release/ibtrs_fuzz
[ ! -f "${1:-}" ] || exec "$program" "$1"
seconds=${1:-60}
[ $# = 0 ] || shift
say "Fuzzing for $seconds s"
cd "$folder"
exec "$program" -max_len=512 -print_final_stats=1 -verbosity=0 -max_total_time="$seconds" "$@" "$folder/corpus"
