# SPDX-License-Identifier: GPL-2.0
"""Hours of loads with verification, while everything happens that may; see __main__."""
