# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers of a test's programs, which run beside other tests."""

import socket


def hold_port(case, count=1):
    """The first of `count` neighbouring ports of 127.0.0.1, on which nobody
    listens. Until `case` ends the system gives them to nobody but who names them
    and sets SO_REUSEADDR, as servers do; of a port that is only found free it may
    make somebody else's before the server listens."""
    while True:
        held = [bind(0)]
        port = held[0].getsockname()[1]
        try:
            while len(held) < count:
                held.append(bind(port + len(held)))
        except (OSError, OverflowError):
            for each in held:
                each.close()
            continue
        for each in held:
            case.addCleanup(each.close)
        return port


def bind(port):
    """A socket of the port, which hold_port may have given; 0: of any."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
    except BaseException:
        bound.close()
        raise
    return bound
