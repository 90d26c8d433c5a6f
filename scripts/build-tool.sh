#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-tool.sh FOLDER: builds the commands ibnbd and ibmsg and puts them there, with their
# manual pages and the completions for shells.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

folder=${1:?usage: build-tool.sh FOLDER}
export CARGO_TARGET_DIR=$CRATES
(cd "$TOP" && cargo build --locked --release --package ibnbd --package ibmsg)
mkdir -p "$folder/completions"
for tool in ibnbd ibmsg; do
	install -D "$CARGO_TARGET_DIR/release/$tool" "$folder/$tool"
	"$folder/$tool" manpages "$folder/man"
	for shell in bash zsh fish; do
		"$folder/$tool" completions "$shell" >"$folder/completions/$tool.$shell"
	done
done
say "The commands are $folder/ibnbd and $folder/ibmsg"
