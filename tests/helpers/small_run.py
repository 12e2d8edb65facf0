"""Small real training runs, each its own process (tests/helpers/programs.py), and what they leave behind."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

from slm.runs import list_checkpoints
from tests.helpers.programs import Program

QUICK = ("train.kernels=eager", "train.precision=f32", "train.threads=1", "train.workers=0")
"""No compiler, no measurement, one process: for runs whose question is not how they compute."""
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
    "train.eval_blocks=4",
    *QUICK,
    "train.sample_prompts=[]",
    "optim=adamw",  # half of a step's time is Muon's: tests whose question it is name it
    "optim.warmup_steps=2",
)


SAMPLES = "train.sample_prompts=['Once upon a time']"
"""For runs that show what they write."""


def write_corpus(path: Path, documents: int = 400, seed: int = 11) -> Path:
    """A JSON Lines file of short documents."""
    chance = random.Random(seed)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "hill", "and", "saw", "big", "small", "red", "tree"]
    lines = [json.dumps({"text": " ".join(chance.choices(words, k=chance.randint(20, 60)))}) for _ in range(documents)]
    path.write_text("\n".join(lines) + "\n")
    return path


class SmallRun(Program):
    """``python -m slm.train`` with ``OPTIONS`` and ``overrides``; validated only where ``overrides`` say so.

    ``logs``: where its output goes, if not next to the runs. The others are ``Program``'s.
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
        self.root = runs / name
        self.argv = [*OPTIONS, "train.eval_every=1000000", f"runs_dir={runs}", *overrides]
        super().__init__("train", self.argv, logs or runs, prepare=prepare, session=session)

    def wait(self, timeout: float | None = 120) -> int:
        self.process.join(timeout)
        if self.returncode is None:
            self.process.kill()
            raise AssertionError(f"the run did not end within {timeout} s\n{self.out}\n{self.err}")
        return self.returncode

    def finish(self) -> "SmallRun":
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.out}\n{self.err}"
        return self

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.process.kill()
        self.process.join()

    def alive(self) -> bool:
        return self.process.is_alive()

    def wait_for(self, happened, timeout: float = 60) -> None:
        """Wait until ``happened()`` is true; fails where the run ends before, and kills it where it takes longer."""
        deadline = time.monotonic() + timeout
        while not happened():
            if not self.alive() or time.monotonic() > deadline:
                what = "the run ended early" if not self.alive() else f"it did not happen in {timeout} s"
                self.kill()  # or it would take a core from the tests that follow
                raise AssertionError(f"{what}\n{self.out}\n{self.err}")
            # Before the first step, waiting takes no core from the run. Afterwards a step may last 5 ms.
            time.sleep(0.002 if (self.root / "metrics.jsonl").exists() else 0.02)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: last_step(self.root) >= step)

    def wait_for_checkpoint(self, step: int) -> None:
        self.wait_for(lambda: newest_step(self.root) >= step)


def records(root: Path) -> list[dict]:
    """The whole lines of ``metrics.jsonl``."""
    path = root / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.endswith(b"}")]


def losses(root: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in records(root) if "lr" in record}


def last_step(root: Path) -> int:
    """The step of the last whole training record; 0 without one. Asked again and again, so it parses no other."""
    path = root / "metrics.jsonl"
    for line in reversed(path.read_bytes().split(b"\n")[:-1] if path.exists() else []):
        if b'"lr"' in line and line.endswith(b"}"):
            return int(json.loads(line)["step"])
    return 0


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
