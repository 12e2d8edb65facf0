"""A Hugging Face Hub of models on this machine, for ``huggingface_hub``'s own client.

It lists and serves files, ranges of them too, and takes commits.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tests.helpers.local_hub import Answers, LocalHub


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


class ModelHub(LocalHub):
    """``address`` is its HF_ENDPOINT; ``repositories`` by ``org/name``.

    ``asked`` lists method and path of every request. ``cut``: names of files whose next answer breaks off in the
    middle. ``token``: what commits need.
    """

    def __init__(self, repositories: dict[str, Repository], token: str = "hf_right") -> None:
        super().__init__(_Handler)
        self.repositories = repositories
        self.token = token
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.cut: set[str] = set()
        self.large: dict[str, bytes] = {}
        """What was uploaded by its SHA-256, as large files are."""
        self.commits: list[str] = []


class _Handler(Answers):
    server: ModelHub

    def do_GET(self) -> None:
        path = self._path()
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            if repository := self._repository(found[1], found[2] or "main"):
                names = [{"rfilename": name, "size": len(body)} for name, body in sorted(repository.files.items())]
                about = {"id": found[1], "sha": repository.commit, "siblings": names, "tags": [], "private": False}
                self.send_json(about | {"cardData": repository.card, "gated": "manual" if repository.gated else False})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            if repository := self._repository(found[1], found[2]):
                self.send_json([self._entry(name, body) for name, body in sorted(repository.files.items())])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if repository := self._repository(found[1], found[2]):
                self._file(repository, found[3])
        else:
            self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        path, body = self._path(), self.body()
        if path == "/api/validate-yaml":
            self.send_json({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.send_json({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            wanted = json.loads(body)
            repo = f"{wanted['organization']}/{wanted['name']}"
            status = 409 if repo in self.server.repositories else 200
            self.server.repositories.setdefault(repo, Repository({}, {"private": wanted.get("private", False)}))
            self.send_json({"url": f"{self.server.address}/{repo}", "name": repo}, status)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            names = [each["path"] for each in json.loads(body)["files"]]
            large = (".safetensors", ".gguf")
            modes = [("lfs" if name.endswith(large) else "regular", name) for name in names]
            self.send_json(
                {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for mode, name in modes]}
            )
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    "oid": each["oid"],
                    "size": each["size"],
                    "actions": {"upload": {"href": f"{self.server.address}/put/{each['oid']}", "header": {}}},
                }
                for each in json.loads(body)["objects"]
            ]
            self.send_json({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self._commit(self.server.repositories[found[1]], found[1], body)
        else:
            self.send(404, b"{}")

    def do_PUT(self) -> None:
        self.server.large[self._path().rpartition("/")[2]] = self.body()
        self.send(200, b"")

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        return path

    def _repository(self, repo: str, revision: str) -> Repository | None:
        """The repository, or None where the answer was that there is none."""
        repository = self.server.repositories.get(repo)
        if repository is None:
            self.send(401, b'{"error":"Invalid username or password."}', {"X-Error-Code": "RepoNotFound"})
        elif repository.gated and "/resolve/" in self.path:
            self.send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif revision not in (*repository.revisions, repository.commit):
            self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    @staticmethod
    def _entry(name: str, body: bytes) -> dict:
        return {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}

    def _file(self, repository: Repository, name: str) -> None:
        body = repository.files.get(name)
        if body is None:
            self.send(404, b"", {"X-Repo-Commit": repository.commit, "X-Error-Code": "EntryNotFound"})
            return
        if "Range" in self.headers and self.command == "GET":
            self.server.ranges.append(f"{name} {self.headers['Range']}")
        cut = self.command == "GET" and "Range" not in self.headers and name in self.server.cut
        self.server.cut.discard(name) if cut else None
        self.send_file(body, repository.commit, cut=cut)

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
        self.send_json({"commitUrl": f"{self.server.address}/{repo}/commit/{repository.commit}", "commitOid": "0" * 40})
