#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# mutants.sh [ARGUMENT...]: changes rust/proto in one place after the other and checks whether a test fails.
# The arguments go to cargo-mutants, such as -f fsm/client_path.rs, or --shard 0/20. .cargo/mutants.toml lists
# the mutants that may survive, with the reason. A full run takes hours.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

VERSION=27.1.0
root=$IBTRS_CACHE/mutants-$VERSION

install_mutants() {
	cargo install --locked cargo-mutants --version "$VERSION" --root "$root"
}

[ -x "$root/bin/cargo-mutants" ] ||
	with_progress "Building cargo-mutants $VERSION" 200 install_mutants
cd "$TOP"
mkdir -p "$IBTRS_CACHE/mutants"
exec "$root/bin/cargo-mutants" mutants --package ibtrs_proto --package ibnbd_proto --package ibmsg_proto \
	--output "$IBTRS_CACHE/mutants" --jobs "${JOBS_MUTANTS:-1}" --no-shuffle "$@"
