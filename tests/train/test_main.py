"""Whole runs: what they leave behind, how they stop, how they go on, what they refuse."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from slm.model.checkpoint import verify
from slm.runs import list_checkpoints
from slm.train.components.quantization import Quantization, QuantizationOptions
from slm.train.config import TrainConfig
from tests.helpers.small_run import OPTIONS, SAMPLES, SmallRun, last_step

WITHOUT_LLAMA_CPP = """
import runpy, sys
sys.modules["llama_cpp"] = None
sys.argv[0] = "slm"
runpy.run_module("slm.train", run_name="__main__", alter_sys=True)
"""


def losses(root) -> dict[int, float]:
    records = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A run of 12 steps, never interrupted, that tests only read; and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    options = (f"data.files=[{corpus}]", "name=whole", "train.max_steps=12", "train.eval_every=6")
    options += ("train.checkpoint_every=6", SAMPLES)
    run = SmallRun(folder, *options).finish()
    return run.root, run.out


def test_training_begins_before_llama_cpp_is_there(corpus, tmp_path):
    """A fresh clone trains while llama.cpp is still being compiled."""
    words = [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}", "name=early", "train.max_steps=2"]
    words += ["train.eval_every=2", SAMPLES]
    done = subprocess.run([sys.executable, "-c", WITHOUT_LLAMA_CPP, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list_checkpoints(tmp_path / "early")


@pytest.fixture
def copied(finished, tmp_path):
    """The finished run, copied to this test's folder."""
    shutil.copytree(finished[0].parent, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs" / "whole"


def test_a_run_leaves_everything_a_person_needs(finished):
    root, out = finished
    _, last = list_checkpoints(root)
    assert last.name == "step-00000012"
    verify(last)
    for name in ("config.yaml", "metrics.jsonl", "samples.md", "validation.txt", "calibration.txt"):
        assert (root / name).stat().st_size > 0, name
    assert (root / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (root.parent / "latest").resolve() == root
    assert (root / "best").resolve() == last
    assert sorted(losses(root)) == list(range(1, 13))
    records = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    validations = [record for record in records if "val_loss" in record]
    assert [record["step"] for record in validations] == [6, 12]
    assert all(0 < record["val_bits_per_byte"] < 8 for record in validations)
    assert losses(root)[12] < losses(root)[1]
    assert f"make export MODEL={root}" in out
    assert "Once upon a time" in (root / "samples.md").read_text()


def test_a_run_says_that_its_text_was_learnt_by_heart(tmp_path):
    """One page again and again, at a rate that learns it within a few steps."""
    page, others = tmp_path / "page.txt", tmp_path / "others.txt"
    page.write_text("The lamp of the harbour was lit at six, and the boats came home. " * 4)
    others.write_text("Winter grass, a red door; seven crows sat upon the wall of my father's orchard. " * 12)
    files = (f"data.files=[{page}]", f"data.val_files=[{others}]", "train.calibrate_head=false")
    run = SmallRun(tmp_path, *files, "name=page", "train.max_steps=60", "train.eval_every=5", "optim.lr=0.02").finish()
    assert ", risen from " in run.out
    assert "the model learnt its text by heart" in run.out
    assert "budget= chooses what fits" in run.out


def test_a_run_whose_loss_falls_or_hardly_rises_says_nothing_of_it(finished):
    from slm.configuration import build, load_config
    from slm.train.config import RunConfig
    from slm.train.run.run_state import RunState

    records = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    first, last = (record["val_loss"] for record in records if "val_loss" in record)
    assert ("by heart" in finished[1]) == (last > 1.01 * first)
    state = RunState(build(RunConfig, load_config("train", ["preset=tiny", "name=any"])).train)
    assert not state.risen
    for loss, risen in ((4.0, False), (4.03, False), (4.05, True), (3.9, False)):
        state.validated({"val_loss": loss})
        assert state.risen == risen


def test_transformers_loads_the_checkpoint_and_its_tokenizer(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from slm.data.tokenizers.make import load_tokenizer
    from slm.model.checkpoint import load_model

    last = list_checkpoints(finished[0])[-1]
    tokenizer, text = AutoTokenizer.from_pretrained(last), "the cat sat on a red hill.\n\n  Then 42 dogs"
    ids = tokenizer.encode(text)
    assert ids == load_tokenizer(last).encode(text)
    theirs = AutoModelForCausalLM.from_pretrained(last, dtype=torch.float32).eval()
    tokens = torch.tensor([ids])
    with torch.no_grad():
        assert (theirs(tokens).logits - load_model(last)(tokens)).abs().max() < 1e-4


def test_a_signal_finishes_the_step_saves_and_the_run_goes_on(command, launch, train, tmp_path):
    """Three of them stop one run, which goes on each time."""
    arguments = command("name=stopped", "train.max_steps=500", "train.eval_every=500")
    root = tmp_path / "runs" / "stopped"
    before: dict[int, float] = {}
    resumes = ""  # what the next start says
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        process = launch(arguments)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and last_step(root) <= len(before) + 5:
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == expected, err
        assert "stopped at step" in out
        assert "Traceback" not in err
        saved = list_checkpoints(root)
        assert resumes in out
        assert before or len(saved) == 1
        checkpoint = saved[-1]
        resumes = f"resuming {root} from {checkpoint.name}"
        verify(checkpoint)
        step = int(checkpoint.name[5:])
        result = json.loads(out.splitlines()[-1])
        assert (result["status"], result["checkpoint"], result["step"]) == ("stopped", str(checkpoint), step)
        found = losses(root)
        assert sorted(found) == list(range(1, step + 1))
        assert {key: value for key, value in found.items() if key in before} == before
        before = found
    code, out, err = train([*arguments, f"train.max_steps={step + 3}"])
    assert code == 0, err
    assert resumes in out
    after = losses(root)
    assert sorted(after) == list(range(1, step + 4))
    assert {key: value for key, value in after.items() if key <= step} == before
    assert abs(after[step + 1] - before[step]) < 0.5


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(copied, command, train):
    weights = copied / "checkpoints" / "step-00000012" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    code, out, err = train(command("name=whole", "train.max_steps=12", "train.eval_every=6"))
    assert code == 0, err
    assert "does not match its SHA-256" in out
    assert "step-00000006" in out


def test_a_finished_run_says_so_and_never_loses_files(copied, command, train):
    root = copied
    same = command("name=whole", "train.max_steps=12", "train.eval_every=6")
    code, out, _ = train(same)
    assert code == 0
    assert "is finished" in out
    code, out, err = train([*same, "resume=never", "train.max_steps=1"])
    assert code == 0, err
    assert (root.parent / "whole.1" / "checkpoints" / "step-00000012" / "model.safetensors").exists()
    code, out, err = train([*same, "train.max_steps=14"])
    assert code == 0, err
    assert "step-00000001" in out


def test_other_settings_are_refused_field_by_field(copied, command, train):
    same = command("name=whole", "train.max_steps=20", "train.eval_every=6")
    code, _, err = train([*same, "model.n_layers=2", "train.seq_len=16", "optim.lr=1e-4"])
    assert code == 2
    assert "model.n_layers was 1, now 2" in err
    assert "train.seq_len was 32, now 16" in err
    assert "optim" not in err
    assert len(err.strip().splitlines()) == 1


def test_two_runs_in_one_directory_the_second_is_refused(command, launch, train, tmp_path):
    arguments = command("name=busy", "train.max_steps=4000")
    launch(arguments)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "runs" / "busy" / "metrics.jsonl").exists():
        time.sleep(0.1)
    code, _, err = train(arguments)
    assert code == 2
    assert "another process is training" in err


def test_time_bounds_a_run_and_its_schedule(command, train, tmp_path):
    code, _, err = train(command("name=timed", "train.max_steps=100000", "train.max_minutes=0.15"))
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "runs" / "timed" / "metrics.jsonl").read_text().splitlines()]
    rates = [record["lr"] for record in records if "lr" in record]
    assert 5 < len(rates) < 100000
    assert rates[-1] < 0.3 * max(rates)


def test_training_goes_on_from_a_downloaded_model(copied, command, train, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = copied / "tokenizer"
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(tokenizer)
    code, _, err = train(command("name=tuned", "train.max_steps=3", f"init_from={tokenizer}"))
    assert code == 0, err
    saved = json.loads((tmp_path / "runs" / "tuned" / "checkpoints" / "step-00000003" / "config.json").read_text())
    assert (saved["hidden_size"], saved["max_position_embeddings"]) == (96, 64)
    code, _, err = train(command("name=long", "train.seq_len=128", f"init_from={tokenizer}"))
    assert code == 2
    assert "longer than the context" in err


def test_wandb_without_an_account_logs_offline_and_blocks_nothing(command, train, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # no credentials of the person who runs the tests
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pytest.importorskip("wandb")
    code, out, err = train(
        command("name=logged", "train.max_steps=3", "logger=wandb"), unset=("WANDB_MODE", "WANDB_API_KEY")
    )
    assert code == 0, err
    assert "no account is set up here" in out
    root = tmp_path / "runs" / "logged"
    assert list((root / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(losses(root)) == 3


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["train.max_stps=5"], "there is no option 'train.max_stps'; did you mean 'train.max_steps'"),
        (["model.d_model=700"], "use 512 or 768"),
        (["preset=125"], "there is no preset '125'; did you mean '125m'"),
        (["data.files=[/nowhere/at/all.txt]"], "/nowhere/at/all.txt"),
        (["name=a/b"], "cannot name a run"),
        (["resume=step-9"], "nor a checkpoint directory"),
        (["init_from=/nowhere"], "/nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(overrides, says, command, train):
    code, _, err = train(command(*overrides))
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1, err


def test_an_empty_corpus_is_one_line_and_status_2(command, train, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    code, _, err = train(command(f"data.files=[{tmp_path / 'empty.txt'}]"))
    assert code == 2
    assert "empty.txt" in err
    assert len(err.strip().splitlines()) == 1, err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"qat": "q4_0", "max_steps": 80}, "train.qat=q4_0 would hold for 8 of 80 steps, fewer than"),
        ({"qat": "q4_0", "max_steps": 499}, "train.qat=q4_0 would hold for 49 of 499 steps"),
        ({"qat": "q4_0", "max_steps": 500}, None),
        ({"qat": "q4_0", "max_steps": 20, "least_steps": 0}, None),
        ({"qat": "tq2_0", "max_steps": 80}, None),
        ({"qat": "q4_0", "max_steps": 80, "max_minutes": 5.0}, None),
        ({"max_steps": 80}, None),
    ],
)
def test_too_short_a_quantization_aware_training_is_told(options, says):
    """Not where any number of steps will do (make qat), and not of ternary weights, which cannot do without."""
    own = {"least_steps": options.pop("least_steps")} if "least_steps" in options else {}
    line = Quantization(TrainConfig(seq_len=8, micro_batch=1, **options), QuantizationOptions(**own)).note()
    assert line is None if says is None else line.startswith(says)


def test_a_text_with_too_few_pairs_for_the_vocabulary_is_told(corpus, tmp_path):
    options = (f"data.files=[{corpus}]", "train.max_steps=2", "tokenizer.vocab_size=2000")
    out = SmallRun(tmp_path, *options).finish().out
    (size,) = re.findall(r"vocabulary ([\d,]+),", out)
    assert f"{size} of tokenizer.vocab_size=2000 ids: the text that the tokenizer was trained on" in out


def test_a_vocabulary_that_the_text_fills_is_not_told(finished):
    assert "tokenizer.vocab_size" not in finished[1]


@pytest.mark.parametrize(("steps", "says"), [(100, "the run ends in its warm-up: 100 steps"), (101, None)])
def test_a_run_shorter_than_its_warm_up_is_told(steps, says):
    from slm.train.beginning.messages import short_run

    line = short_run(steps, 100)
    assert (line or "").startswith(says or "")
    assert (line is None) == (says is None)
