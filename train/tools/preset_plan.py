"""``make plan CONFIG=125m``: the measured speed, the predicted loss and the costs of one configuration.

Tested in tests/train/tools/test_plan.py.
"""

from typing import Any

from slm.data.errors import UserError
from slm.durations import seconds_of
from slm.model.config import ModelConfig
from slm.report import duration
from slm.train.budget.choice import OVERHEAD, STARTING_SECONDS, VALIDATION_SHARE, memory_bytes
from slm.train.budget.costs import costs, q4_k_m_bytes
from slm.train.budget.machine import machine_name, measured
from slm.train.budget.named_machine import named_machine
from slm.train.predict import records, wikitext
from slm.train.predict.law import fitted, text_factor
from slm.train.tools.menu import cost_rows
from slm.train.tools.plan_config import PlanConfig

BYTES_PER_TOKEN = {2048: 3.05, 4096: 3.43, 8192: 3.75, 16384: 4.01, 50304: 4.3}
"""Bytes per token of English books, by the size of the vocabulary."""

ENDS = ("_low", "", "_high")
"""Ends of the keys that hold a prediction and its interval."""


def predicted(config: PlanConfig, shape: ModelConfig, tokens: int) -> tuple[dict[str, Any], list[list[str]]]:
    """What is predicted for a configuration that reads ``tokens``: for the JSON line, and rows of the table.

    With a ``budget`` it reads what it can in that time. Where ``tokens_per_s`` or ``plan.machine`` is given nothing is
    measured; of a speed alone the lines that need the machine's memory are left out.
    """
    train = config.train
    machine = None
    if config.plan.machine:
        machine = named_machine(config.plan.machine)
    elif not config.tokens_per_s:
        machine = measured(train, config.optim)
    speed = config.tokens_per_s or 0.0
    if machine is not None and not config.tokens_per_s:
        speed = machine.tokens_per_s(shape, train.tokens_per_step, train.seq_len, train.sampled_softmax)
    share = 1 - OVERHEAD - VALIDATION_SHARE
    seconds = STARTING_SECONDS + tokens / speed / share
    if config.budget is not None:
        seconds = seconds_of(config.budget)
        tokens = round((seconds - STARTING_SECONDS) * share * speed)
        if tokens < train.tokens_per_step:
            raise UserError(
                f"budget={config.budget} is too short for a step of {train.tokens_per_step:,} tokens: starting takes "
                f"{STARTING_SECONDS:g} s, and this model about {speed:,.0f} tokens/s"
            )
    steps = tokens // train.tokens_per_step
    known = min(BYTES_PER_TOKEN, key=lambda each: abs(each - shape.vocab_size))
    n_matrix, n_bytes = shape.n_layer_matrix_params, tokens * BYTES_PER_TOKEN[known]
    law = fitted([*records.load(), *records.load_own()])
    run = (n_matrix, n_bytes, float("inf"), shape.vocab_size)
    value, (low, high) = law.predict(*run), law.interval(*run)
    memory, size = memory_bytes(shape, train.micro_batch, train.seq_len), q4_k_m_bytes(shape)
    found: dict[str, Any] = {
        "tokens_per_s": speed,
        "budget_s": seconds,
        "predicted_tokens": tokens,
        "predicted_steps": steps,
        "bits_per_byte": value,
        "bits_per_byte_low": low,
        "bits_per_byte_high": high,
        "memory_bytes": memory,
        "q4_k_m_bytes": size,
    }
    how = "given" if config.tokens_per_s else f"estimated of {config.plan.machine}"
    if machine is not None and not config.tokens_per_s and not config.plan.machine:
        how = f"measured on {machine_name(machine)}"
    rows = [
        [f"time at {speed:,.0f} tokens/s ({how}), everything included", duration(seconds)],
        [
            f"training tokens in that time, and steps of {train.tokens_per_step:,}",
            f"{tokens:,} ({steps:,} steps)",
        ],
        [
            "bits per byte at the end, on text like English books",
            f"{value:.3f} ({low:.3f} to {high:.3f}: two runs of three)",
        ],
        ["memory of the run, GiB", f"{memory / 2**30:.1f}"],
        ["Q4_K_M file, MB", f"{size / 1e6:,.1f}"],
    ]
    if wikitext.can_say(config.data):
        factor, blur = text_factor(wikitext.LEVELS[config.data.name], n_bytes)
        ends = (low * factor / (1 + blur), value * factor, high * factor * (1 + blur))
        found |= dict(zip((f"articles_bits_per_byte{end}" for end in ENDS), ends, strict=True))
        text = "bits per byte at the end, on held-out articles of Wikipedia"
        rows.insert(3, [text, "{1:.3f} ({0:.3f} to {2:.3f}: two runs of three)".format(*ends)])
        perplexity = wikitext.of_run(config.data, ends)
        found |= dict(zip((f"wikitext103_perplexity{end}" for end in ENDS), perplexity, strict=True))
        text = "WikiText-103 perplexity per word at the end"
        rows.insert(4, [text, "{1:,.0f} ({0:,.0f} to {2:,.0f}: two runs of three)".format(*perplexity)])
    decode = None if machine is None else machine.decode_tokens_per_s(size, shape.n_layers)
    money = costs(
        seconds=seconds,
        tokens=tokens,
        decode_tokens_per_s=decode,
        price_per_hour=config.plan.price_per_hour,
        api_price=config.plan.api_price,
    )
    found |= {"decode_tokens_per_s": decode, "costs": money.record()}
    if decode is not None:
        rows.append(["tokens/s that llama.cpp writes for one reader", f"{decode:,.0f}"])
    return found, rows + cost_rows(money)
