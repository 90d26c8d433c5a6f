#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# llvm-link-kcsan.sh OPT EXTRA LLVM_LINK ARGS...: runs llvm-link-with.sh, and then
# instruments every memory access of the result for KCSAN.  rustc has the
# sanitizer only for targets with an operating system, and the kernel's build
# passes nothing of KCSAN to it; this is the LLVM pass that clang uses.
set -e
opt=$1
shift
"$(dirname "$0")/llvm-link-with.sh" "$@"
while [ "$1" != -o ]; do shift; done
# The names of the pass's options are those in the kernel's Makefile.kcsan.  Only the pass over functions: that
# over modules adds a constructor, which does nothing in the kernel, and clang has run it over the helpers.
"$opt" -passes='forceattrs,function(tsan)' -force-attribute=sanitize_thread \
	-tsan-distinguish-volatile=1 -tsan-compound-read-before-write=1 \
	-tsan-instrument-func-entry-exit=0 "$2" -o "$2.kcsan"
mv "$2.kcsan" "$2"
