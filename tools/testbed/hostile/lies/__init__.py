# SPDX-License-Identifier: GPL-2.0
"""The lies of a hostile server, and the reactions that its client must show.

A lie has the server's deviation from an honest one, the actions of the client's user, and the
server's checks afterwards.  `expect` takes the names of the errors that a user may see.

Each module adds the lies of its subject to the table, in this order."""

from . import (keys, answers, inv_answers, checksums, times, immediates, connecting, information, devices,  # noqa: F401
               slots, capsules, discovery, silence, unanswered, endless)
from .table import LIES, Lie  # noqa: F401
