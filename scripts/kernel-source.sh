#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Prints, as its last line, the folder of the kernel source to build: the
# user's own (KERNEL_SRC=), or the newest linux-source package in reach,
# fetched and unpacked once.
. "$(dirname "$0")/env.sh"

# Suites that carry kernels newer than the release's own, and the package.
SUITE=trixie-backports
PACKAGES=(linux-source-7.3 linux-source)

if [ -n "${KERNEL_SRC:-}" ]; then
	[ -f "$KERNEL_SRC/Kbuild" ] || die "KERNEL_SRC=$KERNEL_SRC is not a kernel source tree"
	echo "$KERNEL_SRC"
	exit 0
fi

pointer=$IBTRS_CACHE/src/current
if [ -e "$pointer/Kbuild" ]; then
	readlink -f "$pointer"
	exit 0
fi

# An apt of our own beside the system's: same mirror and key, one more suite,
# nothing of the machine's configuration changed.
own_apt=$IBTRS_CACHE/apt
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' |
	grep -v security | grep debian | head -n 1)
[ -n "$mirror" ] || die "found no Debian mirror in the apt sources of this machine"
mkdir -p "$own_apt/parts" "$own_apt/lists/partial" "$own_apt/cache/archives/partial"
cat >"$own_apt/parts/suite.sources" <<-EOF
	Types: deb
	URIs: $mirror
	Suites: $SUITE
	Components: main
	Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
apt_opts=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$own_apt/parts"
	-o Dir::State::Lists="$own_apt/lists" -o Dir::Cache="$own_apt/cache"
	-o APT::Sandbox::User=)

fetch() {
	local package
	apt-get "${apt_opts[@]}" update
	cd "$own_apt"
	rm -f ./*.deb
	for package in "${PACKAGES[@]}"; do
		apt-get "${apt_opts[@]}" download "$package" && return
	done
	return 1
}

unpack() {
	local tar
	rm -rf "$own_apt/unpacked" "$IBTRS_CACHE/src/new"
	mkdir -p "$IBTRS_CACHE/src/new"
	dpkg -x "$own_apt"/linux-source-*.deb "$own_apt/unpacked"
	tar=$(echo "$own_apt"/unpacked/usr/src/linux-source-*.tar.xz)
	tar -C "$IBTRS_CACHE/src/new" --strip-components=1 -xf "$tar"
	rm -rf "$own_apt/unpacked" "$own_apt"/*.deb
}

with_progress "Fetching the kernel source from $SUITE" 10 fetch
with_progress "Unpacking the kernel source" 10 unpack
version=$(make -s -C "$IBTRS_CACHE/src/new" kernelversion)
rm -rf "$IBTRS_CACHE/src/linux-$version"
mv "$IBTRS_CACHE/src/new" "$IBTRS_CACHE/src/linux-$version"
ln -sfn "linux-$version" "$pointer"
readlink -f "$pointer"
