"""The other contender: Hugging Face's Trainer on a Llama of our shape, AdamW and a cosine over the time there is.

``python -m slm.train.bench_recipe.hf_trainer SPEC.json`` is the process that is timed. It reads the same text through
our loader, and trains its own tokenizer of the same kind.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slm.configuration import build, to_dict
from slm.report import duration
from slm.train.bench_recipe import hugging_face
from slm.train.bench_recipe.config import BenchRecipeConfig, run_options
from slm.train.bench_recipe.contender import Entry, fresh_cache, passes_of_a_step, python_module, step_note, timed
from slm.train.config import EAGER, RunConfig
from slm.train.interrupt import Interrupt
from slm.train.run.run_state import SET_UP_TOOK

BETAS, WEIGHT_DECAY, WARMUP, FLOOR = (0.9, 0.95), 0.1, 0.03, 0.1
"""AdamW's; the share of the time in which the rate rises; the last rate as a share of the peak."""
TRAINER = "trainer"
"""Its own folder."""
SAVING_SECONDS = 3.0
"""Kept for the end of the process."""


def hf_trainer(config: BenchRecipeConfig, lr: float, folder: Path, tokens: int | None = None) -> Entry:
    """Train at the peak rate ``lr`` in its own process that ends after ``config.minutes``.

    ``tokens``: of a step; None: as many as ours. A run that was stopped in ``folder`` goes on.
    """
    name = f"hf_trainer-{lr:g}" + (f"-{tokens}" if tokens else "")
    out = folder / name
    out.mkdir(exist_ok=True)
    spec = {
        "config": to_dict(its_options(config, tokens)),
        "lr": lr,
        "seconds": 60 * config.minutes,
        "out": str(out),
    }
    (out / "spec.json").write_text(json.dumps(spec))
    with fresh_cache(folder) as environment:
        command = python_module("slm.train.bench_recipe.hf_trainer", str(out / "spec.json"))
        log = folder / f"{name}.log"
        seconds = timed(command, log, environment=environment, minutes=config.minutes, continues=True)
    result = json.loads((out / "result.json").read_text())
    note = f"AdamW at {lr:g}{step_note(tokens)}"
    return Entry("hf_trainer", out, result["tokens"], seconds, result["training_seconds"], note)


def its_options(config: BenchRecipeConfig, tokens: int | None = None) -> RunConfig:
    """Our run's options with the vocabulary that the Trainer is given, and steps of ``tokens`` (None: ours)."""
    run = RunConfig(**run_options(config))
    if (vocab := config.bench.trainer_vocab) is not None:
        run = replace(run, tokenizer=replace(run.tokenizer, vocab_size=vocab))
    if tokens is not None:
        in_a_pass, passes = passes_of_a_step(tokens, run.train)
        run = replace(run, train=replace(run.train, micro_batch=in_a_pass, grad_accum=passes))
    return run


def available() -> str | None:
    """Why the Trainer cannot be run here; None where it can."""
    from importlib.util import find_spec

    missing = [name for name in ("transformers", "accelerate") if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed; pip install 'slm[dev]'" if missing else None


@dataclass
class Part:
    """How far a run was when a signal stopped it. Nothing of it is there before that."""

    steps: int = 0
    seconds: float = 0.0
    """Seconds of training."""
    limit: float = 0.0
    """Seconds of training that the set-up of its first start left it."""

    @classmethod
    def read(cls, out: Path) -> "Part":
        file = out / "part.json"
        return cls(**json.loads(file.read_text())) if file.exists() else cls()

    def write(self, out: Path) -> None:
        (out / "part.json").write_text(json.dumps(asdict(self)))

    def checkpoint(self, out: Path) -> Path:
        """The Trainer's, of weights, optimizer and position."""
        return out / TRAINER / f"checkpoint-{self.steps}"


def main(spec: dict[str, Any], started: float) -> int:
    """Train as ``spec`` says until its seconds are over, counted from ``started`` (``time.time``), or until a signal.

    Returns the exit code. A run that was stopped in ``spec["out"]`` goes on.
    """
    config, out = build(RunConfig, spec["config"]), Path(spec["out"])
    train = config.train
    import torch
    import transformers

    from slm.data.sources.documents import sample_documents
    from slm.data.stream.loader import Loader
    from slm.data.tokenizers.make import make_tokenizer
    from slm.machine.cpp_build import torch_compile_lacks
    from slm.machine.hardware import n_threads

    torch.set_num_threads(train.threads or n_threads())
    torch.manual_seed(train.seed)
    tokenizer = make_tokenizer(
        config.tokenizer,
        lambda: sample_documents(config.data, "train", config.tokenizer.sample_bytes, train.seed),
    )
    spec_of_model = replace(config.model, arch="llama")
    shape = spec_of_model.model_config(vocab_size=tokenizer.vocab_size, seq_len=train.seq_len, eos_id=tokenizer.eot_id)
    model = hugging_face.new_model(shape)
    loader = Loader(
        config.data,
        tokenizer,
        seq_len=train.seq_len,
        micro_batch=train.micro_batch,
        seed=train.seed,
        workers=train.workers,
    )

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for block in loader:
                for row in torch.from_numpy(block[:, :-1].astype("int64")):
                    yield {"input_ids": row, "labels": row}

    part = Part.read(out)
    if not part.steps:
        set_up = time.time() - started
        part.limit = spec["seconds"] - SAVING_SECONDS - set_up
        if part.limit <= 0:
            sys.exit(f"error: {SET_UP_TOOK} {duration(set_up)}, and saving takes {duration(SAVING_SECONDS)} more")
    began = time.time()
    steps = part.steps

    def spent() -> float:
        return part.seconds + time.time() - began

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal began
            if part.steps and steps == part.steps:  # it has read the text up to here again
                began = time.time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal steps
            steps += 1
            control.should_save = bool(interrupt)
            control.should_training_stop = bool(interrupt) or spent() >= part.limit

    def shape_of_rate(_: int) -> float:
        progress = min(1.0, spent() / part.limit)
        if progress < WARMUP:
            return max(progress / WARMUP, 1e-3)
        return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))

    decayed = [p for p in model.parameters() if p.ndim >= 2]
    kept = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=spec["lr"], betas=BETAS, fused=True)
    trainer = hugging_face.make_trainer(
        model,
        Rows(),
        train,
        out / TRAINER,
        callback=Clock(),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, shape_of_rate)),
        torch_compile=train.kernels != EAGER and torch_compile_lacks() is None,
        max_steps=10**9,
        max_grad_norm=1.0,
        seed=train.seed,
    )
    with Interrupt() as interrupt:
        trainer.train(resume_from_checkpoint=str(part.checkpoint(out)) if part.steps else None)
    seconds = spent()
    loader.close()
    if interrupt:
        Part(steps=steps, seconds=seconds, limit=part.limit).write(out)
        return interrupt.exit_code
    model.save_pretrained(out)
    tokenizer.save(out)
    result = {"tokens": steps * train.tokens_per_step, "training_seconds": seconds}
    (out / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    import psutil

    sys.exit(main(json.loads(Path(sys.argv[1]).read_text()), psutil.Process().create_time()))
