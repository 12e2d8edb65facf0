"""The rule of ``make tune``: from what was found in the conversations to the step, the length, the rates and the stop.

Everything here is arithmetic on a few numbers, so that it is tested without a model. What was measured for it is in
docs/results/chat.md.

Tested in tests/train/tune/test_rule.py.
"""

import math
from dataclasses import dataclass
from typing import Literal

from slm.data.stream.conversations import LENGTH_MULTIPLE, n_blocks

LEAST_STEP, MOST_STEP = 128, 1024
"""Tokens of an AdamW step. Below, an update costs more than its tokens; above, updates are given away."""
MUON_STEPS = 256, 4096
"""The same for Muon: its update costs more and gains less from small steps."""
SHORT_STEP, SHORT_LR = 4, 2.0
"""Conversations of an AdamW step, and its learning rate in units of the usual one, where the time given is too short
for ``LEAST_UPDATES`` of the least step. An update then costs as much as the tokens of two conversations, and what they
share at their beginning is computed once (docs/results/chat.md)."""
SHARES = 1 / 4
"""The plan names a shared beginning from this share of a conversation on."""
FROZEN = 2 / 3
"""Share of the layers, from the lowest, that stay as they are with embedding and head, where there are few
conversations or little time: an update takes half of the time, each teaches no less, and less is forgotten
(docs/results/chat.md)."""
UPDATES_IN_A_PASS = 150
"""A step is so small that one pass over the conversations has this many updates, down to the least step."""
LEAST_UPDATES = 160
"""Few conversations are read until they have made this many updates."""
FEWEST_PASSES, MOST_PASSES = 3, 60
"""Over the conversations, each counted once."""
WITH_TIME = 2.0
"""A budget may read them this many times as often, since somebody waits for the better model."""
HELD_OUT_FROM = 200
"""With fewer different conversations none is held out: each may hold a fact that stands nowhere else."""
HELD_OUT, LEAST_HELD_OUT = 0.02, 20
"""Share of the conversations that is held out, and the least number: the loss of fewer says too little to stop by."""
LONGEST = 2048
"""Tokens of the longest sequence, unless the model's context is shorter; a longer conversation loses its end."""
SEVERAL_IN_CONTEXT = 1024
"""Conversations that do not see each other may share this many tokens, whatever the model's context."""
UNKNOWN_TOKENS = 4_096_000
"""Tokens that are read of conversations of an unknown number: the embedded ones, and those of the Hub."""
WARM_UP = 20
"""Updates at most; a tenth of a shorter run."""
VALIDATIONS, FEW_VALIDATIONS = 10, 4
"""In a run, where conversations are held out; and where none are, so that they stop nothing, or where little time is
given: each comes with a checkpoint, which costs as much as some ten updates."""
PATIENCE = 3
"""Validations in a row without improvement after which a run with held-out conversations ends."""
VALIDATION_SHARE, FEW_VALIDATION_SHARE = 0.1, 0.03
"""A run's validations take at most this share of its time together; and where they stop nothing, this one."""
SCORING = 1 / 3
"""What a token costs in a validation, in units of a training token."""
STEP_BETA2, STEP_TOKENS = 0.95, 4096
"""AdamW's second moment: its decay per step in a step of this many tokens; the half-life in tokens is kept."""
MOST_BETA2 = 0.999
FLOPS, BYTES = 1e11, 1e10
"""What a machine of two cores does in a second, roughly: to guess how many updates fit a budget."""
UPDATE_BYTES, ADAPTER_BYTES = 28, 8
"""Memory traffic of an update, bytes a parameter: of all weights, and of an adapter, which only reads them."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the rule goes by."""

    conversations: int | None
    """Different ones that training can read; None: their number is not known."""
    lengths: tuple[int, ...] = ()
    """Tokens of those that were looked at; a pair of answers counts as one."""
    shared: int = 0
    """Tokens at their beginning that they share, and that a pass computes once."""
    n_params: int
    context: int
    """Tokens of the base's context."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    replay: float = 0.0
    """Share of the tokens that comes from the base's own text."""
    processes: int = 1
    equal: bool = False
    """Whether the passes of a step must be of equal length: for several processes, or a micro-batch that is set."""
    seconds: float | None = None
    """The time given."""
    seq_len: int | None = None
    """What a person has set, here and below; None: the rule chooses."""
    rows: tuple[int, int] | None = None
    """``micro_batch`` and ``grad_accum``."""
    pack_tokens: int | None = None
    passes: float | None = None
    """``data.max_epochs``."""
    steps: int | None = None
    adapter: bool = False
    """Whether an adapter is trained in place of the weights."""
    frozen: float | None = 0.0
    """The share of the layers that stays as it is; None: the rule chooses."""
    held_out: int | None = None
    """Different conversations that a person holds out, in files or as a share; None: the rule chooses."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the rule says."""

    seq_len: int
    pack_tokens: int | None
    micro_batch: int
    grad_accum: int
    max_steps: int
    passes: float | None
    """How often each conversation is read by then; None: not known."""
    warmup_steps: int
    beta2: float
    lr_ratio: float
    """The learning rate in units of the usual one."""
    frozen: float
    """Share of the layers, from the lowest, that stay as they are, with embedding and head; 0: all weights learn."""
    val_fraction: float
    """0: nothing is held out, and validations score conversations that are trained on."""
    eval_every: int
    eval_blocks: int
    patience: int

    @property
    def step_tokens(self) -> int:
        """Tokens of a step, at most, unless one conversation has more."""
        return self.micro_batch * self.grad_accum * (self.pack_tokens or self.seq_len)


def choose(found: Findings) -> Choice:
    """The rule."""
    step = _step_tokens(found)
    seq_len, room, micro_batch, grad_accum = _shape(found, step)
    rows = micro_batch * grad_accum
    apart = held_out(found.conversations) if found.held_out is None else 0.0
    own = 1 - found.replay
    """The share of the tokens that comes from conversations."""
    if found.conversations is None:
        steps, passes = math.ceil(UNKNOWN_TOKENS / own / (rows * (room or seq_len))), None
    else:
        in_a_pass = _blocks(found, seq_len, room) * (1 - apart) / rows
        passes = found.passes or _passes(in_a_pass, timed=found.seconds is not None)
        steps = max(1, math.ceil(passes * in_a_pass / own))
    if found.steps:  # where the conversations end before, the rate has to fall by then
        known = found.passes is not None and found.conversations is not None
        steps = min(found.steps, steps) if known else found.steps
    if found.conversations is not None:
        passes = steps * own / max(1e-9, in_a_pass)
    frozen = _frozen(found)
    timed = min(steps, _steps_within(found, _computed(found, rows * (room or seq_len)), frozen))
    stops = apart > 0 if found.held_out is None else found.held_out >= LEAST_HELD_OUT
    every = max(1, math.ceil(timed / (VALIDATIONS if stops and not _is_short(found) else FEW_VALIDATIONS)))
    scored = (VALIDATION_SHARE if stops else FEW_VALIDATION_SHARE) * every * rows * (room or seq_len) / SCORING
    return Choice(
        seq_len=seq_len,
        pack_tokens=room,
        micro_batch=micro_batch,
        grad_accum=grad_accum,
        max_steps=steps,
        passes=passes,
        warmup_steps=min(WARM_UP, timed // 10),
        lr_ratio=SHORT_LR if _is_short(found) else 1.0,
        frozen=frozen,
        beta2=_beta2(rows * (room or seq_len)),
        val_fraction=apart,
        eval_every=every,
        eval_blocks=max(1, min(64, round(scored / seq_len))),
        patience=PATIENCE if stops else 0,
    )


def longest(context: int) -> int:
    """Tokens of the longest sequence that tuning reads with a model of this context."""
    return max(SEVERAL_IN_CONTEXT, min(LONGEST, context))


def _step_tokens(found: Findings) -> int:
    least, most = MUON_STEPS if found.optimizer == "muon" else (LEAST_STEP, MOST_STEP)
    if found.conversations is None:
        return most
    if _is_short(found):
        return min(most, _rounded(SHORT_STEP * _mean(found)))
    return min(most, max(least, _rounded(found.conversations * _mean(found) / UPDATES_IN_A_PASS)))


def _mean(found: Findings) -> float:
    return sum(found.lengths) / max(1, len(found.lengths))


def _computed(found: Findings, tokens: int) -> int:
    """How many of a step's tokens are computed: a beginning that its conversations share only once."""
    if not found.shared:
        return tokens
    return tokens - round(found.shared * max(0.0, tokens / _mean(found) - 1))


def _frozen(found: Findings) -> float:
    """The share of the layers that stays as it is."""
    if found.frozen is not None:
        return found.frozen
    few = found.conversations is not None and found.conversations < HELD_OUT_FROM
    return FROZEN if few or _is_short(found) else 0.0


def _is_short(found: Findings) -> bool:
    """Whether the time given is too short for the least number of updates of all weights."""
    if found.seconds is None or found.optimizer == "muon" or found.conversations is None:
        return False
    return _steps_within(found, _computed(found, LEAST_STEP)) < LEAST_UPDATES


def _shape(found: Findings, step: int) -> tuple[int, int | None, int, int]:
    """``seq_len``, ``pack_tokens``, ``micro_batch`` and ``grad_accum`` for steps of this many tokens."""
    limit, processes = longest(found.context), found.processes
    whole = min(limit, _rounded(max(found.lengths, default=SEVERAL_IN_CONTEXT) - 1))
    if found.rows is not None:
        micro_batch, grad_accum = found.rows
        seq_len = found.seq_len or min(limit, max(whole, _rounded(step / (micro_batch * grad_accum))))
        return seq_len, found.pack_tokens, micro_batch, grad_accum
    if not found.equal and found.conversations is not None and step <= limit:
        seq_len = found.seq_len or max(whole, step)
        return seq_len, found.pack_tokens or min(step, seq_len), 1, 1
    seq_len = found.seq_len or max(whole, min(SEVERAL_IN_CONTEXT, _rounded(step / processes)))
    in_a_process = max(1, -(-step // (seq_len * processes)))
    return seq_len, found.pack_tokens, in_a_process, processes


def _blocks(found: Findings, seq_len: int, room: int | None) -> float:
    """Sequences of one pass over the conversations."""
    assert found.conversations is not None
    lengths = [min(each, seq_len + 1) for each in found.lengths]
    return n_blocks(lengths, (room or seq_len) + 1) * found.conversations / max(1, len(lengths))


def _passes(steps: float, *, timed: bool) -> float:
    """How often the conversations are read, where one pass makes this many updates."""
    passes = min(MOST_PASSES, max(FEWEST_PASSES, LEAST_UPDATES / max(1e-9, steps)))
    return passes * (WITH_TIME if timed else 1)


def held_out(conversations: int | None) -> float:
    """The share that is held out of this number of conversations; None: not known how many."""
    if conversations is None:
        return HELD_OUT
    if conversations < HELD_OUT_FROM:
        return 0.0
    return max(HELD_OUT, LEAST_HELD_OUT / conversations)


def _steps_within(found: Findings, tokens: int, frozen: float = 0.0) -> int:
    """How many updates fit the time given, roughly."""
    if found.seconds is None:
        return found.steps or 1 << 40
    # An adapter has no products for the gradients of weights, and frozen layers have a forward pass only.
    flops, traffic = (4.0, ADAPTER_BYTES) if found.adapter else (2 + 4 * (1 - frozen), UPDATE_BYTES * (1 - frozen))
    each = found.n_params * (flops * tokens / FLOPS + traffic / BYTES)
    return max(FEW_VALIDATIONS, int(found.seconds / each))


def _beta2(tokens: int) -> float:
    """The decay of the second moment with the half-life in tokens of ``STEP_BETA2`` (arXiv 2507.07101)."""
    return min(MOST_BETA2, round(STEP_BETA2 ** (tokens / STEP_TOKENS), 4))


def _rounded(tokens: float) -> int:
    return max(1, math.ceil(tokens / LENGTH_MULTIPLE)) * LENGTH_MULTIPLE
