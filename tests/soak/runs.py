"""Small real training runs, each a process of its own that begins with everything imported.

Starting Python and torch takes seconds; the standard library's fork server has both in memory and starts a process
in milliseconds. Such a process can be killed like any other.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

from slm.runs import list_checkpoints

os.environ.setdefault("OMP_NUM_THREADS", "1")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "train.loop", "train.__main__", "hydra", "slm.checkpoint", "train.memory"])

OPTIONS = (
    "preset=tiny",
    "data=local",
    "data.shuffle_buffer=16",
    "tokenizer.vocab_size=300",
    "model.n_layers=1",
    "model.d_model=256",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.ffn_dim=256",
    "train.seq_len=32",
    "train.micro_batch=4",
    "train.eval_every=1000000",
    "train.eval_blocks=4",
    "train.log_every=1",
    "train.compile=false",
    "train.precision=f32",
    "train.threads=1",
    "train.workers=0",
    "train.sample_tokens=4",
    "optim.warmup_steps=2",
)


def write_corpus(path: Path, documents: int = 400, seed: int = 11) -> Path:
    """A JSON Lines file of short documents."""
    chance = random.Random(seed)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "hill", "and", "saw", "big", "small", "red", "tree"]
    lines = [json.dumps({"text": " ".join(chance.choices(words, k=chance.randint(20, 60)))}) for _ in range(documents)]
    path.write_text("\n".join(lines) + "\n")
    return path


class SmallRun:
    """``python -m train`` with :data:`OPTIONS` and ``overrides``, started by the fork server.

    ``logs``: where its output goes, if not beside the runs. ``prepare``: a function of an importable module that the
    process calls first. ``session``: the process leads a group of its own, as a shell's foreground job does.
    """

    def __init__(
        self,
        runs: Path,
        *overrides: str,
        logs: Path | None = None,
        prepare: Callable[[], None] | None = None,
        session: bool = False,
    ) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        name = next((word[5:] for word in overrides if word.startswith("name=")), "tiny")
        self.root, logs = runs / name, logs or runs
        self._out, self._err = logs / f".{name}.out", logs / f".{name}.err"
        for path in (self._out, self._err):
            path.unlink(missing_ok=True)
        argv = [*OPTIONS, f"runs_dir={runs}", *overrides]
        self.process = CONTEXT.Process(target=_child, args=(argv, str(self._out), str(self._err), prepare, session))
        self.process.start()

    def wait(self, timeout: float = 120) -> int:
        """The exit code; minus the signal's number where one ended the process."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"the run did not end within {timeout} s\n{self.out}\n{self.err}")
        return self.process.exitcode

    def finish(self) -> "SmallRun":
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.out}\n{self.err}"
        return self

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.process.kill()
        self.process.join()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def alive(self) -> bool:
        return self.process.is_alive()

    def wait_for(self, happened, timeout: float = 60) -> None:
        """Wait until ``happened()`` is true; fails where the run ends before."""
        deadline = time.monotonic() + timeout
        while not happened():
            assert self.alive(), f"the run ended early\n{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"it did not happen in {timeout} s\n{self.out}\n{self.err}"
            time.sleep(0.001)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: last_step(self.root) >= step)

    def wait_for_checkpoint(self, step: int) -> None:
        self.wait_for(lambda: newest_step(self.root) >= step)

    @property
    def out(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""


def _child(argv: list[str], out: str, err: str, prepare: Callable[[], None] | None, session: bool) -> None:
    if session:
        os.setsid()
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import sys

    sys.stdout.reconfigure(line_buffering=True)
    if prepare is not None:
        prepare()
    from slm import cli
    from train.__main__ import main

    cli.run(main, argv)


def records(root: Path) -> list[dict]:
    """The whole lines of ``metrics.jsonl``."""
    path = root / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.endswith(b"}")]


def losses(root: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in records(root) if "lr" in record}


def last_step(root: Path) -> int:
    return max(losses(root), default=0)


def newest_step(root: Path) -> int:
    """The newest checkpoint's step; 0 without one."""
    found = list_checkpoints(root)
    return int(found[-1].name[5:]) if found else 0


def differences(a: Path, b: Path) -> list[str]:
    """Names of the tensors (weights, moments, random state) in which two checkpoints differ by a bit."""
    found = []
    for file in ("model.safetensors", "optimizer.safetensors"):
        left, right = load_file(a / file), load_file(b / file)
        found += sorted(left.keys() ^ right.keys())
        found += [key for key in left.keys() & right.keys() if not left[key].equal(right[key])]
    return found
