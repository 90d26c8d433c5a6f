#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-deb.sh FOLDER: builds the Debian packages into FOLDER.  Compiles the command
# ibnbd; needs debhelper, dh-dkms, cargo and python3.  The crates come from vendor/, which
# vendor.py makes, or are fetched before the build begins.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

folder=${1:?usage: build-deb.sh FOLDER}
[ -x /usr/bin/dh_dkms ] || die "debhelper and dh-dkms are needed: apt install debhelper dh-dkms"
command -v cargo >/dev/null || die "cargo is needed: apt install cargo"
command -v python3 >/dev/null || die "python3 is needed: apt install python3"
version=$(sed -n '1s/^ibtrs (\(.*\)).*/\1/p' "$TOP/tools/debian/changelog")
grep -qx "version = \"$version\"" "$TOP/Cargo.toml" ||
	die "tools/debian/changelog says $version; Cargo.toml says another version"

# Those of this checkout; all of an unpacked archive.
files() {
	git -C "$TOP" ls-files -z --cached --others --exclude-standard 2>/dev/null ||
		(cd "$TOP" && find . -type f -not -path './build/*' -not -path './target/*' -not -path './vendor/*' -print0)
}

# The packages appear beside the tree that they are built in.
# Not in /tmp, which may be the machine's memory.
work=$(TMPDIR=${TMPDIR:-/var/tmp} mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/ibtrs-$version
mkdir "$tree"
files |
	tar -C "$TOP" --null --no-recursion --files-from=- -c | tar -C "$tree" -x
mv "$tree/tools/debian" "$tree/debian"
if [ -d "$TOP/vendor" ]; then
	cp -a "$TOP/vendor" "$tree/"
else
	"$TOP/scripts/vendor.py" "$tree/vendor"
fi
# Not checked: build-essential, which every package is said to need.
(cd "$tree" && dpkg-buildpackage --no-check-builddeps --build=binary --no-sign)
mkdir -p "$folder"
mv "$work"/*.deb "$folder"
say "The packages are in $folder: apt install $folder/ibtrs-*_${version}_*.deb"
