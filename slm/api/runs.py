"""Runs as Python sees them: where they are, what they have measured, a picture of it.

Tested in tests/slm/api/test_api.py.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm import runs as directories


@dataclass(frozen=True)
class Run:
    """A run directory. ``slm.load``, ``slm.tune``, ``slm.export`` and ``slm.serve`` take it as a model."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def config(self) -> dict[str, Any]:
        """The resolved options."""
        return directories.saved_config(self.path)

    @property
    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first: each is a Hugging Face model directory."""
        return directories.list_checkpoints(self.path)

    @property
    def ggufs(self) -> list[Path]:
        """Exported models, by name."""
        return directories.model_files(self.path / "gguf")

    @property
    def metrics(self) -> Any:
        """``metrics.jsonl``: a pandas frame where pandas is installed, else a list of dictionaries.

        A row for each recorded step (``step``, ``loss`` in nats per token, ``lr``, ``tok_s`` ...); the rows of a
        validation have ``val_loss``.
        """
        rows = self._rows()
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def _rows(self) -> list[dict[str, Any]]:
        try:
            text = (self.path / "metrics.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def plot(self) -> Any:
        """The losses over the steps: a Matplotlib figure, which a notebook shows."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        rows = self._rows()
        for key, label, style in (("loss", "training", "-"), ("val_loss", "validation", "o-")):
            points = [(row["step"], row[key]) for row in rows if row.get(key) is not None and "step" in row]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=label, markersize=3)
        axes.set(title=self.name, xlabel="step", ylabel="loss, nats per token")
        if axes.lines:
            axes.legend()
        return figure


def run_of(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, or by its name alone. UserError where there is none."""
    return Run(directories.resolve(path).root)


def runs(folder: str | os.PathLike[str] = directories.RUNS) -> list[Run]:
    """The runs of a folder, the newest first."""
    root = Path(folder)
    if not root.is_dir():
        return []
    found = [each for each in root.iterdir() if (each / directories.CONFIG).is_file() and not each.is_symlink()]
    return [Run(each) for each in sorted(found, key=lambda each: -(each / directories.CONFIG).stat().st_mtime)]
