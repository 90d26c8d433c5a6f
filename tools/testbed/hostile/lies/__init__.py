# SPDX-License-Identifier: GPL-2.0
"""What a hostile server says, and what is to become of its client.

A lie is what the server does in the place of an honest one, what the client's user
does, and what the server looks at afterwards.  `expect` takes the names of the errors
that a user may see.

Each module adds the lies of its subject to the table, in this order."""

from . import (keys, answers, inv_answers, immediates, connecting, information, devices, silence,  # noqa: F401
               endless)
from .table import LIES, Lie  # noqa: F401
