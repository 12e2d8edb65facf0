"""The settings of one model's engine: what the server's options say, and what they leave open."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from slm.serve.config import ServerOptions, TuneMode
from slm.serve.engine.config import EngineConfig, EngineOptions
from slm.serve.pool.autotune import Tuned, measured, slots_for, tuned_for, unknown
from slm.serve.pool.memory_plan import ModelFacts, read_facts
from slm.serve.pool.model_files import resolve_model


def engine_config(options: ServerOptions, model_path: Path) -> EngineConfig:
    """The engine's configuration for a model file. What ``options`` leave at 0 is chosen for the file and the machine.

    With ``serve.tune=force`` this measures the machine for some seconds. Raises ``UserError`` for a damaged file, and
    for options that are out of range or contradict each other.
    """
    facts = read_facts(model_path)
    tuned = tuned_for(model_path, facts, _mode(options), n_gpu_layers=options.n_gpu_layers)
    return _with(options, model_path, facts, tuned)


def wants_measuring(options: ServerOptions, model_path: Path) -> bool:
    """Whether the machine is to be measured for a model file, and has not been. Raises ``UserError``, ``OSError``."""
    return unknown(model_path, read_facts(model_path), _mode(options), n_gpu_layers=options.n_gpu_layers)


def measured_config(options: ServerOptions, model_path: Path) -> EngineConfig | None:
    """As ``engine_config``, after measuring the machine for some seconds. None where that was not possible. Raises
    ``UserError`` like ``engine_config``."""
    tuned = measured(model_path, n_gpu_layers=options.n_gpu_layers)
    return None if tuned is None else _with(options, model_path, read_facts(model_path), tuned)


def _mode(options: ServerOptions) -> TuneMode:
    return "off" if options.threads and options.batch and options.ubatch else options.tune_mode


def _with(options: ServerOptions, model_path: Path, facts: ModelFacts, tuned: Tuned) -> EngineConfig:
    batch = options.batch or max(tuned.batch, options.slots)
    context = facts.context(options.context)
    slot_bytes = facts.kv_bytes(options.kv_type, options.kv_type_v) * context
    n_fitting = slots_for(facts, slot_bytes=slot_bytes)
    shared = {each.name: getattr(options, each.name) for each in fields(EngineOptions)}
    chosen = {
        "threads": options.threads or tuned.threads,
        "slots": options.slots or min(batch, n_fitting),
        "slot_bytes": round(slot_bytes),
        "batch": batch,
        "ubatch": options.ubatch or min(tuned.ubatch, batch),
        "prefill_chunk": options.prefill_chunk or EngineConfig.prefill_chunk,
        "flash_attn": _flash_attn(options, tuned),
        "draft_model": resolve_model(options.draft_model)[0] if options.draft_model is not None else None,
    }
    return EngineConfig(model_path=model_path, **(shared | chosen))


def _flash_attn(options: ServerOptions, tuned: Tuned) -> bool | None:
    """What was measured, unless the options decide: another choice would change the bits that ``exact`` promises, and
    values in blocks need flash attention."""
    blocks = (options.kv_type_v or options.kv_type) not in ("f32", "f16", "bf16")
    return options.flash_attn if options.flash_attn is not None or options.exact or blocks else tuned.flash_attn
