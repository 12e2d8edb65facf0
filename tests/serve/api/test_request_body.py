"""Bodies over the limit. Numbers are those of the reliability list (docs/results/serving-reliability.md)."""

import httpx

from tests.helpers.sockets import PATIENCE_S, connection, everything, is_well

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


def test_a_body_over_the_limit_is_told_and_not_torn_off(server):
    """List, 14: 413, also for a client that sends all before it reads; one that asks first sends nothing."""
    url = server.url + "/v1/completions"
    for body in (b" " * (12 << 20), (b" " * (1 << 20) for _ in range(12))):
        answer = httpx.post(url, content=body, timeout=PATIENCE_S)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
    with connection(server) as raw:
        raw.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert everything(raw).startswith(b"HTTP/1.1 413 ")
    is_well(server)
