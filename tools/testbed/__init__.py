# SPDX-License-Identifier: GPL-2.0
"""Guests, the links between them, and the scenarios that run on them.

See Documentation/testing.md for how to use it.
"""
