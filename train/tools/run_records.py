"""A finished run as a record of the loss law: ``slm plan 'plan.add=[runs/mine]'``.

Tested in tests/train/tools/test_plan.py.
"""

import math
from pathlib import Path
from typing import Any

from slm.configuration import build
from slm.data.config import TRAINED
from slm.data.errors import UserError
from slm.machine.record import cpu_name
from slm.model.config import ModelConfig
from slm.runs import VALIDATION
from slm.train.config import HEAD_DIM
from slm.train.phases import Phase, bag_of
from slm.train.predict import ngram, records
from slm.train.predict.law import DEEP_LR, calibrated, learns_slower, text_read, text_worth
from slm.train.predict.records import Record
from slm.train.report.run_record import RunRecord, find_run

LAST_RATE = 0.12
"""The most that is left of the peak learning rate at the end of a run that the law is about."""


def add(runs: list[str]) -> list[Record]:
    """Add these runs to the person's records, in place of former ones of the same name. Returns them."""
    found = [record_of(find_run(each)) for each in runs]
    kept = [each for each in records.load_own() if each.name not in {new.name for new in found}]
    records.write(records.own_file(), [*kept, *found])
    return found


def record_of(root: Path) -> Record:
    """The record of the run in ``root``. UserError where the law says nothing about such a run."""
    run = RunRecord(root)
    run.update()
    if not run.validations or not len(run.curves):
        raise UserError(f"{root} has no validation: add runs that are finished")
    last, share = run.validations[-1], float(run.curves["lr"][-1] / max(run.curves["lr"]))
    if share > LAST_RATE or last.tokens is None or last.loss is None or last.bits_per_byte is None:
        raise UserError(
            f"{root} ended before its learning rate had fallen ({share:.0%} of the peak are left): add finished runs"
        )
    if run.setting("init_from"):
        raise UserError(f"{root} began with a trained model: the law is about models trained from the beginning")
    if run.setting("distill.teacher"):
        raise UserError(f"{root} learnt from a teacher: the law is about models that learn from text alone")
    bytes_per_token = last.loss / math.log(2) / last.bits_per_byte
    predicted: dict[str, Any] = run.setting("facts.predicted") or {}
    n_bytes = last.tokens * bytes_per_token
    bag, share = bag_of([build(Phase, each) for each in run.setting("train.phases") or ()])
    read = text_read(n_bytes, bag=bag, share=share)
    # The plan knew how much text there is, and the run may have read more of it, or less.
    planned = predicted.get("tokens") or 0
    epochs = (predicted.get("epochs") or 0.0) * last.tokens / planned if planned else 0.0
    counted = min(read / epochs if epochs else math.inf, (run.setting("optim.init_bigrams") or 0) * bytes_per_token)
    names = ("arch", "n_layers", "d_model", "n_heads", "n_kv_heads", "ffn_dim")
    chosen: dict[str, Any] = {name: run.setting(f"model.{name}") for name in names}
    chosen["head_dim"] = run.setting("model.head_dim") or HEAD_DIM  # runs of earlier versions have both
    chosen["conv_layers"] = tuple(run.setting("model.conv_layers") or ())
    train = {name: int(run.setting(f"train.{name}")) for name in ("seq_len", "micro_batch", "grad_accum")}
    model = ModelConfig(**chosen, vocab_size=1, seq_len=train["seq_len"])
    vocab_size = int(run.setting("tokenizer.vocab_size") or 0)
    if run.setting("tokenizer.kind") not in TRAINED:  # the setting is of a tokenizer that the run trains
        vocab_size = run.model_facts().get("vocab_size", vocab_size)
    level = _level(root, predicted)
    sampled = int(run.setting("train.sampled_softmax") or 0) > 0
    slow = run.setting("optim.name") == "muon" and run.setting("optim.lr") <= DEEP_LR
    worth = text_worth(
        n_bytes,
        bag=bag,
        counted=counted,
        vocab_size=vocab_size,
        sampled=sampled,
        slower=slow and learns_slower(model.n_layers, counted),
        readings=epochs,
    )
    bits_per_byte = last.bits_per_byte
    if any(event.kind == "calibrated" for event in run.guard_events):  # the law is about the trained heads
        bits_per_byte /= calibrated(epochs, vocab_size=vocab_size, d_model=model.d_model)
    return Record(
        name=run.name,
        text=str(run.setting("data.name") or run.setting("data.kind")),
        n_matrix=model.n_layer_matrix_params,
        vocab_size=vocab_size,
        tokens=int(last.tokens),
        bytes=worth,
        unique_bytes=worth / epochs if epochs else math.inf,
        tokens_per_step=train["seq_len"] * train["micro_batch"] * train["grad_accum"],
        bits_per_byte=bits_per_byte,
        remembering=level.remembering,
        forgetting=level.forgetting,
        source=cpu_name(),
    )


def _level(root: Path, predicted: dict[str, Any]) -> ngram.Level:
    """The level that the run's plan measured, else that of its sample of validation text."""
    if "level" in predicted:
        return build(ngram.Level, predicted["level"])
    sample = root / VALIDATION
    return ngram.level([sample.read_text(encoding="utf-8")]) if sample.is_file() else ngram.Level()
