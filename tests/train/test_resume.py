"""A run that is killed and resumed is the run that was not, to the bit, whatever its data and its workers."""

import functools
import hashlib
import json
import signal

import pytest
import yaml
from safetensors.torch import load_file

from slm.configuration import load_config
from slm.data.sources.mixture import latest_epoch
from slm.runs import list_checkpoints
from tests.helpers import train_faults
from tests.helpers.programs import Program
from tests.helpers.small_run import SmallRun, differences, losses, newest_step, write_corpus

STEPS = 40


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A large and a small corpus: of the first a run sees a part of one epoch, of the second several epochs."""
    folder = tmp_path_factory.mktemp("texts")
    return {
        "large": write_corpus(folder / "large.jsonl", 600, seed=1),
        "small": write_corpus(folder / "small.jsonl", 25, seed=2),
    }


def data(texts, kind: str) -> list[str]:
    if kind in texts:
        return [f"data.files=[{texts[kind]}]", "data.val_fraction=0.1"]
    sources = ",".join(
        f"{{kind:files,name:{name},files:[{path}],weight:{weight}}}"
        for (name, path), weight in zip(texts.items(), (0.3, 0.7), strict=True)
    )
    return ["data.kind=mixture", f"+data.sources=[{sources}]", "data.val_fraction=0.1"]


def same(a: SmallRun, b: SmallRun, steps: int = STEPS) -> None:
    last = f"checkpoints/step-{steps:08d}"
    assert differences(a.root / last, b.root / last) == []
    assert losses(a.root) == losses(b.root)
    states = [json.loads((run.root / last / "trainer_state.json").read_text()) for run in (a, b)]
    assert states[0]["loader"] == states[1]["loader"]
    assert states[0]["tokens"] == states[1]["tokens"]


@pytest.mark.parametrize(
    ("workers", "kind", "kills"),
    [
        # Each number of readers and each kind of text once; the loader's own tests have every pair.
        (0, "large", (4, 13)),  # in one epoch; killed once more after it was resumed
        (0, "small", (13,)),  # over the ends of epochs
        (1, "large", (9,)),  # one reader beside the run
        (4, "mixture", (11,)),  # several, and several sources
    ],
)
def test_killed_and_resumed_it_is_the_same_to_the_bit(workers, kind, kills, texts, tmp_path):
    common = [*data(texts, kind), f"train.workers={workers}", f"train.max_steps={STEPS}", "train.grad_accum=2"]
    whole = SmallRun(tmp_path, "name=whole", "train.checkpoint_every=1000", *common).finish()
    for number, step in enumerate(kills):
        run = SmallRun(tmp_path, "name=parts", "train.checkpoint_every=2", *common)
        run.wait_for_checkpoint(step)
        run.kill()
        assert run.returncode == -signal.SIGKILL, run.out + run.err
        assert newest_step(run.root) < STEPS, "it was killed too late to prove anything"
        assert ("resuming" in run.out) == (number > 0)
    parts = SmallRun(tmp_path, "name=parts", "train.checkpoint_every=2", *common).finish()
    assert "resuming" in parts.out
    same(parts, whole)
    if kind != "mixture":
        state = json.loads((parts.root / f"checkpoints/step-{STEPS:08d}/trainer_state.json").read_text())
        assert (latest_epoch(state["loader"]["streams"]) > 0) == (kind == "small")


MUON = ("optim=muon",)


def test_with_muon_too_killed_and_resumed_it_is_the_same_to_the_bit(texts, tmp_path):
    more = "train.gradient_checkpointing=true"
    common = [*data(texts, "large"), f"train.max_steps={STEPS}", "train.grad_accum=2", *MUON, more]
    whole = SmallRun(tmp_path, "name=whole", "train.checkpoint_every=1000", *common).finish()
    run = SmallRun(tmp_path, "name=parts", "train.checkpoint_every=2", *common)
    run.wait_for_checkpoint(9)
    run.kill()
    assert newest_step(run.root) < STEPS, "it was killed too late to prove anything"
    parts = SmallRun(tmp_path, "name=parts", "train.checkpoint_every=2", *common).finish()
    assert "resuming" in parts.out
    same(parts, whole)
    assert losses(whole.root)[STEPS] < losses(whole.root)[1] - 1
    last = load_file(whole.root / f"checkpoints/step-{STEPS:08d}/optimizer.safetensors")
    assert "model.layers.0.mlp.up_proj.weight.momentum" in last
    assert "model.embed_tokens.weight.exp_avg" in last


LONG = ("train.max_steps=120", "train.checkpoint_every=1000")


@pytest.fixture(scope="module")
def long(texts, tmp_path_factory) -> SmallRun:
    """A run of 120 steps that nobody stops, with one checkpoint."""
    return SmallRun(tmp_path_factory.mktemp("long"), "name=whole", *data(texts, "large"), *LONG).finish()


def test_stopped_by_signals_and_resumed_it_is_the_same_to_the_bit(long, texts, tmp_path):
    """A signal saves at whatever step it finds, in the midst of a window of logged steps too."""
    stops = [0]
    for number in (signal.SIGTERM, signal.SIGINT):
        run = SmallRun(tmp_path, "name=parts", *data(texts, "large"), *LONG)
        run.wait_for_step(stops[-1] + 14)
        run.send_signal(number)
        assert run.wait() == 128 + number, run.err
        assert "Traceback" not in run.err
        stops.append(newest_step(run.root))
    assert sorted(set(stops)) == stops
    assert stops[-1] < 120
    parts = SmallRun(tmp_path, "name=parts", *data(texts, "large"), *LONG).finish()
    same(parts, long, 120)


def test_checkpoints_by_time_change_nothing(long, texts, tmp_path):
    common = [*data(texts, "large"), *LONG]
    assert len(list_checkpoints(long.root)) == 1
    often = functools.partial(train_faults.save_often, 0.03)
    run = SmallRun(tmp_path, "name=parts", *common, prepare=often)
    run.wait_for_checkpoint(1)
    run.kill()
    assert newest_step(run.root) < 120
    parts = SmallRun(tmp_path, "name=parts", *common, prepare=often).finish()
    assert "resuming" in parts.out
    assert parts.out.count(": saved ") > 1
    same(parts, long, 120)


CHANGED = ["model.n_layers=2", "tokenizer.vocab_size=290", "data.shuffle_buffer=8", "train.seed=5", "train.workers=1"]
CHANGED += ["optim=muon"]


def test_what_makes_the_run_what_it_is_may_not_change_and_the_rest_may(texts, tmp_path):
    common = [*data(texts, "small"), "name=mine"]
    SmallRun(tmp_path, *common, "train.max_steps=3").finish()
    run = SmallRun(tmp_path, *common, "train.max_steps=5", *CHANGED, "train.micro_batch=2", "data.min_chars=10")
    assert run.wait() == 2
    assert len(run.err.splitlines()) == 1
    for said in (
        "optim.name was 'adamw', now 'muon'",
        "model.n_layers was 1, now 2",
        "tokenizer.vocab_size was 300, now 290",
        "data.shuffle_buffer was 16, now 8",
        "data.min_chars was 0, now 10",
        "train.seed was 1234, now 5",
        "train.workers was 0, now 1",
        "train.micro_batch x train.grad_accum was 4 x 1, now 2 x 1",
        "another name=, or resume=never",
    ):
        assert said in run.err, said
    assert newest_step(run.root) == 3
    free = [
        "train.max_steps=6",
        "train.max_minutes=60",
        "optim.lr=1e-4",
        "train.eval_every=4",
        "train.checkpoint_every=2",
    ]
    free += ["train.keep_last=1", "train.micro_batch=2", "train.grad_accum=2", "logger=none"]
    free += [
        "train.checkpoint_every=2",
        "train.on_nonfinite=skip",
        "train.spike_factor=3",
    ]
    run = SmallRun(tmp_path, *common, *free).finish()
    assert "resuming" in run.out
    assert "micro_batch was 4, is 2: the run goes on, but not bit for bit" in run.out
    assert newest_step(run.root) == 6


def test_other_text_in_the_same_files_and_another_tokenizer_are_refused(texts, tmp_path):
    mine = write_corpus(tmp_path / "mine.jsonl", 60, seed=3)
    common = ["name=mine", f"data.files=[{mine}]", "data.val_fraction=0.1"]
    run = SmallRun(tmp_path, *common, "train.max_steps=2").finish()
    tokenizer = run.root / "tokenizer"
    kept = {path.name: path.read_bytes() for path in tokenizer.iterdir()}
    SmallRun(tmp_path, "name=other", *data(texts, "small"), "tokenizer.vocab_size=280", "train.max_steps=1").finish()
    for path in (tmp_path / "other" / "tokenizer").iterdir():
        (tokenizer / path.name).write_bytes(path.read_bytes())
    run = SmallRun(tmp_path, *common, "train.max_steps=3")
    assert run.wait() == 2
    assert len(run.err.splitlines()) == 1
    assert "tokenizer" in run.err
    for name, content in kept.items():
        (tokenizer / name).write_bytes(content)
    write_corpus(mine, 60, seed=4)
    run = SmallRun(tmp_path, *common, "train.max_steps=3")
    assert run.wait() == 2
    assert len(run.err.splitlines()) == 1
    assert "mine.jsonl is not what the run has read of it" in run.err
    write_corpus(mine, 60, seed=3)
    SmallRun(tmp_path, *common, "train.max_steps=3").finish()


def test_a_run_that_an_older_version_saved_goes_on(texts, tmp_path):
    """Its configuration holds what Hydra had composed: keys without values are not there."""
    common = [*data(texts, "large"), "name=mine"]
    run = SmallRun(tmp_path, *common, "train.max_steps=3").finish()
    older = load_config("train", [word for word in run.argv if "max_steps" not in word])
    del older["train"]["sampled_softmax"]  # as of a version without this option
    assert older["name"] == "mine"
    (run.root / "config.yaml").write_text(yaml.safe_dump(older))
    (saved,) = list_checkpoints(run.root)
    state = json.loads((saved / "trainer_state.json").read_text()) | {"config": older | {"name": None}}
    content = json.dumps(state).encode()
    (saved / "trainer_state.json").write_bytes(content)
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["sha256"]["trainer_state.json"] = hashlib.sha256(content).hexdigest()
    (saved / "manifest.json").write_text(json.dumps(manifest))
    run = SmallRun(tmp_path, *common, "train.max_steps=5").finish()
    assert "resuming" in run.out
    assert newest_step(run.root) == 5


def test_continued_by_its_name_it_is_the_same_to_the_bit_and_may_be_longer(texts, tmp_path):
    """Without one of the options that it was begun with."""
    common = [*data(texts, "small"), "train.max_steps=30", "train.checkpoint_every=1000"]
    whole = SmallRun(tmp_path, "name=whole", *common).finish()
    run = SmallRun(tmp_path, "name=parts", *common)
    run.wait_for_step(8)
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.err
    assert newest_step(run.root) < 30

    def by_name(*words: str) -> Program:
        program = Program("train", [f"resume={run.root}", *words], tmp_path)
        program.process.join(60)
        assert program.returncode == 0, program.err
        return program

    by_name()
    same(run, whole, 30)
    assert "train.max_steps" in by_name().out  # what would train it further
    by_name("train.max_steps=32")
    assert newest_step(run.root) == 32
