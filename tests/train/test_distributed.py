"""Several processes train one model: the same losses, exact resume, one end for all."""

import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slm.runs import list_checkpoints
from tests.helpers import REPOSITORY, train_faults
from tests.helpers.programs import Program
from tests.helpers.ranks import fork_ranks
from tests.helpers.small_run import write_corpus

PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]
COMMON = (
    "preset=tiny",
    "data=local",
    "data.shuffle_buffer=16",
    "tokenizer.vocab_size=300",
    "model.n_layers=2",
    "model.d_model=256",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.ffn_dim=256",
    "train.seq_len=32",
    "train.micro_batch=2",
    "train.grad_accum=4",
    "train.max_steps=8",
    "train.eval_every=4",
    "train.eval_blocks=6",
    "train.checkpoint_every=3",
    "train.keep_last=9",
    "train.precision=f32",
    "train.threads=1",
    "train.sample_prompts=[]",
    "optim.warmup_steps=2",
)
TWO = "train.workers=1"
ONE = "train.workers=2"
"""Two processes with one reader each read what one process with two readers does."""


@pytest.fixture
def words(corpus, tmp_path):
    """The arguments of a small run under ``tmp_path``."""

    def arguments(name: str, *overrides: str, runs: Path = tmp_path) -> list[str]:
        return [*COMMON, f"data.files=[{corpus}]", f"runs_dir={runs}/runs", f"name={name}", *overrides]

    return arguments


def start(command: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen | Program) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=180)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode, out, err


def run(process: subprocess.Popen | Program) -> tuple[str, str]:
    code, out, err = finish(process)
    assert code == 0, out + err
    return out, err


def one(arguments: list[str]) -> Program:
    return Program("slm.train", arguments, output_of(arguments))


def two(arguments: list[str], *options: str, prepare: Callable[[], None] = fork_ranks) -> Program:
    words = ["nproc=2", *options, *arguments]
    return Program("slm.train.distributed.launch", words, output_of(arguments), prepare=prepare)


def output_of(arguments: list[str]) -> Path:
    """The folder of the runs, made where there is none yet."""
    folder = Path(next(word for word in arguments if word.startswith("runs_dir=")).removeprefix("runs_dir="))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def records(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]


def losses(root: Path) -> list[float]:
    return [each["loss"] for each in records(root) if "loss" in each]


def same_state(a: Path, b: Path) -> None:
    """Weights, moments and random states of two checkpoints are equal to the bit."""
    for name in ("model.safetensors", "optimizer.safetensors"):
        left, right = load_file(a / name), load_file(b / name)
        assert left.keys() == right.keys()
        for key in left:
            assert torch.equal(left[key], right[key]), key


def wait_for_steps(root: Path, steps: int, process: subprocess.Popen | Program) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (root / "metrics.jsonl").exists() and len(losses(root)) >= steps:
            return
        time.sleep(0.05)
    pytest.fail(f"not at step {steps}: {finish(process)}")


def ranks_of(process: subprocess.Popen | Program) -> list[int]:
    """Process ids of the ranks that a launcher has started."""
    import psutil

    return sorted(child.pid for child in psutil.Process(process.pid).children())


@pytest.fixture(scope="module")
def pair(corpus, tmp_path_factory) -> tuple[Path, str]:
    """A finished run of two processes, started by plain torchrun, and what it printed."""
    folder = tmp_path_factory.mktemp("pair")
    arguments = [*COMMON, f"data.files=[{corpus}]", f"runs_dir={folder}", "name=pair", TWO]
    out, _ = run(
        start([*TORCHRUN, "--standalone", "--nproc-per-node=2", f"--log-dir={folder}", "-m", "slm.train", *arguments])
    )
    return folder / "pair", out


# What is computed.


def test_two_processes_compute_what_one_does(pair, words, tmp_path):
    root, printed = pair
    run(one(words("one", ONE)))
    alone = tmp_path / "runs" / "one"
    assert losses(root) == pytest.approx(losses(alone), rel=1e-4)
    for ours, theirs in zip(records(root), records(alone), strict=True):
        assert ours["tokens"] == theirs["tokens"]
        if "val_loss" in ours:
            assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-4)
            assert ours["val_bits_per_byte"] == pytest.approx(theirs["val_bits_per_byte"], rel=1e-4)
    assert "in each of 2 processes" in printed
    assert printed.count("parameters, vocabulary") == 1  # one rank speaks
    assert printed.count("saved") == 3


@pytest.mark.parametrize("shard", ["false", "true"])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(shard, pair, words, tmp_path):
    """Also where its optimizer state is sharded from there on: the checkpoints are the same files."""
    parts = tmp_path / "runs" / "pair"
    shutil.copytree(pair[0], parts)
    for step in (6, 8):
        shutil.rmtree(parts / "checkpoints" / f"step-{step:08d}")
    out, _ = run(two(words("pair", TWO, f"train.shard_optimizer={shard}")))
    assert "step-00000003" in out
    assert losses(parts) == losses(pair[0])
    for step in (6, 8):
        name = f"checkpoints/step-{step:08d}"
        same_state(parts / name, pair[0] / name)


def test_muon_and_its_quantization_are_the_same_in_two_processes_in_one_and_with_its_state_divided(words, tmp_path):
    """Muon; the last half of the run on quantized weights."""
    muon = (
        "optim=muon",
        "train.qat=q4_k",
        "+components.quantization.share=0.5",
        "+components.quantization.least_steps=0",
    )
    out, _ = run(two(words("pair", TWO, *muon)))
    assert "a q4_k_m file" in out
    assert "had drifted apart" not in out
    run(one(words("one", ONE, *muon)))
    run(two(words("shared", TWO, *muon, "train.shard_optimizer=true")))
    runs = tmp_path / "runs"
    assert losses(runs / "pair")[:4] == pytest.approx(losses(runs / "one")[:4], rel=1e-3)
    assert losses(runs / "pair") == pytest.approx(
        losses(runs / "one"), rel=0.01
    )  # a weight is rounded up here, down there
    assert losses(runs / "pair")[-1] < losses(runs / "pair")[0] - 0.5
    assert losses(runs / "shared") == losses(runs / "pair")
    last = "checkpoints/step-00000008"
    for step in (3, 8):
        name = f"checkpoints/step-{step:08d}"
        same_state(runs / "shared" / name, runs / "pair" / name)
    blocks = [load_file(runs / name / last / "qat.safetensors") for name in ("pair", "shared")]
    assert blocks[0].keys() == blocks[1].keys()
    assert all(torch.equal(blocks[0][name], blocks[1][name]) for name in blocks[0])


def test_weights_that_begin_as_bigrams_are_the_same_in_two_processes_and_in_one(words, tmp_path):
    """Rank 0 counts, and all have what it counted."""
    counted = ("model.tie_embeddings=false", "optim.init_bigrams=4000", "train.max_steps=2")
    out, _ = run(two(words("pair", TWO, *counted)))
    assert out.count("begin as a model of 4,000 pairs") == 1
    assert "had drifted apart" not in out
    run(one(words("one", ONE, *counted)))
    runs = tmp_path / "runs"
    assert losses(runs / "pair") == pytest.approx(losses(runs / "one"), rel=1e-4)
    assert losses(runs / "pair")[0] < 0.9 * math.log(300)  # what a model that knows nothing loses


def test_another_number_of_processes_is_refused_or_says_what_is_lost(pair, words, tmp_path):
    root = tmp_path / "runs" / "pair"
    shutil.copytree(pair[0], root)
    code, _, err = finish(one(words("pair", TWO, "train.max_steps=10")))
    assert code == 2
    assert "saved by 2 processes" in err
    assert "resume=reshard" in err
    assert len(err.strip().splitlines()) == 1, err
    run(one(words("pair", TWO, "train.max_steps=10", "resume=reshard")))
    assert len(losses(root)) == 10
    assert losses(root)[8] < losses(root)[0] - 1  # the weights were kept


@pytest.mark.slow
def test_compiled_bf16_processes_stay_within_its_noise(words, tmp_path):
    """A compiled layer, bf16 products and bf16 sums over the ranks against plain f32."""
    small = ("model.n_layers=1", "train.max_steps=5", "train.eval_every=100")
    run(two(words("compiled", TWO, *small, "train.kernels=false", "train.precision=bf16", "train.reduce=bf16")))
    run(one(words("plain", ONE, *small)))
    assert losses(tmp_path / "runs" / "compiled") == pytest.approx(losses(tmp_path / "runs" / "plain"), rel=0.03)


# How it ends.


def test_a_hangup_of_one_rank_and_checkpoints_by_time_are_agreed_on(words, tmp_path):
    """Every rank decides by rank 0's time: one that saved at another step than the others would wait for ever."""
    root = tmp_path / "runs" / "often"
    often = words("often", TWO, "train.max_steps=500", "train.eval_every=4000", "train.checkpoint_every=4000")
    process = two(often, prepare=functools.partial(train_faults.save_often, 0.06, fork_ranks))
    wait_for_steps(root, 20, process)
    os.kill(ranks_of(process)[-1], signal.SIGHUP)
    code, out, err = finish(process)
    assert code == 129, out + err
    assert "Traceback" not in err
    assert out.count(": saved ") > 1
    assert len(losses(root)) == int(list_checkpoints(root)[-1].name[5:])


def test_after_a_killed_process_the_run_goes_on_by_itself_and_a_signal_to_the_launcher_stops_all_at_the_same_step(
    pair, words, tmp_path, monkeypatch
):
    root, temporary = tmp_path / "runs" / "killed", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = two(words("killed", TWO, "train.max_steps=500", "train.eval_every=500"))
    wait_for_steps(root, 5, process)
    os.kill(ranks_of(process)[-1], signal.SIGKILL)
    wait_for_steps(root, 40, process)  # the records of what is computed again are dropped first
    before = len(process.err)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 143, out + err
    assert "Traceback" not in err[before:]
    assert f"stopped at step {len(losses(root))}" in out
    assert "restart 1: a process of this run had ended" in out
    assert f"resuming {root} from step-" in out
    # Schedules of another length have other rates after the warm-up, so only its steps are the pair's.
    assert losses(root)[:2] == losses(pair[0])[:2]
    assert len(losses(root)) == int(list_checkpoints(root)[-1].name[5:])
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []


def test_a_signal_in_the_last_validation_stops_all(words, tmp_path):
    text = write_corpus(tmp_path / "much.jsonl", 3000)
    long = ("train.eval_blocks=100000", "data.val_fraction=0.5", "train.eval_every=100", "train.max_steps=4")
    process = two(words("last", TWO, *long, f"data.files=[{text}]"))
    root = tmp_path / "runs" / "last"
    wait_for_steps(root, 4, process)
    process.send_signal(signal.SIGINT)  # in the step's end or in the validation: both must stop all
    code, out, err = finish(process)
    assert code == 130, out + err
    assert "stopped at step 4" in out
    assert not [each for each in records(root) if "val_loss" in each]


def test_a_loss_that_is_not_finite_stops_all_with_one_line(words, tmp_path):
    code, out, err = finish(two(words("burst", TWO, "optim=adamw", "optim.lr=1e30", "optim.grad_clip=0")))
    assert code == 2, out + err
    assert err.count("stopped before the update") == 1
    assert "Traceback" not in err


def test_mistakes_are_told_once_before_anything_starts(words):
    code, out, err = finish(two(words("odd", TWO, "train.grad_accum=3")))
    assert (code, out) == (2, "")
    assert "train.grad_accum=3 cannot be divided over 2 processes: use train.micro_batch=1 train.grad_accum=6" in err
    assert len(err.strip().splitlines()) == 1, err
    code, out, err = finish(two(words("nothing", TWO, "data.files=[/nowhere.txt]"), "restarts=0"))
    assert code == 2, out + err
    assert err.count("/nowhere.txt") == 1
    assert len(err.strip().splitlines()) == 1, err
    code, out, err = finish(two(words("untaught", TWO, "distill.teacher=/nowhere")))  # every process looks for it
    assert code == 2, out + err
    assert err.count("/nowhere does not exist") == 1
    assert len(err.strip().splitlines()) == 1, err


# Two machines: network namespaces, joined by a virtual cable.


@pytest.fixture
def hosts():
    """Names and addresses of two network namespaces; gone afterwards."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    tag = f"slm{os.getpid()}"
    names, addresses = (f"{tag}a", f"{tag}b"), ("10.231.7.10", "10.231.7.9")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "name", "cable1", "netns", names[1])
        for index, (name, address) in enumerate(zip(names, addresses, strict=True)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", f"cable{index}")
            ip("-n", name, "link", "set", f"cable{index}", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    yield list(zip(names, addresses, strict=True))
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def on(hosts, index: int, arguments: list[str]) -> subprocess.Popen:
    """The run's command on one of two machines; the first keeps the run."""
    command = [PYTHON, "-m", "slm.train.distributed.launch", "nnodes=2", f"main={hosts[0][1]}", *arguments]
    return start(["ip", "netns", "exec", hosts[index][0], *command])


def test_two_machines_compute_what_one_does_and_a_signal_on_one_stops_both(hosts, pair, words, tmp_path):
    """The machine named by main= keeps the run, whatever torchrun's order; the other needs none of its files."""
    folders = (tmp_path / "a", tmp_path / "b")
    long = ("train.max_steps=500", "train.eval_every=4000", "train.checkpoint_every=4000")
    processes = [on(hosts, index, words("stopped", TWO, *long, runs=folder)) for index, folder in enumerate(folders)]
    root = folders[0] / "runs" / "stopped"
    wait_for_steps(root, 3, processes[0])
    processes[1].send_signal(signal.SIGINT)
    for process in processes:
        code, out, err = finish(process)
        assert code == 130, out + err
    # Schedules of another length have other rates after the warm-up, so only its steps are the pair's.
    assert losses(root)[:2] == losses(pair[0])[:2]
    (saved,) = list_checkpoints(root)
    assert len(losses(root)) == int(saved.name[5:])
    assert not (folders[1] / "runs").exists()
