"""The files of a run, written by hand, and its report as a browser would read it."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from slm.train.report.html import render
from slm.train.report.run_record import RunRecord


def training(step: int, **more: Any) -> dict[str, Any]:
    """A training record as in ``metrics.jsonl``, with ``more`` in place of its figures."""
    record = {"step": step, "tokens": 100 * step, "loss": 1 + 5 / step, "lr": 1e-3, "grad_norm": 0.5}
    return record | {"tokens_per_s": 1000.0, "data_wait": 0.001, "rss_gb": 1.5, "elapsed_s": 0.1 * step} | more


def validation(step: int, loss: float | None = None) -> dict[str, Any]:
    """A validation record as in ``metrics.jsonl``."""
    loss = 1.1 + 5 / step if loss is None else loss
    return {"step": step, "tokens": 100 * step, "val_loss": loss, "val_bits_per_byte": loss / 2}


def write_run(root: Path, found: list, samples: str = "", config: str = "train: {max_steps: 100}\n") -> RunRecord:
    """A run's directory with these metrics, samples and configuration, and its record."""
    root.mkdir(parents=True, exist_ok=True)
    lines = [each if isinstance(each, str) else json.dumps(each) for each in found]
    (root / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (root / "samples.md").write_text(samples, encoding="utf-8")
    (root / "config.yaml").write_text(config, encoding="utf-8")
    run = RunRecord(root)
    run.update()
    return run


def write_event(run: RunRecord, record: dict[str, Any]) -> None:
    """Add a record to the run's event log."""
    with (run.root / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    run.update()


class ParsedPage(HTMLParser):
    """Tags, attributes and text as a browser would take them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text, self.scripts = "", []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = tag
        self.links += [value for name, value in attrs if name in ("src", "href", "action") and value]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data

    def handle_endtag(self, _):
        self._inside = ""

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script draws."""
        return json.loads(self.scripts[0])


def parsed(run: RunRecord, status: str = "running") -> ParsedPage:
    """The report of one run."""
    return ParsedPage(render([run], [status]))
