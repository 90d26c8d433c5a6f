# SPDX-License-Identifier: GPL-2.0
"""The bench of messages: one program (harness/) sends messages over ours and over other transports, in guests
whose instructions are counted as those of the bench of disks are."""
