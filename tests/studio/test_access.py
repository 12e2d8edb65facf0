"""Nobody comes in without the token, and no page of another site can use a browser that has it."""

import time

import pytest
from starlette.testclient import TestClient

from slm.data.errors import UserError
from slm.studio.access import token_of
from slm.studio.app import make_app
from slm.studio.config import StudioConfig
from tests.studio.conftest import URL


def test_a_stranger_sees_nothing(stranger):
    for path in ("/api/home", "/web/app.js", "/api/jobs/events", "/api/download?path=runs"):
        assert stranger.get(path).status_code == 401, path
    assert stranger.post("/api/train", json={}).status_code == 401
    assert stranger.get("/").headers["location"] == "/login"
    assert stranger.get("/login").status_code == 200


def test_the_token_opens_and_leaves_the_address(app, stranger):
    entered = stranger.get(f"/?token={app[1]}")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert stranger.get("/api/home").status_code == 200
    assert stranger.get("/?token=wrong").headers["location"] == "/login?wrong=1"
    assert 'id="wrong" role="alert"' in stranger.get("/login?wrong=1").text


def test_a_foreign_name_or_site_is_refused(client):
    assert client.get("/api/home", headers={"Host": "evil.example:8765"}).status_code == 403
    assert client.get("/api/home", headers={"Host": "127.0.0.1:1"}).status_code == 403
    assert client.get("/api/home", headers={"Host": "localhost:8765"}).status_code == 200
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = client.post("/api/trash/empty", json={}, headers=headers)
        assert (answer.status_code, answer.json()) == (403, {"error": "this request comes from another site"})
    assert client.post("/api/trash/empty", json={}, headers={"Origin": URL}).status_code == 200


def test_other_machines_need_the_password(tmp_path):
    with pytest.raises(UserError, match="lets other machines in"):
        StudioConfig(host="0.0.0.0")
    app, _ = make_app(StudioConfig(host="0.0.0.0", password="p&ss wörd"), tmp_path, 8765)
    browser = TestClient(app, base_url="http://box.example:8765", follow_redirects=False)
    began = time.monotonic()
    wrong = browser.post("/login", data={"password": "guess"})
    assert wrong.headers["location"] == "/login?wrong=1"
    assert time.monotonic() - began > 0.9  # guessing is slow
    assert browser.get("/api/home").status_code == 401
    assert browser.post("/login", data={"password": "p&ss wörd"}).headers["location"] == "/"
    assert browser.get("/api/home").json()["may_add"] is False
    told = browser.post("/api/folders/add", json={"path": str(tmp_path)}).json()["error"]
    assert "folders are given at the start" in told


def test_the_token_is_kept_and_nobody_else_reads_it(tmp_path):
    made = token_of(tmp_path / "state")
    path = tmp_path / "state" / "token"
    assert token_of(tmp_path / "state") == made
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o644)
    assert token_of(tmp_path / "state") != made
