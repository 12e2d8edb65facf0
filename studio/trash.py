"""What was deleted: renamed into a folder next to the runs, until the trash is emptied."""

import json
import os
import secrets
import shutil
import time
from typing import Any

from slm.data.errors import UserError
from slm.studio.models import size
from slm.studio.places import Places

INFO = "deleted.json"


def delete(places: Places, text: str) -> None:
    """Move a run or a model of the workspace into the trash. UserError for anything else."""
    path = places.path(text)
    inside = (places.runs.resolve(), places.models.resolve())
    if not any(path.is_relative_to(each) and path != each for each in inside):
        raise UserError(
            f"{text} belongs to another program or folder of yours: studio deletes in runs/ and models/ only"
        )
    folder = places.trash / f"{time.strftime('%Y%m%d%H%M%S')}{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    (folder / INFO).write_text(json.dumps({"from": places.shown(path), "name": path.name, "at": time.time()}))
    try:
        os.rename(path, folder / "it")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{text} cannot be moved to the trash ({error.strerror}): is it on another disk, or read-only?"
        ) from None


def listed(places: Places) -> list[dict[str, Any]]:
    """What the trash holds, the newest first."""
    found = []
    for path in sorted(places.trash.glob(f"*/{INFO}"), reverse=True):
        try:
            info = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        found.append(info | {"id": path.parent.name, "bytes": size(path.parent)})
    return found


def put_back(places: Places, id: str) -> None:
    """Move something back to where it was. UserError where something else is there now."""
    folder = places.trash / id
    if not id.isalnum() or not (folder / INFO).is_file():
        raise UserError("the trash does not hold this any more")
    info = json.loads((folder / INFO).read_text())
    target = places.root / info["from"]
    if target.exists():
        raise UserError(f"{info['from']} exists again: delete or rename that one first")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(folder / "it", target)
    shutil.rmtree(folder)


def empty(places: Places) -> None:
    """Remove for good what the trash holds."""
    shutil.rmtree(places.trash, ignore_errors=True)
