"""A file that is written holds its old content or all of the new."""

import json
import math
import os

import pytest

from slm.files import atomic_write_bytes, atomic_write_json, atomic_write_text


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    atomic_write_text(path, "new ü")
    assert path.read_bytes() == "new ü".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_strict(tmp_path):
    path = tmp_path / "a.json"
    atomic_write_json(path, {"loss": math.nan, "steps": [1, 2]})
    assert json.loads(path.read_text()) == {"loss": None, "steps": [1, 2]}
