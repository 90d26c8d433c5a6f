// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of static inline functions and macros, which bindgen cannot bind.
 * There is one file for each subsystem, in alphabetical order.
 */

#include "helper.h"

#include "blk.c"
#include "configfs.c"
#include "cred.c"
#include "crypto.c"
#include "dma.c"
#include "fs.c"
#include "keys.c"
#include "mm.c"
#include "net.c"
#include "percpu.c"
#include "sched.c"
#include "sync.c"
#include "sysfs.c"
#include "uring.c"
#include "user.c"
#include "verbs.c"
