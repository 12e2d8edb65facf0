"""The report of a run: nothing in it is believed, nothing is lost of it, and it stays small."""

import json
import re

from slm.train.report.html import render, write_report
from slm.train.report.run_record import RunRecord
from tests.helpers.run_files import ParsedPage, parsed, training, validation, write_event, write_run

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}&amp;'\"\u2028"


def test_a_page_needs_nothing_from_elsewhere_and_holds_every_figure_as_text(tmp_path):
    run = write_run(
        tmp_path / "mine",
        [*(training(step) for step in range(1, 51)), validation(25), validation(50, 0.77)],
        "## step 25\n\nOnce upon a time\n\nthere was.\n\n## step 50\n\nOnce more\n\n",
    )
    seen = parsed(run)
    assert seen.links == ["data:,"]
    assert seen.tags.count("script") == 2
    for text in ("0.7700", "0.3850", "step 50 of 100", "50.0 %", "best 0.3850 at step 50", "there was.", "1.50"):
        assert text in seen.text, text
    drawn = seen.data["runs"][0]
    assert drawn["train"]["step"] == list(range(1, 51))
    assert drawn["val"]["bpb"] == [0.65, 0.385]
    assert drawn["val"]["time"] == [5, 5]  # that of the training record before, in the file's order
    assert seen.data["running"] is True


def test_what_the_text_was_and_what_was_left_out_of_it(tmp_path):
    run = write_run(tmp_path / "mine", [training(1)])
    files = {"taken": {".jsonl": {"files": 1, "bytes": 9}}, "left_out": {"hidden": 3}}
    text = {"source": "chats", "read": 1800, "taken": 1099, "tokens": 12345, "exact": True, "files": files}
    text["left_out"] = {"also in data.val_files": 701}
    hub = {"source": NASTY, "read": None, "taken": 5, "exact": False, "files": None, "left_out": None}
    write_event(run, {"event": "start", "step": 0, "time": 1.0, "text": [text, hub, "nonsense"]})
    seen = parsed(run)
    for cell in ("1,800", "1,099", "about 12,345", "701 also in data.val_files", "3 hidden", "about 5", NASTY):
        assert cell in seen.text, cell


def test_names_samples_options_and_reasons_stay_text(tmp_path):
    run = write_run(
        tmp_path / "<b>bold&amp;",
        [
            training(1),
            training(2),
            validation(2),
            {"event": NASTY, "step": 2, "time": 1.0, "what": NASTY},
        ],
        f"## step 2\n\n{NASTY}\n\n",
        json.dumps({"data": {"files": [NASTY]}, NASTY: NASTY, "train": {"sample_prompts": ["</scr"]}}),
    )
    write_event(run, {"event": "start", "step": 0, "time": 1.0, "from": None, "machine": {"cpu": NASTY}})
    write_event(run, {"event": "end", "step": 2, "time": 2.0, "status": "failed", "reason": NASTY})
    for status in ("failed", NASTY):
        text = render([run], [status])
        seen = ParsedPage(text)
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
    compared = ParsedPage(render([run, run], ["failed", "failed"]))
    assert compared.tags.count("script") == 2
    assert "img" not in compared.tags


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
    run = write_run(tmp_path / "odd", found, "no heading\n", "a: [1,\n")
    (run.root / "metrics.jsonl").write_bytes((run.root / "metrics.jsonl").read_bytes() + b'\xff\xfe{"\n')
    run.update()
    seen = parsed(run)
    assert seen.data["runs"][0]["train"]["loss"] == [None, None, None, 2.25]
    assert "3 training records hold a loss or gradient norm that is not a finite number" in seen.text
    assert "the machine slept for 1:30" in seen.text
    assert "rolled back: the loss of step 11 was 9.0000, 3.0 times the median; 300 tokens skipped" in seen.text
    assert "struck (by lightning)" in seen.text
    assert parsed(write_run(tmp_path / "empty", [])).data["runs"][0]["train"]["step"] == []
    (tmp_path / "bare").mkdir()
    bare = RunRecord(tmp_path / "bare")
    bare.update()
    assert "bare" in parsed(bare).text


def test_a_very_long_run_stays_small_and_keeps_its_spikes(tmp_path):
    found = []
    for index in range(1, 100_001):
        found.append(training(10 * index, loss=50.0 if index == 66_666 else 3 + 1 / index))
        if index % 50 == 0:
            found.append(validation(10 * index, 2.5 if index == 44_450 else 3.0))
    text = "".join(f"## step {step}\n\n{'a tale ' * 60}\n\n" for step in range(500, 1_000_001, 500))
    run = write_run(tmp_path / "long", found, text)
    write_report(run.root / "report.html", [run])
    assert (run.root / "report.html").stat().st_size < 1_500_000
    seen = ParsedPage((run.root / "report.html").read_text(encoding="utf-8"))
    drawn = seen.data["runs"][0]
    assert drawn["name"] == "long"
    assert 500 <= len(drawn["train"]["step"]) <= 1000
    assert drawn["stride"] * len(drawn["train"]["step"]) >= 100_000
    assert max(drawn["train"]["loss_high"]) == 50
    assert 600_000 < drawn["train"]["step"][drawn["train"]["loss_high"].index(50)] < 700_000
    assert "444,500" in seen.text, "the best validation is among those that are shown"
    assert len(seen.text) < 500_000
    assert run.samples[-1].step == 1_000_000
    # What is added is read, and no more than that.
    with (run.root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(training(1_000_010)) + "\n")
    assert run.update()
    assert run.step() == 1_000_010
    assert len(run.curves) == 100_001


def test_mistakes_are_reported_in_one_line(three_runs, report, tmp_path):
    for arguments, says in (
        ([f"runs=[{three_runs[0]},{three_runs[0]}]"], "twice"),
        ([f"runs=[{','.join([str(three_runs[0])] * 9)}]"], "at most 8"),
        (["runs=[]"], "at least one run"),
        ([f"runs=[{tmp_path}/aa]"], "aa does not exist"),
        ([f"runs=[{three_runs[0]}]", f"out={tmp_path}"], "is a directory"),
        ([f"runs=[{three_runs[0]}]", f"out={tmp_path}/no/x.html"], "make it first"),
        ([f"runs=[{three_runs[0]}]", f"out={tmp_path}/{'x' * 245}.html"], "cannot be written"),
        ([f"runs=[{three_runs[0]}]", "output=x"], "'out'"),
    ):
        err = report(*arguments, status=2)
        assert says in err, err
        assert len(err.strip().splitlines()) == 1, err
