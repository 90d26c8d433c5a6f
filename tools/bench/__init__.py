# SPDX-License-Identifier: GPL-2.0
"""The bench: counts what an I/O costs, instead of timing it.

The guest's clock advances one nanosecond with each instruction that any of its
processors executes, so fio's microseconds are thousands of instructions.  They
do not depend on the host or its load.  Client and server are one guest with
soft-RoCE on a dummy interface, and a null block device is behind the server."""
