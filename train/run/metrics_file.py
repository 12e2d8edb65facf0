"""``metrics.jsonl``: one JSON object per line, always written, whatever else logs."""

import json
from pathlib import Path
from typing import Any

from slm.data.storage import atomic_write_text
from slm.report import finite


class MetricsFile:
    """Appends records to a run's ``metrics.jsonl``.

    Training records hold ``step tokens loss lr grad_norm tokens_per_s data_wait rss_gb elapsed_s``; validation
    records ``step tokens val_loss val_bits_per_byte``. Losses are nats per token, memory GiB, time seconds.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        self.path = path
        if path.exists():
            # What a broken-off run logged after its last checkpoint is about to be computed again.
            kept = [record for record in read(path) if record["step"] <= resume_step]
            atomic_write_text(path, "".join(_line(record) for record in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(_line(record))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a ``metrics.jsonl``; a last line that a kill cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def _line(record: dict[str, Any]) -> str:
    return json.dumps(finite(record), ensure_ascii=False) + "\n"
