"""What a run's files say of it, read for the cards of the first page: little, and only again where a file changed."""

import functools
import json
import re
from pathlib import Path
from typing import Any

from slm import runs
from slm.data.errors import UserError

_BITS = "val_bits_per_byte"
CURVE_POINTS = 40
TAIL_BYTES = 1 << 16
"""Bytes read from the end of metrics.jsonl for its last record."""


def summary(root: Path) -> dict[str, Any]:
    """Where the run came from, its size and loss, as the last change of its files has it."""
    return _summary(root, _stamp(root / runs.CONFIG), _stamp(root / "metrics.jsonl"), _stamp(root / "journal.jsonl"))


@functools.lru_cache(maxsize=512)
def _summary(root: Path, *_stamps: tuple[int, int]) -> dict[str, Any]:
    try:
        config = runs.saved_config(root)
    except UserError:
        config = {}  # damaged: opening the run says so
    records = _records(root / "metrics.jsonl")
    journal = _records(root / "journal.jsonl")
    validations = [each for each in records if _BITS in each]
    bits = [each[_BITS] for each in validations if isinstance(each[_BITS], float)]
    losses = [each["loss"] for each in records if isinstance(each.get("loss"), float)]
    start: dict[str, Any] = next((each for each in reversed(journal) if each.get("event") == "start"), {})
    end = journal[-1] if journal and journal[-1].get("event") == "end" else {}
    lora = config.get("lora") or {}
    data = config.get("data") or {}
    kind = "adapter" if lora.get("rank") else "tuned" if config.get("init_from") else "run"
    return {
        "kind": kind,
        "base": config.get("init_from"),
        "files": [*(data.get("files") or []), *([data["path"]] if data.get("path") else [])] or [data.get("kind")],
        "n_params": start.get("n_params") or (config.get("facts") or {}).get("n_params"),
        "bits_per_byte": min(bits, default=None),
        "asked": [each for each in records if each.get("event") == "asked"],
        "step": records[-1].get("step", 0) if records else 0,
        "ended": end.get("status"),
        "reason": end.get("reason"),
        "curve": _thinned(losses),
    }


def progress(root: Path, since: float = 0.0) -> dict[str, Any]:
    """How far a running run is: the share from 0 to 1, seconds left, loss. Empty before its first record.

    The teacher of a taught run is its first part (``is_teacher``): as long as the run itself has not begun,
    and the teacher was written to after ``since`` (seconds since 1970), so that it is no other run of that name.
    """
    teacher = runs.teacher_folder(root)
    if not (root / "metrics.jsonl").exists() and _stamp(teacher / "metrics.jsonl")[0] > since * 1e9:
        return {**progress(teacher), "is_teacher": True}
    record = _last_record(root / "metrics.jsonl")
    if not record:
        return {}
    train = _train_options(root, _stamp(root / runs.CONFIG))
    elapsed, step = float(record.get("elapsed_s") or 0), int(record.get("step") or 0)
    minutes = train.get("max_minutes")
    limit = record.get("limit_s") or (60 * minutes if minutes else None)
    by_time = elapsed / limit if limit else 0.0
    by_steps = step / train["max_steps"] if train.get("max_steps") else 0.0
    share = min(1.0, max(by_time, by_steps))
    left = elapsed * (1 - share) / share if share else None
    return {"share": share, "left_s": left, "step": step, "loss": record.get("loss")}


@functools.lru_cache(maxsize=64)
def _train_options(root: Path, _stamp: tuple[int, int]) -> dict[str, Any]:
    try:
        found = runs.saved_config(root).get("train")
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


def samples(root: Path) -> list[dict[str, Any]]:
    """What the run wrote at its validations, each with the bits per byte of that step."""
    bits = {each["step"]: each["val_bits_per_byte"] for each in _records(root / "metrics.jsonl") if _BITS in each}
    try:
        text = (root / "samples.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    _, *parts = re.split(r"^## step (\d+)$", text, flags=re.MULTILINE)
    found = zip(map(int, parts[::2]), (part.strip() for part in parts[1::2]), strict=True)
    return [{"step": step, "text": part, "bits_per_byte": bits[step]} for step, part in found if bits.get(step)]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return _parsed(text)


def _last_record(path: Path) -> dict[str, Any]:
    """The last training record."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return {}
    return next((each for each in reversed(_parsed(text)) if "lr" in each), {})


def _parsed(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # still being written, or cut off
        if isinstance(record, dict):
            found.append(record)
    return found


def _thinned(values: list[float]) -> list[float]:
    """At most ``CURVE_POINTS`` means of neighbouring values."""
    stride = max(1, -(-len(values) // CURVE_POINTS))
    parts = [values[at : at + stride] for at in range(0, len(values), stride)]
    return [round(sum(part) / len(part), 4) for part in parts]
