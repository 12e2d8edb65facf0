"""A Hugging Face Hub of models on this machine, for ``huggingface_hub``'s own client.

It lists and serves files, ranges of them too, and takes commits.
"""

import base64
import hashlib
import http.server
import json
import re
import threading
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """One model's files by branch, tag or commit."""

    files: dict[str, bytes]
    card: dict = field(default_factory=dict)
    gated: bool = False
    revisions: tuple[str, ...] = ("main",)

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name in sorted(self.files):
            digest.update(name.encode() + hashlib.sha1(self.files[name]).digest())
        return digest.hexdigest()


class ModelHub(http.server.ThreadingHTTPServer):
    """``address`` is its HF_ENDPOINT; ``repositories`` by ``org/name``.

    ``asked`` lists method and path of every request. ``cut``: names of files whose next answer breaks off in the
    middle. ``token``: what commits need.
    """

    daemon_threads = True

    def __init__(self, repositories: dict[str, Repository], token: str = "hf_right") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.token = token
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.cut: set[str] = set()
        self.large: dict[str, bytes] = {}
        """What was uploaded by its SHA-256, as large files are."""
        self.commits: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelHub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self._path()
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            if repository := self._repository(found[1], found[2] or "main"):
                names = [{"rfilename": name, "size": len(body)} for name, body in sorted(repository.files.items())]
                about = {"id": found[1], "sha": repository.commit, "siblings": names, "tags": [], "private": False}
                self._json(about | {"cardData": repository.card, "gated": "manual" if repository.gated else False})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            if repository := self._repository(found[1], found[2]):
                self._json([self._entry(name, body) for name, body in sorted(repository.files.items())])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if repository := self._repository(found[1], found[2]):
                self._file(repository, found[3])
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        path, body = self._path(), self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._json({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            wanted = json.loads(body)
            repo = f"{wanted['organization']}/{wanted['name']}"
            status = 409 if repo in self.server.repositories else 200
            self.server.repositories.setdefault(repo, Repository({}, {"private": wanted.get("private", False)}))
            self._json({"url": f"{self.server.address}/{repo}", "name": repo}, status)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            names = [each["path"] for each in json.loads(body)["files"]]
            large = (".safetensors", ".gguf")
            modes = [("lfs" if name.endswith(large) else "regular", name) for name in names]
            self._json({"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for mode, name in modes]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    "oid": each["oid"],
                    "size": each["size"],
                    "actions": {"upload": {"href": f"{self.server.address}/put/{each['oid']}", "header": {}}},
                }
                for each in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self._commit(self.server.repositories[found[1]], found[1], body)
        else:
            self._send(404, b"{}")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.large[self._path().rpartition("/")[2]] = body
        self._send(200, b"")

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        return path

    def _repository(self, repo: str, revision: str) -> Repository | None:
        """The repository, or None where the answer was that there is none."""
        repository = self.server.repositories.get(repo)
        if repository is None:
            self._send(401, b'{"error":"Invalid username or password."}', {"X-Error-Code": "RepoNotFound"})
        elif repository.gated and "/resolve/" in self.path:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif revision not in (*repository.revisions, repository.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    @staticmethod
    def _entry(name: str, body: bytes) -> dict:
        return {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}

    def _file(self, repository: Repository, name: str) -> None:
        body = repository.files.get(name)
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if body is None:
            self._send(404, b"", headers | {"X-Error-Code": "EntryNotFound"})
            return
        headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and self.command == "GET":
            self.server.ranges.append(f"{name} {self.headers['Range']}")
            first, last = int(wanted[1]), min(int(wanted[2] or len(body)), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            self._send(206, body[first : last + 1], headers)
            return
        cut = self.command == "GET" and name in self.server.cut
        self.server.cut.discard(name) if cut else None
        self._send(200, body, headers, cut=cut)

    def _commit(self, repository: Repository, repo: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.server.commits.append(value["summary"])
            elif line["key"] == "file":
                assert value["encoding"] == "base64"
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = self.server.large[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                repository.files[value["path"]] = content
        self._json({"commitUrl": f"{self.server.address}/{repo}/commit/{repository.commit}", "commitOid": "0" * 40})

    def _json(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

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
