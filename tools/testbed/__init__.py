# SPDX-License-Identifier: GPL-2.0
"""Guests, the links between them, and the scenarios that run on them.

Documentation/testing.md explains how to use it.
"""
