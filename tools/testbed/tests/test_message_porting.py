# SPDX-License-Identifier: GPL-2.0
"""The tables of messages-porting.md are complete, and name tests that exist."""

import re

import pytest

from testbed.paths import TOP

PAGE = (TOP / "Documentation/messages-porting.md").read_text()
SCENARIOS = TOP / "tools/testbed/scenarios"
# What the documents of the other systems describe.
FUNCTIONS = """
xio_init xio_context_create xio_context_destroy xio_context_run_loop xio_context_stop_loop xio_context_add_ev_handler
xio_context_poll_wait xio_context_poll_completions cpu_hint polling_timeout_us prealloc_pools xio_session_create
xio_session_destroy xio_query_session xio_modify_session xio_query_connection xio_modify_connection xio_bind xio_unbind
on_new_session on_session_established xio_connect xio_accept xio_reject xio_disconnect xio_connection_destroy
XIO_SESSION_NEW_CONNECTION_EVENT XIO_SESSION_CONNECTION_ESTABLISHED_EVENT XIO_SESSION_REJECT_EVENT
XIO_SESSION_CONNECTION_CLOSED_EVENT XIO_SESSION_CONNECTION_TEARDOWN_EVENT XIO_SESSION_TEARDOWN_EVENT
XIO_SESSION_CONNECTION_DISCONNECTED_EVENT XIO_SESSION_CONNECTION_RECONNECTING_EVENT
XIO_SESSION_CONNECTION_RECONNECTED_EVENT XIO_CONNECTION_LEADING_CONN XIO_MSG_TYPE_ONE_WAY XIO_MSG_TYPE_RDMA
XIO_MSG_FLAG_REQUEST_READ_RECEIPT on_ow_send_complete on_msg_delivered on_msg_error on_rdma_direct_complete xio_send_msg
xio_send_request xio_send_response xio_release_msg xio_release_response xio_lookup_rkey_by_request
xio_lookup_rkey_by_response XIO_SGL_TYPE_IOV XIO_SGL_TYPE_IOV_PTR XIO_SGL_TYPE_SCATTERLIST xio_msg.sn
XIO_OPTNAME_SND_QUEUE_DEPTH_MSGS XIO_OPTNAME_RCV_QUEUE_DEPTH_MSGS XIO_OPTNAME_SND_QUEUE_DEPTH_BYTES
XIO_OPTNAME_RCV_QUEUE_DEPTH_BYTES assign_data_in_buf xio_mempool_create XIO_OPTNAME_MAX_IN_IOVLEN
XIO_OPTNAME_MAX_OUT_IOVLEN XIO_OPTNAME_MAX_INLINE_XIO_HEADER XIO_OPTNAME_MAX_INLINE_XIO_DATA XIO_OPTNAME_ENABLE_MEM_POOL
XIO_THREAD_SAFE_DEBUG XIO_OPTNAME_LOG_LEVEL XIO_OPTNAME_LOG_FN xio_msg_dump XIO_OPTNAME_ENABLE_KEEPALIVE
XIO_OPTNAME_CONFIG_KEEPALIVE XIO_OPTNAME_ENABLE_RECONNECT hello_world hello_world_mt hello_world_iov TX_MSG RX_MSG TX_BYTES RX_BYTES DELAY APPDELAY R-AIO nbdx
netio_buffered_send_socket_init netio_buffered_listen_socket_init num_pages pagesize watermark timeout_ms
cb_connection_established cb_connection_closed cb_error_connection_refused cb_msg_received netio_buffered_listen
netio_buffered_connect netio_disconnect netio_buffered_send netio_buffered_sendv netio_buffered_flush NETIO_STATUS_TOO_BIG
NETIO_STATUS_AGAIN signal_buffer_available netio_publish_socket_init netio_subscribe_socket_init netio_subscribe
netio_unsubscribe netio_buffered_publish NETIO_REENTRY netio_subscription_cache netio_subscription_cache_init
netio_buffered_publish_flush
O_ASYNC MSG_ASYNC ioq_create ioq_add ioq_del ioq_event iomap iounmap get put submit
""".split()


def rows() -> list[list[str]]:
    """Those of the tables that name tests."""
    found = re.findall(r"^\| function \| here \| shown by \|\n.*\n((?:\|.*\n)+)", PAGE, re.M)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for table in found for line in table.splitlines()]


def lost(cited: str) -> str | None:
    """Why there is no such test; None if there is."""
    file, test, _, case = re.fullmatch(r"(\w+\.py)::(\w+)(\[(\w+)\])?", cited).groups()
    path = SCENARIOS / file
    text = path.read_text() if path.exists() else ""
    found = re.search(rf"((?:^@.*\n(?:^ .*\n)*)*)^ *def {test}\b", text, re.M)
    if not found:
        return f"{cited}: no such function"
    return None if not case or f'"{case}"' in found[1] else f"{cited}: no such case"


def test_each_row_has_a_test_or_says_that_there_is_nothing():
    assert len(rows()) > 80
    for row in rows():
        function, here, shown = row
        assert shown != "—" or re.search(r"\bnot here\b|\bno test\b", here), function
        assert shown == "—" or re.fullmatch(r"`[\w.:\[\]]+`(, `[\w.:\[\]]+`)*", shown), function


def test_the_tests_exist():
    cited = {name for row in rows() for name in re.findall(r"`(\w+\.py::[^`]*)`", row[2])}
    assert len(cited) > 40 and [why for name in sorted(cited) if (why := lost(name))] == []


@pytest.mark.parametrize("name", ("test_messages.py::test_nothing", "test_nothing.py::test_the_first_program",
                                  "test_messages.py::test_what_programs_are_promised[nothing]",
                                  "test_messages.py::test_the_first_program[begin]"))
def test_a_test_that_does_not_exist_is_found(name):
    assert lost(name)


def test_each_function_of_the_other_systems_has_a_row():
    named = {name for row in rows() for name in re.findall(r"[\w.\-]+", row[0])}
    assert [name for name in FUNCTIONS if name not in named] == []
