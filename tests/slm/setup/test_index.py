"""Package indexes, asked for real: a server on this machine, a port where nobody listens, a folder."""

import http.server
import threading

import pytest

from slm.setup import index


@pytest.fixture
def server():
    """An index that knows ``/simple/pip/`` and answers anything below ``/<status>/`` with that status."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append((self.path, self.headers.get("Authorization")))
            word = self.path.split("/")[1]
            self.send_response(int(word) if word.isdigit() else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}", asked
        found.shutdown()


def test_what_answers_can_be_reached(server, monkeypatch):
    monkeypatch.setattr(index.time, "sleep", lambda _: None)
    url, asked = server
    assert index.unreachable(f"{url}/simple/pip/") is None
    assert index.unreachable(f"{url}/405/") is None
    assert index.unreachable(f"{url}/401/") is None  # pip may have a password for it
    assert index.unreachable(f"{url}/404/") == "HTTP 404 Not Found"
    assert len(asked) == 4
    assert index.unreachable(f"{url}/503/") == "HTTP 503 Service Unavailable"
    assert len(asked) == 6  # an ailing server is asked again, once


def test_a_password_is_sent_and_not_shown(server):
    url, asked = server
    named = url.replace("http://", "http://me:secret@")
    assert index.unreachable(f"{named}/simple/pip/") is None
    assert asked[-1][1] == "Basic bWU6c2VjcmV0"
    assert index.without_password(named) == url


def test_what_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setattr(index.time, "sleep", lambda _: None)
    assert index.unreachable("http://127.0.0.1:9/simple/") == "Connection refused"
    assert index.unreachable(f"file://{tmp_path}") is None
    assert "does not exist" in index.unreachable(f"{tmp_path}/none")


@pytest.fixture
def settings(monkeypatch):
    for name in ("INDEX_URL", "FIND_LINKS", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
        monkeypatch.delenv(f"UV_{name}", raising=False)
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    return monkeypatch


def test_the_index_is_the_one_that_is_configured(settings, tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = http://127.0.0.1:9/of-a-file\n")
    settings.setenv("PIP_CONFIG_FILE", str(file))
    settings.setenv("HOME", str(tmp_path))
    settings.setattr(index.time, "sleep", lambda _: None)
    (line,) = index.unreachable_index(uv=False)
    assert "http://127.0.0.1:9/of-a-file cannot be reached" in line
    assert "PIP_INDEX_URL=URL" in line
    settings.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/of-the-environment")
    (line,) = index.unreachable_index(uv=False)
    assert "of-the-environment" in line
    settings.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/of-uv")
    (line,) = index.unreachable_index(uv=True)
    assert "of-uv" in line
    assert "UV_DEFAULT_INDEX=URL" in line
    settings.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert list(index.unreachable_index(uv=False)) == []


def test_pips_files_are_read_where_there_is_no_pip(settings, tmp_path):
    """Debian's own Python has none; that of the environment, which is made later, reads them."""
    folder = tmp_path / ".config/pip"
    folder.mkdir(parents=True)
    (folder / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/of-a-file\n")
    settings.setenv("HOME", str(tmp_path))
    settings.delenv("XDG_CONFIG_HOME", raising=False)
    without_pip = tmp_path / "python"
    without_pip.write_text("#!/bin/sh\necho No module named pip >&2\nexit 1\n")
    without_pip.chmod(0o755)
    settings.setattr(index.sys, "executable", str(without_pip))
    assert index.configured(uv=False)["index-url"] == "http://127.0.0.1:9/of-a-file"


@pytest.mark.parametrize("url", ["https://host:abc/simple", "https://a host/simple", "http://[::1/simple"])
def test_an_address_that_is_none_is_told(url, monkeypatch):
    monkeypatch.setattr(index.time, "sleep", lambda _: None)
    assert index.unreachable(url)
