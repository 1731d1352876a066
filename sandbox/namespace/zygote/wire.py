"""The protocol between the engine and its spawner: one JSON object a packet, descriptors beside it.

Engine to spawner: `{"id": n, "op": name, ...}`, the operations being the methods named `on_*` of `server.Server`.
Spawner to engine:
    {"re": n, ...}                                   the operation is done
    {"re": n, "fault": text, "lost": bool}           it failed; lost: because the sandbox is gone
    {"re": n, "refused": [path, reason]}             a transfer crossed a limit
    {"exit": n, "status": code, "lost": bool}        the process started by request n has ended
    {"down": sandbox, "why": text}                   a sandbox ended by itself
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

PACKET_BYTES = 256 * 1024
"""Largest message. Content travels as descriptors; this bounds the arguments and environment of one process."""
_DESCRIPTORS = 4

Message = dict[str, Any]

_NEEDED_LATER = array
"""`send_fds` and `recv_fds` import it when called, which the spawner forbids."""


def prepare(sock: socket.socket) -> None:
    """Make room for the largest packet."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 4 * PACKET_BYTES)


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one packet. Raises: ValueError when too long; OSError, BlockingIOError on a non-blocking socket."""
    packet = json.dumps(message).encode()
    if len(packet) > PACKET_BYTES:
        raise ValueError(f"a request of {len(packet)} bytes is above the limit of {PACKET_BYTES}")
    if descriptors:
        socket.send_fds(sock, [packet], descriptors)
    else:
        sock.send(packet)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next packet with its descriptors, closed on exec; None when the peer is gone."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(sock, PACKET_BYTES, _DESCRIPTORS)
    except ConnectionResetError:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # `recv_fds` takes flags and does not pass them on
    return (json.loads(packet), descriptors) if packet else None
