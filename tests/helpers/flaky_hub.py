"""A Hugging Face Hub of one data set on this machine, which fails a given number of times.

It speaks what ``datasets`` and ``huggingface_hub`` ask a Hub for to stream files: the commit, the list of files, and
ranges of their bytes.
"""

import hashlib
import json
import random
import re
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.helpers.local_hub import Answers, LocalHub

SHA = "0123456789abcdef0123456789abcdef01234567"
FAILURES = ("busy", "closed", "cut")


class FlakyHub(LocalHub):
    """Serves the files of ``folder`` and its folders as the data set ``owner/stories``; ``address`` is its HF_ENDPOINT.

    With the probability ``failing`` (a tenth of it for answers that are not text) an outage begins: up to 12 answers
    one after the other fail, each by a 503, a connection closed without an answer, or a body that breaks off in the
    middle, longer than the libraries' own retries last. Only ``/`` is always there: a Hub that cannot be
    reached when a run starts is another matter.
    """

    def __init__(self, folder: Path, *, failing: float, seed: int = 0) -> None:
        super().__init__(_Handler)
        self.folder = folder
        self.failing = failing
        self.sha = SHA
        self.failed = dict.fromkeys(FAILURES, 0)
        self.random = random.Random(seed)
        self.outage = 0
        self.lock = threading.Lock()

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


class _Handler(Answers):
    server: FlakyHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        failure = self.server.draw(path)
        if failure == "closed":
            self.close_connection = True
            return
        if failure == "busy":
            self.send(503, b"busy")
            return
        if re.fullmatch(r"/api/datasets/owner/stories(/revision/\w+)?", path):
            names = [{"rfilename": name} for name in self._names()]
            about = {"id": "owner/stories", "sha": self.server.sha, "siblings": names, "tags": [], "private": False}
            self.send_json(about)
        elif match := re.match(r"/api/datasets/owner/stories/(?:tree|paths-info)/\w+/?(.*)", path):
            self.send_json([self._entry(name) for name in self._wanted(match.group(1))])
        elif match := re.fullmatch(r"/datasets/owner/stories/resolve/\w+/(.+)", path):
            self._file(match.group(1), cut=failure == "cut")
        else:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _names(self) -> list[str]:
        folder = self.server.folder
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def _wanted(self, inside: str) -> list[str]:
        if self.command != "POST":
            found = (self.server.folder / inside).rglob("*") if "recursive=true" in self.path.lower() else ()
            found = found or (self.server.folder / inside).iterdir()
            return sorted(path.relative_to(self.server.folder).as_posix() for path in found)
        body = self.body().decode()
        paths = json.loads(body).get("paths", []) if body.startswith("{") else re.findall(r"paths=([^&]*)", body)
        return [name for name in map(unquote, paths) if (self.server.folder / name).exists()]

    def _entry(self, name: str) -> dict[str, object]:
        if (self.server.folder / name).is_dir():
            return {"type": "directory", "path": name, "size": 0, "oid": hashlib.sha1(name.encode()).hexdigest()}
        size = (self.server.folder / name).stat().st_size
        return {"type": "file", "path": name, "size": size, "oid": hashlib.sha1(name.encode()).hexdigest()}

    def _file(self, name: str, *, cut: bool) -> None:
        if name not in self._names():
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.server.sha})
            return
        self.send_file((self.server.folder / name).read_bytes(), self.server.sha, cut=cut)
