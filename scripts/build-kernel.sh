#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# build-kernel.sh fast|debug|kcsan|versions|arm64|stock [prepare|look]: builds a test kernel, or (prepare) only
# the files that modules are compiled against, and prints its build folder as the last line.  With look, it
# only returns whether the kernel is there.  The
# folder is keyed by the kernel's version, the configuration and the toolchain, and is built once.
# The stock kernel is Debian's own, which is fetched; see stock-kernel.sh.
# shellcheck source=scripts/env.sh
. "$(dirname "$0")/env.sh"

flavour=${1:?usage: build-kernel.sh fast|debug|kcsan|versions|arm64|stock [prepare]}
[ "$flavour" != stock ] || exec "$TOP/scripts/stock-kernel.sh"
goal=${2:-all}
fragments=("$TOP/tools/testbed/kernel/base.config")
units=2200
case $flavour in
fast) fragments+=("$TOP/tools/testbed/kernel/fast.config") ;;
debug)
	fragments+=("$TOP/tools/testbed/kernel/debug.config")
	units=2250
	;;
kcsan | versions) fragments+=("$TOP/tools/testbed/kernel/$flavour.config") ;;
arm64)
	fragments+=("$TOP/tools/testbed/kernel/arm64.config")
	KERNEL_MAKE_ARGS+=(ARCH=arm64)
	;;
*) die "no such kernel flavour: $flavour" ;;
esac

src=$("$TOP/scripts/kernel-source.sh" | tail -n 1)
version=$(make -s -C "$src" kernelversion)
key=$({
	cat "${fragments[@]}"
	/usr/bin/rustc -vV
	"clang-$LLVM_MAJOR" --version
	"$BINDGEN_ROOT/bin/bindgen" --version
} | sha256sum | cut -c1-12)
out=$IBTRS_CACHE/kernel/$version-$flavour-$key

kmake() { make -C "$src" O="$out" -j"$JOBS" "${KERNEL_MAKE_ARGS[@]}" "$@"; }

# Every option that a fragment sets must have survived Kconfig: one that was
# dropped silently would leave the tests blind.
check_config() {
	local line name bad=0
	while read -r line; do
		case $line in
		CONFIG_*=n | '# CONFIG_'*' is not set')
			name=${line#\# }
			name=${name%%[= ]*}
			! grep -q "^$name=" "$out/.config" || { echo "still on: $name"; bad=1; }
			;;
		CONFIG_*)
			grep -qxF "$line" "$out/.config" || { echo "did not take: $line"; bad=1; }
			;;
		esac
	done < <(awk -F= '/^(# )?CONFIG_/ { k = $1; sub(/^# /, "", k); sub(/ is not set$/, "", k); last[k] = $0 }
		END { for (k in last) print last[k] }' "${fragments[@]}")
	return $bad
}

configure() {
	mkdir -p "$out"
	kmake tinyconfig
	"$src/scripts/kconfig/merge_config.sh" -m -O "$out" "$out/.config" "${fragments[@]}"
	kmake olddefconfig
	check_config
	kmake rustavailable
}

case $goal in
all) stamp=$out/.built ;;
look) [ -e "$out/.built" ] && exit 0 || exit 1 ;;
prepare) stamp=$out/.prepared ;;
*) die "no such goal: $goal" ;;
esac

# Does what is asked for, unless it was done while this waited.
build() {
	[ ! -e "$stamp" ] || return 0
	[ -e "$out/.prepared" ] || with_progress "Configuring the $flavour kernel $version" 300 configure
	if [ "$goal" = prepare ]; then
		with_progress "Preparing the $flavour kernel $version" 550 kmake modules_prepare
	else
		with_progress "Building the $flavour kernel $version" "$units" kmake
		# The versions of symbols are made of it; guests would only load it.
		[ "$flavour" != versions ] || find "$out" -name '*.ko' -exec strip --strip-debug {} +
	fi
	touch "$stamp"
}

if [ ! -e "$stamp" ]; then
	# Two at the same time would tread on each other.
	mkdir -p "$IBTRS_CACHE/kernel"
	exec 9>"$IBTRS_CACHE/kernel/.lock"
	flock -n 9 || { say "Waiting for another kernel build" && flock 9; }
fi
build
echo "$out"
