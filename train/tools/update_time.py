"""``python -m slm.train.tools.update_time``: what an update costs by the tokens of its step, and where the time goes.

An update of tuning has a part that grows with its tokens (products, attention, head) and one that does not (reading and
packing the weights, the update of weights and moments). How small a step may be without losing speed follows from both.

Measured is the step that ``slm tune`` takes, on random weights of a shape and random token ids, as frequent as words by
Zipf's law. They are packed as short conversations are: sequences of up to 256 tokens with conversations of 64 in them,
none sees another, and a quarter of the positions has a target. ``--scored 1`` gives each position one. Each shape runs
in two processes, in full and with an adapter. The first step of a length is a warm-up unless it takes longer than
``--seconds`` alone; the median of the others counts, as many as fit ``--seconds``, one at least. A clock around each
kernel gives the parts.

TRL's tokens/s on the same machine: ``trl_sft.py``, in this folder.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from slm import cli
from slm.configuration import load
from slm.data.errors import UserError
from slm.machine.busy import Others, mark
from slm.machine.crashes import DiedError, in_fresh_process
from slm.machine.record import machine_record
from slm.model.config import ModelConfig
from slm.report import final_json, table
from slm.train.config import RunConfig
from slm.train.tools.contenders import like_words, own_step

if TYPE_CHECKING:
    import numpy as np

HEAD_DIM = 64
SHAPES = {
    name: ModelConfig(
        vocab_size=vocab_size,
        n_layers=layers,
        d_model=HEAD_DIM * heads,
        n_heads=heads,
        n_kv_heads=heads // 3,
        head_dim=HEAD_DIM,
        ffn_dim=ffn,
        seq_len=8192,
    )
    for name, (layers, heads, ffn, vocab_size) in {
        "135m": (30, 9, 1536, 49_152),
        "360m": (32, 15, 2560, 49_152),
        "tiny": (2, 3, 256, 512),
    }.items()
}
"""SmolLM2's, and one that tries the tool out."""
TOKENS = (128, 256, 512, 1024, 2048, 4096)
SEQUENCE, CONVERSATION = 256, 64
"""Tokens of the longest sequence of a step, and of a conversation."""
MOST_STEPS = 9
PARTS = {
    "products": ("projections",),
    "packing": ("packing weights",),
    "attention": ("attention",),
    "head": ("head and loss",),
    "update": ("optimizer",),
}
"""What is shown, of the parts of ``breakdown``; all else is "rest"."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process measures."""

    shape: str
    rank: int
    """The adapter's rank; 0: all weights are trained."""
    tokens: tuple[int, ...]
    seconds: float
    scored: float
    words: tuple[str, ...]
    """Options of training, as of ``slm train``."""


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON line. Returns the exit code."""
    options, words = parse(argv)
    rows: list[dict[str, Any]] = []
    others = Others()
    for shape in options.shapes:
        for rank in (0, options.rank) if options.rank else (0,):
            task = Task(
                shape=shape,
                rank=rank,
                tokens=tuple(sorted(options.tokens)),
                seconds=options.seconds,
                scored=options.scored,
                words=tuple(words),
            )
            config_of(task)  # an option that is wrong is an error here
            try:
                rows += in_fresh_process(measure, task)
            except DiedError as error:
                raise UserError(f"{shape}, {kind_of(rank)}: {error}; is there memory enough for it?") from None
    busy = others.share()
    show(rows, mark(busy))
    final_json({"rows": rows, "scored": options.scored, "machine": machine_record(), "others_share": busy})
    return 0


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's options, and those of training (``train.threads=1``)."""
    parser = argparse.ArgumentParser(
        prog="python -m slm.train.tools.update_time", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="OPTION=VALUE", help="options of training, for example train.threads=1")
    add("--shapes", type=lambda text: text.split(","), default=["135m", "360m"], help="135m,360m is the default")
    add(
        "--tokens", type=lambda text: [int(each) for each in text.split(",")], default=TOKENS, help="128,256,... a step"
    )
    add("--rank", type=int, default=16, help="of the adapter that is measured beside all weights; 0: none")
    add("--seconds", type=float, default=15, help="for each length; at least one step is measured")
    add("--scored", type=float, default=0.25, help="share of the positions that have a target; 1: no conversations")
    options = parser.parse_intermixed_args(argv)
    if unknown := [each for each in options.shapes if each not in SHAPES]:
        raise UserError(f"--shapes {unknown[0]}: choose from {', '.join(SHAPES)}")
    if wrong := [each for each in options.tokens if each < CONVERSATION or each % CONVERSATION]:
        raise UserError(f"--tokens {wrong[0]}: give multiples of {CONVERSATION}, the tokens of a conversation")
    if not 1 / CONVERSATION <= options.scored <= 1:
        raise UserError(f"--scored {options.scored}: give a share from 1/{CONVERSATION} to 1")
    if options.rank < 0 or options.seconds <= 0:
        raise UserError("--rank must be at least 0, and --seconds above 0")
    return options, options.words


def config_of(task: Task) -> RunConfig:
    """The options of training: AdamW, as for a downloaded model."""
    return load(RunConfig, "train", ["optim=adamw", *task.words])


def measure(task: Task) -> list[dict[str, Any]]:
    """One row for each length, from the shortest to the longest."""
    config = config_of(task)
    own = own_step(config, grad_accum=1, rank=task.rank, trained=True, shape=SHAPES[task.shape])
    # It imports torch.
    from slm.train.tools.breakdown import breakdown

    rows = []
    for tokens in task.tokens:
        batches = blocks(tokens, own.shape.vocab_size, scored=task.scored, seed=config.train.seed)
        steps: list[tuple[float, dict[str, float]]] = []
        began = perf_counter()
        while not steps or (len(steps) < MOST_STEPS and perf_counter() - began + steps[-1][0] < task.seconds):
            start = perf_counter()
            shares = breakdown(own.backend, lambda batches=batches: own.take(batches))  # type: ignore[misc]
            steps.append((perf_counter() - start, shares))
        counted = sorted(steps[1:] or steps, key=lambda step: step[0])
        seconds, shares = counted[(len(counted) - 1) // 2]
        parts = {name: seconds * sum(shares.get(part, 0.0) for part in of) for name, of in PARTS.items()}
        row = {
            "shape": task.shape,
            "kind": kind_of(task.rank),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "steps": len(counted),
            "parts": parts | {"rest": seconds - sum(parts.values())},
            "precision": own.environment.precision,
            "kernels": own.environment.kernels.name if own.environment.kernels else None,
            "threads": own.environment.threads,
        }
        rows.append(row)
        print(f"{task.shape}, {row['kind']}, {tokens:,} tokens: {seconds:.3f} s", flush=True)
    return rows


def kind_of(rank: int) -> str:
    """What is trained, for a person."""
    return f"LoRA {rank}" if rank else "full"


def blocks(tokens: int, vocab_size: int, *, scored: float, seed: int) -> Iterator["np.ndarray"]:
    """Micro-batches int32 [B, T + 1] of this many positions, without end: conversations with their marks, or plain
    text where all positions are scored."""
    import numpy as np

    from slm.data.stream import marks

    length = min(SEQUENCE, tokens)
    while tokens % length:
        length -= CONVERSATION
    places = np.arange(length + 1) % CONVERSATION
    marked = np.where(places == 0, marks.FIRST, 0) | np.where(
        places < round((1 - scored) * CONVERSATION), marks.UNSCORED, 0
    )
    generator = np.random.default_rng(seed)
    while True:
        ids = like_words(generator.random((tokens // length, length + 1)), vocab_size)
        yield ids if scored == 1 else ids | marked.astype(np.int32)


def show(rows: list[dict[str, Any]], busy: str = "") -> None:
    """Print the table. ``busy``: the title's mark of a busy machine."""
    fastest: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["shape"], row["kind"])
        fastest[key] = max(fastest.get(key, 0.0), row["tokens_per_s"])
    names = [*PARTS, "rest"]
    cells = [
        [
            row["shape"],
            row["kind"],
            f"{row['tokens']:,}",
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['tokens_per_s'] / fastest[row['shape'], row['kind']]:.2f}",
            *(f"{row['parts'][name]:.3f}" for name in names),
            row["steps"],
        ]
        for row in rows
    ]
    table(
        f"Time of an update: {rows[0]['threads']} thread{'s' * (rows[0]['threads'] > 1)}, {rows[0]['precision']}, "
        f"{rows[0]['kernels'] or 'no kernels'}{busy}",
        ["shape", "trained", "tokens", "s", "tokens/s", "ratio", *names, "steps"],
        cells,
        caption="ratio: to the fastest length; parts in seconds; steps: how many the median is of",
        key=3,
    )


if __name__ == "__main__":
    cli.run(main)
