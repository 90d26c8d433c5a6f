# SPDX-License-Identifier: GPL-2.0
"""Network namespaces of a guest, each with a cable to the first one and an RDMA device at both ends:
10.1.<number>.1 is the near one, 10.1.<number>.2 the one in the namespace n<number>."""


def add(guest, number: int) -> None:
    near, far = f"near{number}", f"far{number}"
    # The answer of a neighbour on the same machine comes while the question is
    # asked, and before the resolver of RDMA addresses begins to wait for it.
    near_mac, far_mac = f"52:54:00:01:{number:02x}:01", f"52:54:00:01:{number:02x}:02"
    guest.run(" && ".join([
        f"ip netns add n{number}",
        f"ip link add {near} address {near_mac} type veth peer name {far} address {far_mac} netns n{number}",
        f"ip link set {near} mtu 4200 up",
        f"ip addr add 10.1.{number}.1/24 dev {near}",
        f"ip neigh add 10.1.{number}.2 lladdr {far_mac} dev {near} nud permanent",
        f"rdma link add {near} type rxe netdev {near}",
        f"ip netns exec n{number} sh -c 'ip link set lo up && ip link set {far} mtu 4200 up"
        f" && ip addr add 10.1.{number}.2/24 dev {far}"
        f" && ip neigh add 10.1.{number}.1 lladdr {near_mac} dev {far} nud permanent"
        f" && rdma link add {far} type rxe netdev {far}'"]))


def drop(guest, number: int) -> None:
    guest.run(f"rdma link del near{number} && rdma link del far{number}; ip netns del n{number}")


def inside(number: int, command: str) -> str:
    """The command, run in a namespace. It may not contain single quotes."""
    return f"ip netns exec n{number} bash -c '{command}'"
