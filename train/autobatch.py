"""``train.micro_batch=auto``: the micro-batch that trains fastest here, measured once per machine and model shape.

The sequences of an optimizer step stay what the preset gives; they are only divided differently into passes.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text, cache_home
from slm.machine.crashes import DiedError, in_fresh_process
from slm.machine.memory import available_bytes
from slm.machine.record import machine_record, sources_fingerprint
from slm.machine.waiting import wait_awake
from slm.runs import list_checkpoints, saved_config
from slm.train.config import RunConfig
from slm.train.resolve import model_shape

CANDIDATES = (1, 2, 4, 8, 16, 32)
SPARE = 2
"""A micro-batch is tried where this many times its activations fit."""
SMALLER_WINS = 0.98
"""A smaller micro-batch with this share of the best rate is taken: it needs less memory."""


def cache_path() -> Path:
    """Where the measured choices are kept."""
    return cache_home() / "micro_batch.json"


def kept_choices() -> dict[str, int]:
    """The measured choices by machine and model shape; empty where the file cannot be read: it is measured anew."""
    try:
        return dict(json.loads(cache_path().read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def choose_micro_batch(config: RunConfig) -> RunConfig:
    """``config`` with the micro-batch that is fastest here, and as many passes as a step's sequences then need.

    A run that exists keeps the numbers that it began with. UserError where several processes train together.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("train.micro_batch=auto works only with one process: give a number")
    if kept := _kept(config):
        return kept
    sequences = config.train.micro_batch * config.train.grad_accum
    chosen = divided(config, sequences, _best(config, sequences))
    numbers = f"train.micro_batch={chosen.train.micro_batch} train.grad_accum={chosen.train.grad_accum}"
    print(f"{numbers} (measured; kept in {cache_path()})", flush=True)
    return chosen


def divided(config: RunConfig, sequences: int, micro_batch: int) -> RunConfig:
    """``config`` with ``sequences`` per optimizer step, ``micro_batch`` of them in a pass."""
    return replace(config, train=replace(config.train, micro_batch=micro_batch, grad_accum=sequences // micro_batch))


def _kept(config: RunConfig) -> RunConfig | None:
    """``config`` with the numbers that the run of this name was started with; None where there is no such run."""
    # Without a checkpoint there is nothing to go on from, and the file may be that of a start with other settings.
    if config.resume == "never" or not list_checkpoints(config.root):
        return None
    saved = saved_config(config.root).get("train")
    if not saved:
        return None
    kept = replace(config.train, micro_batch=saved["micro_batch"], grad_accum=saved["grad_accum"])
    return replace(config, train=kept)


def _best(config: RunConfig, sequences: int) -> int:
    machine = machine_record()
    shape = dict(vars(model_shape(config)))
    train = config.train
    choices = (train.threads, train.precision, train.kernels, train.gradient_checkpointing)
    software = (machine["versions"].get("torch"), sources_fingerprint())
    facts = [machine["cpu"], machine["cores"], software, shape, train.seq_len, sequences, *choices]
    key = json.dumps(facts, sort_keys=True, default=str)
    cache = cache_path()
    known = kept_choices()
    if key not in known:
        known[key] = _measure(config, sequences)
        cache.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(cache, json.dumps(known, indent=1))
    return known[key]


def _measure(config: RunConfig, sequences: int) -> int:
    """The micro-batch of the best rate, each tried in its own process so that their memory does not add up."""
    rates: dict[int, float] = {}
    for micro_batch in CANDIDATES:
        if sequences % micro_batch:
            continue
        try:
            rate = in_fresh_process(_rate, divided(config, sequences, micro_batch))
        except DiedError:  # killed by Linux for want of memory
            rate = None
        if rate is None:
            print(f"  micro-batch {micro_batch}: does not fit into memory", flush=True)
            break
        print(f"  micro-batch {micro_batch}: {rate:,.0f} tokens/s", flush=True)
        rates[micro_batch] = rate
        if rate < 0.9 * max(rates.values()):
            break
    if not rates:
        raise UserError(
            "train.micro_batch=auto: not one sequence fits into memory; take a smaller model or train.seq_len"
        )
    return min(size for size, rate in rates.items() if rate >= SMALLER_WINS * max(rates.values()))


def _rate(config: RunConfig) -> float | None:
    """Tokens per second of forward and backward passes; None where memory is too small."""
    wait_awake()  # as training does
    import torch

    from slm.model.transformer import LanguageModel
    from slm.train.backend import attention_bytes, make_backend
    from slm.train.environment import prepare

    train = config.train
    shape = model_shape(config)
    environment = prepare(train, bits=config.kernel_bits)
    tokens, value_bytes = train.micro_batch * train.seq_len, 2 if environment.precision == "bf16" else 4
    activations = shape.activation_bytes(tokens, recompute=train.recompute, value_bytes=value_bytes)
    attention = attention_bytes(shape, train, environment, masked=train.mask_documents)
    if shape.training_state_bytes + SPARE * activations + attention > available_bytes():
        return None
    backend = make_backend(LanguageModel(shape).train(), train, environment)
    ids_BT = torch.randint(0, shape.vocab_size, (train.micro_batch, train.seq_len))
    passes, seconds = 0, 0.0
    backend.gradients(ids_BT, ids_BT, 1.0)
    while passes < 2 or seconds < 2:
        began = perf_counter()
        backend.gradients(ids_BT, ids_BT, 1.0)
        passes, seconds = passes + 1, seconds + perf_counter() - began
    return passes * ids_BT.numel() / seconds
