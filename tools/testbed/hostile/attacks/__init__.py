# SPDX-License-Identifier: GPL-2.0
"""What a hostile client does, and what the server is to make of it.

An attack is a function; it ends, or says what was wrong.  Those who are beside the
point, the server's kernel and honest clients, are looked at by the scenario.

Each module adds the attacks of its subject to the table, in this order."""

from . import (connecting, halfway, names, immediates, requests, inv_answers, devices, operations, chunks,  # noqa: F401
               floods)
from .table import ATTACKS, Shared  # noqa: F401
