"""Uploads stay in their folder, under harmless names, within their limit and the disk's room."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from slm.data.errors import UserError
from slm.studio import uploads
from slm.studio.places import Places
from tests.helpers.studio import StudioProcess


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def save(places: Places, id: str, name: str, *parts: bytes, announced: int | None = None, limit: int = 100) -> int:
    return asyncio.run(uploads.save(places, id, name, announced, chunks(*parts), limit))


def names(places: Places, id: str) -> list[str]:
    folder = uploads.folder(places, id)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_names_lead_nowhere_and_mean_nothing(tmp_path):
    places = Places(tmp_path)
    id = uploads.new(places)
    given = (
        "../../etc/passwd",
        "/a/../b.txt",
        ".hidden/.x.md",
        "a[1]*{x}'${y}.txt",
        "größe 1.pdf",
        "c\\d.txt",
        "x" * 300 + ".md",
    )
    for name in given:
        assert save(places, id, name, b"1") == 1
    found = names(places, id)
    assert found[:6] == ["a/b.txt", "a_1___x____y_.txt", "c/d.txt", "etc/passwd", "größe 1.pdf", "hidden/x.md"]
    assert len(found[6]) == 121
    with pytest.raises(UserError, match="is no file name"):
        save(places, id, "../..", b"1")
    with pytest.raises(UserError, match="no such upload"):
        save(places, "../x", "a.txt", b"1")


def test_what_is_too_large_or_cut_off_leaves_nothing(tmp_path, monkeypatch):
    places = Places(tmp_path)
    id = uploads.new(places)
    save(places, id, "a.txt", b"x" * 60)
    for announced in (50, None):  # said before, or not
        with pytest.raises(UserError, match="give the path of larger files instead"):
            save(places, id, "b.txt", b"x" * 30, b"x" * 20, announced=announced)
    with pytest.raises(UserError, match="arrived incomplete"):
        save(places, id, "b.txt", b"x", announced=2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=uploads.RESERVE + 5))
    with pytest.raises(UserError, match="do not fit"):
        save(places, id, "b.txt", b"x", announced=6)
    assert names(places, id) == ["a.txt"]


def test_old_uploads_that_nothing_was_made_of_are_removed(tmp_path):
    places = Places(tmp_path)
    used, unused, fresh = uploads.new(places), uploads.new(places), uploads.new(places)
    for id in (used, unused):
        os.utime(uploads.folder(places, id), (1, 1))
    uploads.remove_unused(places, f"data.files=['runs/.studio/uploads/{used}']")
    assert {path.name for path in places.uploads.iterdir()} == {used, fresh}


def test_a_large_file_goes_to_the_disk_and_not_into_memory(tmp_path):
    """docs/results/studio.md has the figures of 2 GB."""
    size, chunk = 200_000_000, b"The cat sat on the mat.\n" * 40_000

    def content() -> Iterator[bytes]:
        for at in range(0, size, len(chunk)):
            yield chunk[: size - at]

    studio = StudioProcess(tmp_path)
    try:
        base, query = studio.url.split("/?")
        with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as client:
            client.get(f"/?{query}")
            id = client.post("/api/uploads", json={}).json()["id"]
            before = most_resident(studio.process.pid)
            put = client.put(
                f"/api/uploads/{id}?name=big.txt", content=content(), headers={"Content-Length": str(size)}
            )
            assert put.json() == {"bytes": size}
            assert most_resident(studio.process.pid) - before < 20e6
    finally:
        studio.close()


def most_resident(pid: int) -> int:
    """The most bytes that a process has had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return 1000 * int(found[1])
