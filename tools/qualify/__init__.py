# SPDX-License-Identifier: GPL-2.0
"""`make qualify`: tries two machines with the packages installed, over ssh, and reports on them.

machine.py, run.py and the parts of a run (parts.py, data.py, failover.py, comparison.py) reach machines. The
others plan, read answers, judge and draw, so that tests need no machine. Whatever is changed on a machine is first recorded there, with its undo
(undo.py). Documentation/qualify.md is the page for users."""
