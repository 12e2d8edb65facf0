"""Files that a person drops on the page: streamed to disk, each upload in a separate folder."""

import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

from slm.data.errors import UserError
from slm.report import size as size_text
from slm.studio.places import Places

RESERVE = 1 << 30
"""Bytes that stay free on the disk: checkpoints need them."""
CHECKED = 64 << 20
"""Bytes after which the free space is looked at again."""
KEPT_S = 86400.0
"""How long an upload stays that nothing was made of."""
LONGEST = 120
"""Characters of a file's or folder's name."""
_OTHER = re.compile(r"[^\w .()+-]")


def new(places: Places) -> str:
    """A folder for an upload; its id."""
    id = f"{time.strftime('%Y%m%d%H%M%S')}{secrets.token_hex(3)}"
    folder(places, id).mkdir(parents=True)
    return id


def folder(places: Places, id: str) -> Path:
    """The folder of an upload. UserError for what cannot be one."""
    if not id.isalnum():
        raise UserError("there is no such upload: drop the files again")
    return places.uploads / id


def safe_name(name: str) -> Path:
    """A relative path that can lead nowhere else, hides nothing and means nothing to the commands' grammar.

    Letters of all scripts, digits, blanks and ``_ . ( ) + -`` stay.
    """
    parts = []
    for part in name.replace("\\", "/").split("/"):
        stem, dot, ending = _OTHER.sub("_", part).strip(" .").rpartition(".")
        cut = f"{stem[: LONGEST - len(ending)]}{dot}{ending[:LONGEST]}"
        if cut:
            parts.append(cut)
    if not parts:
        raise UserError(f"{name[:80]!r} is no file name")
    return Path(*parts[-8:])


async def save(
    places: Places, id: str, name: str, announced: int | None, chunks: AsyncIterator[bytes], limit: int
) -> int:
    """Write one file of an upload as it arrives; its bytes.

    UserError, and nothing of the file is left, where the upload would be larger than ``limit`` bytes or the disk has no
    room.
    """
    root = folder(places, id)
    if not root.is_dir():
        raise UserError("there is no such upload: drop the files again")
    path = root / safe_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{secrets.token_hex(4)}.part")
    before = sum(each.stat().st_size for each in root.rglob("*") if each.is_file())
    _check(places, name, before, announced or 0, limit)
    written = checked = 0
    try:
        with partial.open("wb") as file:
            async for chunk in chunks:
                written += len(chunk)
                if written - checked >= CHECKED or before + written > limit:
                    _check(places, name, before + written, 0, limit)
                    checked = written
                file.write(chunk)
        if announced is not None and written != announced:
            raise UserError(f"{name} arrived incomplete: drop it again")
        partial.rename(path)
    except OSError as error:
        raise UserError(f"{name} cannot be written ({error.strerror or error}): make room, or give its path") from None
    finally:
        partial.unlink(missing_ok=True)
    return written


def _check(places: Places, name: str, so_far: int, more: int, limit: int) -> None:
    if so_far + more > limit:
        raise UserError(
            f"{name}: an upload may have {size_text(limit)} (upload_gb=); give the path of larger files instead"
        )
    free = shutil.disk_usage(places.uploads).free
    if free < more + RESERVE:
        raise UserError(
            f"{name}: {size_text(more)} do not fit, the disk has {size_text(free)} free and {size_text(RESERVE)} stay "
            "for checkpoints: make room, or give the path of files that are on another disk"
        )


def remove_unused(places: Places, used: str) -> None:
    """Remove the uploads of before yesterday that no run and no job names; ``used``: their options, as one text."""
    for path in places.uploads.glob("*"):
        if time.time() - path.stat().st_mtime > KEPT_S and path.name not in used:
            shutil.rmtree(path, ignore_errors=True)
