"""How the API listens."""

import socket

from milepost.web.serve import address, listen


def test_answers_do_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as bound, socket.create_connection(address(bound)) as caller:
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert caller.getpeername() == bound.getsockname()
