"""A Hugging Face Hub of one data set on this machine, which fails as often as it is told to.

It speaks what ``datasets`` and ``huggingface_hub`` ask a Hub for to stream files: the commit, the list of files, and
ranges of their bytes.
"""

import hashlib
import http.server
import json
import random
import re
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
FAILURES = ("busy", "closed", "cut")


class FlakyHub(http.server.ThreadingHTTPServer):
    """Serves the files of ``folder`` as the data set ``owner/stories``; ``address`` is its HF_ENDPOINT.

    With the probability ``failing`` (a tenth of it for answers that are not text) an outage begins: up to 12 answers
    one after the other fail, each by a 503, a connection closed without an answer, or a body that breaks off in the
    middle. That is longer than the libraries' own retries last. Only ``/`` is always there: a Hub that cannot be
    reached when a run starts is another matter.
    """

    daemon_threads = True

    def __init__(self, folder: Path, *, failing: float, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.failing = failing
        self.sha = SHA
        self.failed = dict.fromkeys(FAILURES, 0)
        self.random = random.Random(seed)
        self.outage = 0
        self.lock = threading.Lock()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away

    def draw(self, path: str) -> str | None:
        """How the answer at hand fails, if it does."""
        if path == "/":
            return None
        with self.lock:
            likely = self.failing if path.endswith(".parquet") else self.failing / 10
            if not self.outage and self.random.random() < likely:
                self.outage = self.random.randint(1, 12)
            if not self.outage:
                return None
            self.outage -= 1
            name = self.random.choice(FAILURES)
            self.failed[name] += 1
            return name

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyHub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        failure = self.server.draw(path)
        if failure == "closed":
            self.close_connection = True
            return
        if failure == "busy":
            self._send(503, b"busy")
            return
        if re.fullmatch(r"/api/datasets/owner/stories(/revision/\w+)?", path):
            names = [{"rfilename": name} for name in self._names()]
            about = {"id": "owner/stories", "sha": self.server.sha, "siblings": names, "tags": [], "private": False}
            self._json(about)
        elif re.match(r"/api/datasets/owner/stories/(tree|paths-info)/", path):
            self._json([self._entry(name) for name in self._wanted()])
        elif match := re.fullmatch(r"/datasets/owner/stories/resolve/\w+/(.+)", path):
            self._file(match.group(1), cut=failure == "cut")
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.server.folder.iterdir())

    def _wanted(self) -> list[str]:
        if self.command != "POST":
            return self._names()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        paths = json.loads(body).get("paths", []) if body.startswith("{") else re.findall(r"paths=([^&]*)", body)
        return [name for name in self._names() if name in map(unquote, paths)]

    def _entry(self, name: str) -> dict[str, object]:
        size = (self.server.folder / name).stat().st_size
        return {"type": "file", "path": name, "size": size, "oid": hashlib.sha1(name.encode()).hexdigest()}

    def _file(self, name: str, *, cut: bool) -> None:
        if name not in self._names():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.server.sha})
            return
        content = (self.server.folder / name).read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.server.sha}
        headers["Accept-Ranges"] = "bytes"
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            self._send(200, content, headers, cut=cut)
            return
        first, last = int(wanted.group(1)), min(int(wanted.group(2) or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], headers, cut=cut)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
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
