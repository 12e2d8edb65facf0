"""TLS, Unix sockets, named keys, no pages, a chat template from a file: what the options say about operation."""

import json
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from slm.data.errors import UserError
from slm.serve.listening import check_certificate, listen_on_path
from tests.helpers import programs

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", *kind, *names, "-days", "2", "-keyout", key, "-out", cert]
    subprocess.run(made, check=True, capture_output=True)
    return cert, key


def test_tls_names_prefix_template_and_no_pages(tmp_path, chat_path, start_server, certificate):
    cert, key = certificate
    (tmp_path / "keys").write_text("ann s3cret\nbob other\n")
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}{{ enable_thinking }}")
    words = (
        *(f"serve.cert={cert}", f"serve.key_pem={key}", f"serve.api_key_file={tmp_path / 'keys'}"),
        *("serve.root_path=/llm", "serve.ui=false", f"serve.chat_template={tmp_path / 'mine.jinja'}"),
        "serve.thinking=false",
        *("serve.access_log=json", f"serve.access_log_file={tmp_path / 'access'}"),
    )
    with start_server(tmp_path / "log", chat_path, *words) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.url.endswith("/llm")
        trusted = ssl.create_default_context(cafile=cert)
        with httpx.Client(verify=trusted, headers={"Authorization": "Bearer other"}) as client:
            made = client.post(server.url + "/apply-template", json={"messages": HELLO})
            assert made.json() == {"prompt": "[hello]False"}
            asked = {"messages": HELLO, "enable_thinking": True}
            assert client.post(server.url + "/apply-template", json=asked).json() == {"prompt": "[hello]True"}
            bare = server.url.removesuffix("/llm")
            assert client.get(bare + "/v1/models").status_code == 200
            for path in ("/", "/docs", "/web/app.js"):
                assert client.get(server.url + path).status_code == 404
                assert client.get(server.url + path, headers={"Authorization": "Bearer x"}).status_code == 401
        with pytest.raises(httpx.TransportError):
            httpx.get(bare.replace("https:", "http:") + "/health")
        lines = [json.loads(line) for line in (tmp_path / "access").read_text().splitlines()]
        assert (lines[0]["key"], lines[0]["key_name"], lines[0]["route"]) == (2, "bob", "/apply-template")
        assert {line["key_name"] for line in lines[1:]} == {"bob", None}


def test_a_unix_socket(chat_path, start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")  # the path of a socket has at most 107 bytes
    path = folder / "slm.sock"
    with start_server(folder / "log", chat_path, f"serve.unix_socket={path}") as server:
        assert server.url == "http://localhost"
        assert path.stat().st_mode & 0o777 == 0o600
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url=server.url) as client:
            answer = client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2})
            assert answer.json()["usage"]["completion_tokens"] >= 1
        with pytest.raises(UserError, match=r"a server listens on serve\.unix_socket=.* already"):
            listen_on_path(path)
    assert not path.exists()


def test_sockets_that_are_left_behind_and_other_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    path = folder / "old"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listen_on_path(path):
        assert path.is_socket()
    other = folder / "text"
    other.write_text("mine")
    with pytest.raises(UserError, match="is a file already"):
        listen_on_path(other)
    assert other.read_text() == "mine"
    with pytest.raises(UserError, match="cannot be made"):
        listen_on_path(folder / "missing" / "x")


def test_certificates_that_do_not_work(certificate, tmp_path):
    cert, key = certificate
    check_certificate(cert, key)
    with pytest.raises(UserError, match=r"serve\.key_pem=.* is no file"):
        check_certificate(cert, str(tmp_path / "no"))
    with pytest.raises(UserError, match="do not work together"):
        check_certificate(key, cert)
    assert Path(cert).is_file()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("serve.cert=x.pem", "serve.cert is given without serve.key_pem"),
        ("serve.root_path=llm/", "serve.root_path=llm/ must begin with /"),
        ("serve.chat_template=missing.jinja", "serve.chat_template=missing.jinja cannot be read"),
        ("serve.api_key_file=missing", "serve.api_key_file=missing cannot be read"),
    ],
)
def test_wrong_options_are_one_line(chat_path, word, said, tmp_path):
    errors = programs.run("slm.serve", [f"model={chat_path}", "port=0", word], tmp_path, status=2)
    assert said in errors
    assert len(errors.strip().splitlines()) == 1
