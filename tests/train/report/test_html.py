"""The report of a run: nothing in it is believed, nothing is lost of it, and it stays small."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slm.model.config import ModelConfig
from tests.helpers import REPOSITORY
from train.environment import Environment
from train.report import sections
from train.report.curves import Curves, Tail, records
from train.report.html import render, write_report
from train.report.run_record import RunRecord
from train.run.event_log import EventLog

SHAPE = ModelConfig(
    arch="llama",
    vocab_size=256,
    n_layers=1,
    d_model=256,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    ffn_dim=256,
    seq_len=32,
)
ENVIRONMENT = Environment(threads=1, precision="f32", compile=False, notes=())
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}&amp;'\"\u2028"


def training(step: int, **more) -> dict:
    record = {"step": step, "tokens": 100 * step, "loss": 1 + 5 / step, "lr": 1e-3, "grad_norm": 0.5}
    return record | {"tokens_per_s": 1000.0, "data_wait": 0.001, "rss_gb": 1.5, "elapsed_s": 0.1 * step} | more


def validation(step: int, loss: float | None = None) -> dict:
    loss = 1.1 + 5 / step if loss is None else loss
    return {"step": step, "tokens": 100 * step, "val_loss": loss, "val_bits_per_byte": loss / 2}


def write_run(root: Path, found: list, samples: str = "", config: str = "train: {max_steps: 100}\n") -> RunRecord:
    root.mkdir(parents=True, exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in found]
    (root / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (root / "samples.md").write_text(samples, encoding="utf-8")
    (root / "config.yaml").write_text(config, encoding="utf-8")
    story = RunRecord(root)
    story.update()
    return story


class Seen(HTMLParser):
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
    def data(self) -> dict:
        return json.loads(self.scripts[0])


def page(story: RunRecord, status: str = "running") -> Seen:
    return Seen(render([story], [status]))


def test_a_page_needs_nothing_from_elsewhere_and_holds_every_figure_as_text(tmp_path):
    story = write_run(
        tmp_path / "mine",
        [*(training(step) for step in range(1, 51)), validation(25), validation(50, 0.77)],
        "## step 25\n\nOnce upon a time\n\nthere was.\n\n## step 50\n\nOnce more\n\n",
    )
    seen = page(story)
    assert seen.links == ["data:,"]
    assert seen.tags.count("script") == 2
    for text in ("0.7700", "0.3850", "step 50 of 100", "50.0 %", "best 0.3850 at step 50", "there was.", "1.50"):
        assert text in seen.text, text
    run = seen.data["runs"][0]
    assert run["train"]["step"] == list(range(1, 51))
    assert run["val"]["bpb"] == [0.65, 0.385]
    assert run["val"]["time"] == [5, 5]  # that of the training record before, in the file's order
    assert seen.data["running"] is True


def test_names_samples_options_and_reasons_stay_text(tmp_path):
    story = write_run(
        tmp_path / "<b>bold&amp;",
        [training(1), training(2), validation(2), {"event": NASTY, "step": 2, "time": 1.0, "what": NASTY}],
        f"## step 2\n\n{NASTY}\n\n",
        json.dumps({"data": {"files": [NASTY]}, NASTY: NASTY, "train": {"sample_prompts": ["</scr"]}}),
    )
    write_journal(story, {"event": "start", "step": 0, "time": 1.0, "from": None, "machine": {"cpu": NASTY}})
    write_journal(story, {"event": "end", "step": 2, "time": 2.0, "status": "failed", "reason": NASTY})
    for status in ("failed", NASTY):
        text = render([story], [status])
        seen = Seen(text)
        assert seen.tags.count("script") == 2
        assert "img" not in seen.tags
        assert "b" not in seen.tags
        assert "<b>bold&amp;" in seen.text
        assert seen.text.count("<script>alert(1)</script>") >= 5
        assert "{{ 7 * 7 }}" in seen.text
        assert "</script" not in seen.scripts[0]
        assert seen.data["runs"][0]["name"] == "<b>bold&amp;"
        # And should something come through after all: only the page's own script may run.
        assert re.search(r"default-src 'none'; script-src 'sha256-[\w+/=]+'; style-src 'sha256-", text)
    compared = Seen(render([story, story], ["failed", "failed"]))
    assert compared.tags.count("script") == 2
    assert "img" not in compared.tags


def write_journal(story: RunRecord, record: dict) -> None:
    with (story.root / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    story.update()


def test_a_file_that_is_broken_or_of_another_version_is_still_drawn(tmp_path):
    found = [
        "not json",
        "[1, 2]",
        "7",
        '{"loss": 1.0}',
        '{"step": "one", "loss": 1.0}',
        '{"step": 1, "loss": NaN}',
        '{"step": 2, "loss": null, "grad_norm": null}',
        '{"step": 3, "loss": "low", "tokens": -Infinity, "elapsed_s": []}',
        training(4),
        '{"step": 4, "val_loss": null}',
        validation(5),
        '{"step": 6, "event": null}',
        '{"step": 7, "event": "rolled_back"}',
        '{"step": 8, "event": "slept", "seconds": 90}',
        '{"step": 8, "event": "rolled_back", "from": 11, "to": 8, "loss": 9, "median": 3, "times": 3, "tokens": 300}',
        '{"step": 8, "event": "struck", "by": "lightning"}',
        '{"step": 9, "lo',
    ]
    story = write_run(tmp_path / "odd", found, "no heading\n", "a: [1,\n")
    (story.root / "metrics.jsonl").write_bytes((story.root / "metrics.jsonl").read_bytes() + b'\xff\xfe{"\n')
    story.update()
    seen = page(story)
    assert seen.data["runs"][0]["train"]["loss"] == [None, None, None, 2.25]
    assert "3 training records hold a loss or gradient norm that is not a finite number" in seen.text
    assert "the machine slept for 1:30" in seen.text
    assert "rolled back: the loss of step 11 was 9.0000, 3.0 times the median; 300 tokens skipped" in seen.text
    assert "struck (by lightning)" in seen.text
    assert page(write_run(tmp_path / "empty", [])).data["runs"][0]["train"]["step"] == []
    (tmp_path / "bare").mkdir()
    bare = RunRecord(tmp_path / "bare")
    bare.update()
    assert "bare" in page(bare).text


def test_a_very_long_run_stays_small_and_keeps_its_spikes(tmp_path):
    found = []
    for index in range(1, 100_001):
        found.append(training(10 * index, loss=50.0 if index == 66_666 else 3 + 1 / index))
        if index % 50 == 0:
            found.append(validation(10 * index, 2.5 if index == 44_450 else 3.0))
    text = "".join(f"## step {step}\n\n{'a tale ' * 60}\n\n" for step in range(500, 1_000_001, 500))
    story = write_run(tmp_path / "long", found, text)
    write_report(story.root / "report.html", [story])
    assert (story.root / "report.html").stat().st_size < 1_500_000
    seen = Seen((story.root / "report.html").read_text(encoding="utf-8"))
    run = seen.data["runs"][0]
    assert run["name"] == "long"
    assert 500 <= len(run["train"]["step"]) <= 1000
    assert run["stride"] * len(run["train"]["step"]) >= 100_000
    assert max(run["train"]["loss_high"]) == 50
    assert 600_000 < run["train"]["step"][run["train"]["loss_high"].index(50)] < 700_000
    assert "444,500" in seen.text, "the best validation is among those that are shown"
    assert len(seen.text) < 500_000
    assert story.samples[-1].step == 1_000_000
    # What is added is read, and no more than that.
    with (story.root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(training(1_000_010)) + "\n")
    assert story.update()
    assert story.step() == 1_000_010
    assert len(story.curves) == 100_001


def test_a_tail_reads_what_was_added_and_notices_another_file(tmp_path):
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.read() == ([], False)
    path.write_text("a\nb\nhal")
    assert tail.read() == (["a", "b"], False)
    assert tail.read() == ([], False)
    with path.open("a") as file:
        file.write("f\n")
    assert tail.read() == (["half"], False)
    other = tmp_path / "other"
    other.write_text("a much longer line than before\n")
    other.rename(path)
    assert tail.read() == (["a much longer line than before"], True)
    path.write_text("another line of the same length\n"[-31:])  # the same inode, other content
    assert tail.read()[1] is True
    path.write_text("x\n")
    assert tail.read() == (["x"], True)


def test_curves_that_go_back_are_drawn_from_there(tmp_path):
    curves = Curves()
    curves.extend([training(step) for step in range(1, 11)])
    curves.extend([training(step, loss=9.0) for step in (6, 7, 4, 5)])
    assert curves["step"].tolist() == [1, 2, 3, 4, 5]
    assert curves["loss"].tolist()[3:] == [9.0, 9.0]
    points = curves.points(2)
    assert points.stride == 3
    assert points.mean("step").tolist() == [2.0, 4.5]
    assert points.high("loss").tolist() == [6.0, 9.0]
    assert list(records(['{"step": true}', '{"step": 1}'])) == [{"step": 1}]
    story = write_run(tmp_path / "back", [training(1), validation(2), validation(4), training(3), validation(3)])
    assert [validation.step for validation in story.validations] == [2, 3]


def test_a_sample_that_looks_like_a_heading_is_text(tmp_path):
    samples = "## step 2\n\nfirst\n\n## step 77\nmore\n\n## step 4\n\nsecond\n\n"
    story = write_run(tmp_path / "x", [training(1), validation(2), validation(4)], samples)
    assert [(sample.step, sample.text) for sample in story.samples] == [
        (2, "first\n\n## step 77\nmore"),
        (4, "second"),
    ]
    groups = sections.sample_groups(story)
    assert [group["texts"][0]["rest"] for group in groups] == ["first\n\n## step 77\nmore", "second"]


@pytest.fixture
def three(tmp_path):
    """Three runs: two share a tokenizer and the validation text, one is of another kind."""
    for name, ids, text, lr, loss in (("a", "1", "v", "1", 2.0), ("b", "1", "v", "2", 1.0), ("c", "2", "w", "1", 3.0)):
        config = f"name: {name}\noptim: {{lr: {lr}}}\ntrain: {{max_steps: 4}}\nfacts: {{n: {name}}}\n"
        story = write_run(tmp_path / name, [training(1), training(2), validation(2, loss)], config=config)
        (story.root / "tokenizer").mkdir()
        (story.root / "tokenizer" / "tokenizer.json").write_text(ids)
        (story.root / "validation.txt").write_text(text)
    return [tmp_path / name for name in "abc"]


def report(*arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "train.report.html", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_several_runs_are_compared_by_what_can_be_compared(three, tmp_path):
    out = report(f"runs=[{three[0]},{three[1]}]")
    assert f"written: {tmp_path / 'compare.html'}" in out
    text = (tmp_path / "compare.html").read_text()
    seen = Seen(text)
    assert "losses per token may be compared, too" in seen.text
    assert "different text" not in seen.text
    assert seen.data["x"] == "tokens"
    assert [run["name"] for run in seen.data["runs"]] == ["a", "b"]
    assert re.findall(r'<td class="number best">([\d.,]+)', text) == ["0.5000", "0.5000", "1.0000"]
    differences = text[text.index("What was set differently") :]
    assert "optim.lr" in differences
    assert "train.max_steps" not in differences
    assert "facts.n" not in differences
    report(f"runs=[{three[0]},{three[2]}]", f"out={tmp_path / 'other.html'}")
    seen = Seen((tmp_path / "other.html").read_text())
    assert seen.data["comparable"] is False
    assert "Bits per byte do not" in seen.text
    assert "validated on different text" in seen.text


def test_mistakes_are_told_in_one_line(three, tmp_path):
    for arguments, says in (
        ([f"runs=[{three[0]},{three[0]}]"], "twice"),
        ([f"runs=[{','.join([str(three[0])] * 9)}]"], "at most 8"),
        (["runs=[]"], "at least one run"),
        ([f"runs=[{tmp_path}/aa]"], "aa does not exist"),
        ([f"runs=[{three[0]}]", f"out={tmp_path}"], "is a directory"),
        ([f"runs=[{three[0]}]", f"out={tmp_path}/no/x.html"], "make it first"),
        ([f"runs=[{three[0]}]", "output=x"], "'out'"),
    ):
        err = report(*arguments, status=2)
        assert says in err, err
        assert len(err.strip().splitlines()) == 1, err


def test_a_report_that_cannot_be_written_is_one_line_and_nothing_else(tmp_path):
    story = write_run(tmp_path / "run", [training(1), training(2), validation(2)])
    (story.root / "report.html").mkdir()
    (story.root / "report.html" / "in the way").touch()
    lines: list[str] = []
    journal = EventLog(story.root, log=lines.append)
    journal.start(2, None, SHAPE, ENVIRONMENT)
    journal.refresh()
    journal.refresh()
    assert len(lines) == 1
    assert "report.html could not be written" in lines[0]
    assert "training goes on" in lines[0]
    assert (story.root / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in story.root.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("error", "signalled", "status", "facts"),
    [
        (None, None, "finished", {}),
        (None, signal.SIGTERM, "stopped", {"signal": 15}),
        (KeyboardInterrupt(), None, "stopped", {"signal": 2}),
        (ValueError("the loss\nis nan"), None, "failed", {"reason": "the loss is nan"}),
    ],
)
def test_every_end_is_written_down(error, signalled, status, facts, tmp_path):
    story = write_run(tmp_path / "run", [training(1), training(2)])
    journal = EventLog(story.root)
    journal.start(0, Path("checkpoints/step-00000001"), SHAPE, ENVIRONMENT)
    with contextlib.ExitStack() as stack:
        if error is not None:
            stack.enter_context(pytest.raises(type(error)))
        stack.enter_context(journal.until_the_end(lambda: 2, lambda: signalled))
        if error is not None:
            raise error
    story.update()
    start, end = story.event_log
    assert (start.facts["from"], start.facts["again"]) == ("step-00000001", 2)
    assert {key: value for key, value in end.facts.items() if value is not None} == {"status": status, **facts}
    assert story.status() == status
    seen = Seen((story.root / "report.html").read_text())
    assert all(str(fact) in seen.text for fact in facts.values() if isinstance(fact, str))
    silent = tmp_path / "another"
    silent.mkdir()
    idle = EventLog(silent, active=False)
    idle.start(0, None, SHAPE, ENVIRONMENT)
    idle.refresh()
    assert list(silent.iterdir()) == []


def test_the_plot_is_drawn_once_for_what_is_there(tmp_path):
    story = write_run(tmp_path / "run", [training(1), training(2), validation(2)])
    journal = EventLog(story.root)
    journal.refresh()
    first = (story.root / "loss.png").stat()
    journal.end(2, "finished")
    assert (story.root / "loss.png").stat().st_ino == first.st_ino
    with (story.root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(training(3)) + "\n")
    journal.refresh()
    assert (story.root / "loss.png").stat().st_ino != first.st_ino


def test_a_run_tells_how_it_was_stopped_and_resumed(command, launch, train, tmp_path):
    """A real run: interrupted, killed, finished."""
    root = tmp_path / "runs" / "told"
    arguments = command("name=told", "train.max_steps=100000", "train.eval_every=10", "train.checkpoint_every=10")

    def reach(step: int) -> subprocess.Popen:
        process, deadline = launch(arguments), time.monotonic() + 120
        story = RunRecord(root)
        while story.step() < step:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
            story.update()
        return process

    process = reach(15)
    assert RunRecord(root).status() == "running"
    assert (root / "report.html").exists(), "there is a report after the first validation"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    stopped = RunRecord(root)
    stopped.update()
    assert stopped.status() == "stopped"
    assert "stopped by SIGINT" in Seen((root / "report.html").read_text()).text
    process = reach(stopped.step() + 25)
    process.kill()
    process.communicate(timeout=60)
    assert RunRecord(root).status() != "running"
    gone = RunRecord(root)
    gone.update()
    assert gone.status() == "gone"
    assert "ended unexpectedly" in page(gone, gone.status()).text
    last = max(int(path.name[5:]) for path in (root / "checkpoints").glob("step-????????"))
    code, _, err = train([*arguments, f"train.max_steps={last + 8}"])
    assert code == 0, err
    assert "warning" not in err
    story = RunRecord(root)
    story.update()
    assert story.status() == "finished"
    assert [event.kind for event in story.event_log] == ["start", "end", "start", "start", "end"]
    seen = Seen((root / "report.html").read_text())
    assert "100.0 %" in seen.text
    assert f"resumed from step-{stopped.step():08d}" in seen.text
    assert f"resumed from step-{last:08d}" in seen.text
    assert "before that it ended unexpectedly" in seen.text
    assert re.search(r"[\d,]+ parameters · llama · vocabulary 320", seen.text)
    assert "Once upon a time" in seen.text
    assert seen.data["running"] is False
    assert [event["step"] for event in seen.data["runs"][0]["events"]] == [stopped.step(), last]
    assert (root / "loss.png").exists()
