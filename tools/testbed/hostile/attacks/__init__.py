# SPDX-License-Identifier: GPL-2.0
"""The attacks of a hostile client, and the reactions that the server must show.

An attack is a function; it returns, or raises with a description of the fault.  The scenario
watches the server's kernel and the honest clients.

Each module adds the attacks of its subject to the table, in this order."""

from . import (connecting, halfway, names, immediates, requests, inv_answers, devices, discovery,  # noqa: F401
               operations, checksums, times, chunks, slots, capsules, messages, memory, floods)
from .table import ATTACKS, Shared  # noqa: F401
