"""The settings of one model's engine: what the server's options say, and what they leave open."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from slm.serve.config import ServerOptions
from slm.serve.engine.config import EngineConfig, EngineOptions
from slm.serve.pool.autotune import slots_for, tuned_for
from slm.serve.pool.memory_plan import read_facts
from slm.serve.pool.model_files import resolve_model


def engine_config(options: ServerOptions, model_path: Path) -> EngineConfig:
    """The engine's configuration for a model file. What ``options`` leave at 0 is chosen for the file and the machine.

    The first time for a model of some size, this measures the machine for some seconds (see ``autotune.tuned_for``).
    Raises ``UserError`` for a damaged file, and for options that are out of range or contradict each other.
    """
    facts = read_facts(model_path)
    all_given = options.threads and options.batch and options.ubatch and options.prefill_chunk
    mode = "off" if all_given else options.tune_mode
    tuned = tuned_for(model_path, facts, mode, n_gpu_layers=options.n_gpu_layers)
    batch = options.batch or max(tuned.batch, options.slots)
    n_fitting = slots_for(facts, context=facts.context(options.context), kv_type=options.kv_type)
    shared = {each.name: getattr(options, each.name) for each in fields(EngineOptions)}
    chosen = {
        "threads": options.threads or tuned.threads,
        "slots": options.slots or min(batch, n_fitting),
        "batch": batch,
        "ubatch": options.ubatch or min(tuned.ubatch, batch),
        "prefill_chunk": options.prefill_chunk or tuned.prefill_chunk,
        "draft_model": resolve_model(options.draft_model)[0] if options.draft_model is not None else None,
    }
    return EngineConfig(model_path=model_path, **(shared | chosen))
