"""``train.micro_batch=auto`` measures once, keeps the size of a step, and leaves started runs alone."""

import pytest

from slm.configuration import load_config, to_dict
from slm.data.errors import UserError
from slm.train import autobatch
from slm.train.config import TrainConfig
from slm.train.resolve import resolve

SMALL = [
    *("preset=tiny", "model.n_layers=1", "train.micro_batch=auto", "train.seq_len=64"),
    *("train.kernels=eager", "train.precision=f32"),
]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def numbers(argv: list[str]) -> TrainConfig:
    return resolve(argv, autobatch.choose_micro_batch).train


def test_numbers_stay_as_they_are():
    composed = load_config("train", ["preset=tiny"])["train"]
    train = numbers(["preset=tiny"])
    assert to_dict(train) == composed


@pytest.mark.slow
def test_it_is_measured_once_and_the_step_keeps_its_size(tmp_path, monkeypatch, capsys):
    argv = [*SMALL, f"runs_dir={tmp_path}"]
    base = numbers([word for word in argv if "micro_batch" not in word])
    monkeypatch.setattr(autobatch, "CANDIDATES", (1, 2))
    train = numbers(argv)
    assert train.micro_batch in (1, 2)
    assert train.micro_batch * train.grad_accum == base.micro_batch * base.grad_accum
    assert "tokens/s" in capsys.readouterr().out
    assert numbers(argv) == train
    assert "tokens/s" not in capsys.readouterr().out


@pytest.mark.parametrize("changed", ["torch", "kernels"])
def test_what_other_software_was_measured_with_does_not_hold(monkeypatch, changed):
    measured: list[int] = []
    monkeypatch.setattr(autobatch, "_measure", lambda *_: measured.append(1) or 1)
    for _ in range(2):
        numbers(SMALL)
    assert len(measured) == 1
    if changed == "kernels":
        monkeypatch.setattr(autobatch, "sources_fingerprint", lambda: "others")
    else:
        record = autobatch.machine_record()
        other = record | {"versions": {**record["versions"], "torch": "9.9"}}
        monkeypatch.setattr(autobatch, "machine_record", lambda: other)
    numbers(SMALL)
    assert len(measured) == 2


@pytest.mark.parametrize("content", ["", '{"a": 1', "5", b"\xff\xfe"])
def test_a_damaged_cache_is_measured_anew(content):
    path = autobatch.cache_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert autobatch.kept_choices() == {}
    path.write_text('{"a": 4}')
    assert autobatch.kept_choices() == {"a": 4}


def test_a_run_that_exists_keeps_its_numbers(tmp_path):
    (tmp_path / "mine").mkdir()
    checkpoint = tmp_path / "mine" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    (tmp_path / "mine" / "config.yaml").write_text("train:\n  micro_batch: 3\n  grad_accum: 5\n")
    train = numbers([*SMALL, f"runs_dir={tmp_path}", "name=mine"])
    assert (train.micro_batch, train.grad_accum) == (3, 5)


def test_several_processes_need_a_number(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="give a number"):
        numbers(SMALL)
