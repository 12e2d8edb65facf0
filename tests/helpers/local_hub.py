"""What the Hubs of the tests have in common: a server on this machine, and answers with Hugging Face's headers."""

import hashlib
import http.server
import json
import re
import threading


class LocalHub(http.server.ThreadingHTTPServer):
    """Serves on a free port from the start until ``stop``; ``address`` is its HF_ENDPOINT."""

    daemon_threads = True

    def __init__(self, answers: "type[Answers]") -> None:
        super().__init__(("127.0.0.1", 0), answers)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class Answers(http.server.BaseHTTPRequestHandler):
    """``send``, ``send_json`` and ``send_file``; with ``cut`` a body breaks off in the middle."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send_file(self, content: bytes, commit: str, *, cut: bool = False) -> None:
        """A file, or the range of it that is asked for."""
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.send(206, content[first : last + 1], headers, cut=cut)
        else:
            self.send(200, content, headers, cut=cut)

    def send_json(self, value: object, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.wfile.flush()
            self.close_connection = True
