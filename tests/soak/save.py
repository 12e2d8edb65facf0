"""What a checkpoint costs: its length, how long it holds up the steps, how much it slows them meanwhile.

    python -m tests.soak.save preset=125m folder=/some/disk

Real steps of the preset on random tokens. Each round times some steps alone, then begins a save and times steps
until it is written. A save without steps and the copying of the whole state are timed, too.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from slm import cli
from slm.configuration import build, load_config
from slm.machine.hardware import share_cores
from slm.machine.record import machine_record
from slm.report import final_json, table

ROUNDS, STEPS = 3, 2


def main(argv: list[str]) -> int:
    """Print the table and the final JSON line."""
    own = dict(word.split("=", 1) for word in argv if word.startswith("folder="))
    resolved = load_config("train", [word for word in argv if not word.startswith("folder=")])
    share_cores()
    import torch

    from slm.model.checkpoint import take_snapshot, write_checkpoint
    from slm.model.transformer import LanguageModel
    from slm.train.backend import make_backend
    from slm.train.config import RunConfig
    from slm.train.environment import prepare
    from slm.train.optim.make import make_optimizer
    from slm.train.optim.state import state_tensors
    from slm.train.resolve import model_shape
    from slm.train.run.checkpointer import Checkpointer
    from slm.train.step import train_step

    config = build(RunConfig, resolved)
    environment = prepare(config.train)
    torch.manual_seed(1)
    model = LanguageModel(model_shape(config)).train()
    optimizer = make_optimizer(model, config.optim)
    backend = make_backend(model, config.train, environment)
    size = (config.train.micro_batch, config.train.seq_len + 1)
    block = np.random.default_rng(1).integers(0, model.config.vocab_size, size, dtype=np.int32)
    root = Path(tempfile.mkdtemp(dir=own.get("folder"), prefix="save-")) / "run"
    checkpointer = Checkpointer(root, model.config, lambda folder: None, keep_last=1, background=True, log=print)
    optimizer.register_step_pre_hook(lambda *_: checkpointer.before_update())

    def step() -> float:
        began = perf_counter()
        train_step(
            model,
            optimizer,
            iter([block]),
            grad_accum=1,
            grad_clip=1.0,
            lr=1e-4,
            backend=backend,
        )
        return perf_counter() - began

    def snapshot() -> Any:
        return take_snapshot(model.state_dict(), state_tensors(model, optimizer))

    try:
        step(), step()
        rounds = []
        for number in range(ROUNDS):
            alone = statistics.median(step() for _ in range(STEPS))
            began = perf_counter()
            checkpointer.save(number, snapshot(), {"validation": {}})
            during = []
            while checkpointer.busy:
                during.append(step())
            length, steps = perf_counter() - began, len(during)
            checkpointer.wait()
            began = perf_counter()
            write_checkpoint(root / "alone", model.config, snapshot(), lambda folder: None, state={})
            by_itself = perf_counter() - began
            began = perf_counter()
            whole = snapshot()
            whole.detach()
            copy = perf_counter() - began
            rounds.append(
                {
                    "step_s": alone,
                    "save_alone_s": by_itself,
                    "save_beside_s": checkpointer.write_s,
                    "stall_s": checkpointer.stalled_s,
                    "stall_share": checkpointer.stalled_s / by_itself,
                    "steps_beside": steps,
                    "slower_by_s": length - steps * alone,
                    "copy_of_everything_s": copy,
                    "bytes": whole.nbytes,
                }
            )
            del whole
            print(f"round {number + 1}: " + ", ".join(f"{k} {v:,.3f}" for k, v in rounds[-1].items()), flush=True)
    finally:
        checkpointer.wait()
        shutil.rmtree(root.parent)
    names = list(rounds[0])
    rows = [
        [name, *(f"{each[name]:,}" if name == "bytes" else f"{each[name]:.3f}" for each in rounds)] for name in names
    ]
    table(f"{config.preset}: a checkpoint during training", ["", *map(str, range(1, ROUNDS + 1))], rows)
    medians = {name: statistics.median(each[name] for each in rounds) for name in names}
    final_json({"preset": config.preset, **medians, **machine_record()})
    return 0


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
