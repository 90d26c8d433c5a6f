# SPDX-License-Identifier: GPL-2.0
"""A client and a server in user space that break the protocol.

They run in guests, over pyverbs, without any driver of ours or of mainline:

- `wire` has the layouts of all messages, and `values` the boundary values of their fields;
- `verbs` has connections; `client` and `server` follow the protocol, and let their users
  change any part of it;
- `attacks` and `lies` are the tables of the violations by a client and by a server, with the
  reactions that the other side must show;
- `mutate` and `fuzz` change valid exchanges at random.

Only `wire`, `values`, `mutate` and `report` run anywhere; the others need pyverbs."""
