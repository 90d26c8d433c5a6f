#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# llvm-link-with.sh EXTRA LLVM_LINK ARGS...: runs LLVM_LINK with one more
# input, EXTRA, behind all the others.
extra=$1
shift
exec "$@" "$extra"
