// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of static inline functions and macros, which bindgen cannot bind.
 * One file per kernel header, sorted.
 */

#include "helper.h"

#include "dma.c"
#include "verbs.c"
