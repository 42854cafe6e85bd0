"""Servers that stop answering at some point of PostgreSQL's protocol, or send random bytes."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SSL_OR_GSS = {80877103, 80877104}


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


LOGIN = message(b"R", struct.pack("!i", 0)) + message(b"K", bytes(8)) + message(b"Z", b"I")
"""What PostgreSQL sends to a client that it lets in without a password."""


@contextmanager
def served(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield the port of a server that talks to each client, then keeps the connection open silently."""
    clients: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                clients.append(server.accept()[0])
                threading.Thread(target=talk, args=(clients[-1],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for client in clients:
        client.close()


def log_in(client: socket.socket) -> None:
    """Refuse encryption, let the client in, and answer nothing more."""
    while struct.unpack("!ii", client.recv(10_000)[:8])[1] in SSL_OR_GSS:
        client.sendall(b"N")
    client.sendall(LOGIN)


def forward(address: tuple[str, int], count: int) -> Callable[[socket.socket], None]:
    """Return a proxy that forwards all data of a client and ``count`` bytes of the server's answer."""

    def talk(client: socket.socket) -> None:
        with suppress(OSError), socket.create_connection(address) as server:
            threading.Thread(target=pipe, args=(client, server, 10**9), daemon=True).start()
            pipe(server, client, count)

    def pipe(source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data[: max(0, left)])
                left -= len(data)

    return talk
