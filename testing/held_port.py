# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers of a test, which runs concurrently with other tests."""

import socket


def hold_port(case, count=1):
    """Returns the first of `count` consecutive free ports of 127.0.0.1. Until
    `case` ends, the system assigns them only to processes that name them and
    set SO_REUSEADDR, as servers do. A port that is merely free might be
    assigned to another process before the server listens."""
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
    """Returns a socket on the port, which hold_port may have returned; 0: any
    port."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
    except BaseException:
        bound.close()
        raise
    return bound
