"""Clients that ask for tokens in a closed loop, until the process is killed: ``python crowd.py PORT N``."""

import json
import selectors
import socket
import sys

BODY = json.dumps({"content": "The quick brown fox jumps over the lazy dog. " * 20}).encode()
HEAD = (
    "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
)


def main() -> None:
    """Prints "ready" when every client has had an answer."""
    port, n = int(sys.argv[1]), int(sys.argv[2])
    selector = selectors.DefaultSelector()
    for _ in range(n):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(HEAD.encode() + BODY)
        selector.register(client, selectors.EVENT_READ, bytearray())
    answered: set[int] = set()
    while True:
        for key, _ in selector.select():
            answer: bytearray = key.data
            answer += key.fileobj.recv(1 << 16)
            head, _, body = bytes(answer).partition(b"\r\n\r\n")
            if not body or len(body) < int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
                continue
            assert head.startswith(b"HTTP/1.1 200"), head
            answer.clear()
            key.fileobj.sendall(HEAD.encode() + BODY)
            answered.add(key.fd)
            if len(answered) == n:
                print("ready", flush=True)
                n = 0


if __name__ == "__main__":
    main()
