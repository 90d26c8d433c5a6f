# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Sourced: an apt of our own beside the system's, with the same mirror and key
# and one more suite.  The machine's configuration does not change.

# The mirror that the machine's own sources name.
debian_mirror() {
	# shellcheck disable=SC2016 # a placeholder of apt's
	apt-get indextargets --format '$(SITE)' 'Created-By: Packages' |
		awk '/debian/ && !/security/ && !found { found = 1; print } END { exit !found }'
}

# open_suite SUITE [with-system]: makes the options in APT_SUITE, reads the
# suite's package lists; with-system keeps the machine's own sources as well, for
# installing what depends on packages of both.
open_suite() {
	local suite=$1 own=$IBTRS_CACHE/apt/$1${2:+-$2} mirror
	# Without package lists apt may not name any.
	mirror=$(debian_mirror) || { as_root apt-get update && mirror=$(debian_mirror); } ||
		die "found no Debian mirror in the apt sources of this machine"
	rm -rf "$own/parts"
	mkdir -p "$own/parts" "$own/lists/partial" "$own/cache/archives/partial"
	if [ "${2:-}" = with-system ]; then
		cp /etc/apt/sources.list "$own/parts/machine.list" 2>/dev/null || true
		cp /etc/apt/sources.list.d/* "$own/parts/" 2>/dev/null || true
	fi
	cat >"$own/parts/suite.sources" <<-EOS
		Types: deb
		URIs: $mirror
		Suites: $suite
		Components: main
		Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
	EOS
	APT_SUITE=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$own/parts"
		-o Dir::State::Lists="$own/lists" -o Dir::Cache="$own/cache" -o APT::Sandbox::User=)
	apt-get "${APT_SUITE[@]}" update
}
