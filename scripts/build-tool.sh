#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-tool.sh FOLDER: builds the command ibnbd and puts it there, with its manual
# pages and the completions for shells.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

folder=${1:?usage: build-tool.sh FOLDER}
export CARGO_TARGET_DIR=$CRATES
(cd "$TOP" && cargo build --locked --release --package ibnbd)
install -D "$CARGO_TARGET_DIR/release/ibnbd" "$folder/ibnbd"
"$folder/ibnbd" manpages "$folder/man"
mkdir -p "$folder/completions"
for shell in bash zsh fish; do
	"$folder/ibnbd" completions "$shell" >"$folder/completions/ibnbd.$shell"
done
say "The command is $folder/ibnbd"
