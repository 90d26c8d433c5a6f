# SPDX-License-Identifier: GPL-2.0
"""A client and a server of user space that break the protocol.

They run in guests, over pyverbs, without any driver of ours or of mainline:

- `wire` has the layouts of all messages, and `values` what is tried in their fields;
- `verbs` has connections, `client` and `server` speak the protocol as it should be
  spoken, and let their users change any part of it;
- `attacks` and `lies` are the tables of what a client and a server do wrong, and of
  what is to become of it;
- `mutate` and `fuzz` change valid exchanges by chance.

Only `wire`, `values`, `mutate` and `report` run anywhere; the others need pyverbs."""
