"""nanochat (github.com/karpathy/nanochat) as a contender: its own scripts, run in a checkout that a person names.

Nothing of it is here. It gets the text as the Parquet shards that its loader expects, and a separate folder for all
that it writes (``NANOCHAT_BASE_DIR``). Its training has no limit of time, so a rehearsal measures set-up and step, and
the number of iterations follows. It prints bits per byte of cropped documents; here its checkpoint is
scored as everybody's is, by a script that runs in its Python. Its loader crops documents to its rows in training, too:
of a text of long documents it reads little, again and again. So it gets pieces that fill a row, cut after its
tokenizer is trained, and takes none of it.

Its dependencies are not ours, so the tests run none of it: they see that the number of iterations fits the time.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from slm.data.errors import UserError
from slm.data.sources.documents import iter_documents
from slm.train.bench_recipe.config import BenchRecipeConfig
from slm.train.bench_recipe.contender import Entry, fresh_cache, passes_of_a_step, step_note, timed
from slm.train.bench_recipe.nanochat_scripts import PIECES, SCORE

LEAST_REHEARSAL, MOST_REHEARSAL, REHEARSAL_PER_MINUTE = 12, 72, 2
"""Iterations. Twelve last some 20 s, and were up to a quarter faster than those of the half hour after them."""
SAVE_SECONDS = 600
"""Seconds of training between two checkpoints. A stopped run resumes from the newest one."""
CHECKPOINTS = "base_checkpoints"
SHARDS, SHARD = "base_data_climbmix", "shard_{:05d}.parquet"
"""Where its loader looks for text, and the name of a file there by its number; 0 is the training text."""
ROW_GROUP = 256
"""Documents of a shard's row group."""
MOST_TEXT = 400_000_000
"""Bytes of training text that it gets."""

RATES = ("matrix-lr", "embedding-lr", "unembedding-lr", "scalar-lr")
"""Options of its ``base_train``."""


def nanochat(
    config: BenchRecipeConfig, depth: int, folder: Path, factor: float = 1.0, tokens: int | None = None
) -> Entry:
    """Train depth ``depth`` in ``folder``, tokenizer and start-up within the time; ``factor``: of its rates.

    ``tokens``: of a step; None: as many as ours.
    """
    bench, train = config.bench, config.train
    assert bench.nanochat is not None
    in_a_pass, passes = passes_of_a_step(tokens or train.tokens_per_step, train)
    step_tokens = passes * in_a_pass * train.seq_len
    name = f"nanochat-{depth}" if factor == 1 else f"nanochat-{depth}-x{factor:g}"
    name += f"-{tokens}" if tokens else ""
    python, base = python_of(config), folder / name
    rehearsed = base / "rehearsed.json"
    tokenize: list[str | Path] = [python, "-m", "scripts.tok_train", f"--vocab-size={bench.nanochat_vocab}"]
    batch = [f"--device-batch-size={in_a_pass}", f"--total-batch-size={step_tokens}"]
    common: list[str | Path] = [
        python,
        "-m",
        "scripts.base_train",
        f"--depth={depth}",
        "--head-dim=64",
        "--window-pattern=L",
    ]
    common += [f"--max-seq-len={train.seq_len}", *batch, "--core-metric-every=-1", "--sample-every=-1"]
    common += ["--eval-every=-1", "--run=dummy", "--device-type=cpu"]
    common += [
        *scaled_rates((bench.nanochat / "scripts/base_train.py").read_text("utf-8"), factor),
        *bench.nanochat_options,
    ]

    def run(command: Sequence[str | Path], log: str, continues: bool = False) -> float:
        own = {"NANOCHAT_DTYPE": dtype_of(config)} | environment
        own |= {"NANOCHAT_BASE_DIR": str(base), "PYTHONSAFEPATH": ""}
        return timed(command, folder / f"{name}-{log}.log", environment=own, cwd=bench.nanochat, continues=continues)

    if not rehearsed.exists():
        shutil.rmtree(base, ignore_errors=True)  # of a comparison that was stopped before
        _write_shards(base / SHARDS, config)
        with fresh_cache(folder) as environment:
            own_tokenizer = run(tokenize, "tokenizer")
            if bench.nanochat_pieces:
                shard = base / SHARDS / SHARD.format(0)
                sizes = [str(each) for each in (train.seq_len, ROW_GROUP, train.seed)]
                run([python, "-c", PIECES, shard, *sizes], "pieces")
            iterations = rehearsal_iterations(config.minutes)
            rehearsal = run([*common, f"--num-iterations={iterations}"], "rehearsal")
        step = step_seconds((folder / f"{name}-rehearsal.log").read_text(errors="replace"))
        steps = steps_that_fit(60 * config.minutes, own_tokenizer + rehearsal - iterations * step, step)
        shutil.rmtree(base / CHECKPOINTS, ignore_errors=True)
        rehearsed.write_text(json.dumps({"own_tokenizer": own_tokenizer, "step": step, "steps": steps}))
    plan = json.loads(rehearsed.read_text())
    own_tokenizer, step, steps = plan["own_tokenizer"], plan["step"], plan["steps"]
    words = [f"--num-iterations={steps}", f"--save-every={max(1, int(SAVE_SECONDS / step))}"]
    if saved := newest_step(base / CHECKPOINTS / f"d{depth}"):
        words.append(f"--resume-from-step={saved}")
    with fresh_cache(folder) as environment:
        seconds = run([*common, *words], "train", continues=True)
    return Entry(
        name="nanochat",
        model=base,
        tokens=steps * step_tokens,
        seconds=own_tokenizer + seconds,
        training_seconds=steps * step,
        note=f"depth {depth}, vocabulary {bench.nanochat_vocab:,}" + ways_note(factor, tokens),
    )


def dtype_of(config: BenchRecipeConfig) -> str:
    """The number format that this machine multiplies faster in, by nanochat's name: alone it takes f32 on a CPU."""
    from slm.train.environment import number_format

    return "bfloat16" if number_format(config.train)[0] == "bf16" else "float32"


def newest_step(checkpoints: Path) -> int | None:
    """The step of its newest checkpoint; None before the first. It writes a checkpoint's optimizer last."""
    steps = [int(path.name.split("_")[1]) for path in checkpoints.glob("optim_*_rank0.pt")]
    return max(steps, default=None)


def ways_note(factor: float, tokens: int | None) -> str:
    """What a run's name says of its rates' factor and its step; nothing of 1 and of as many tokens as ours."""
    return ("" if factor == 1 else f", rates x {factor:g}") + step_note(tokens)


def scaled_rates(script: str, factor: float) -> list[str]:
    """The options that multiply the default learning rates of ``script``; none for 1. UserError for another script."""
    if factor == 1:
        return []
    found = []
    for name in RATES:
        default = re.search(rf'"--{name}", type=float, default=([\d.]+)', script)
        if not default:
            raise UserError(
                f"nanochat's base_train has no option --{name} with a default: this version is not known here"
            )
        found.append(f"--{name}={factor * float(default.group(1)):g}")
    return found


def score_nanochat(config: BenchRecipeConfig, base: Path, documents: Path) -> float:
    """Bits per byte of its newest checkpoint, by its own model code, in our definition."""
    out = base / "score.json"
    command: list[str | Path] = [python_of(config), "-c", SCORE, str(documents), str(out), str(config.bench.window)]
    own = {**os.environ, "NANOCHAT_BASE_DIR": str(base), "PYTHONSAFEPATH": ""}
    timed(command, base / "score.log", environment=own, cwd=config.bench.nanochat, what="scoring nanochat")
    return float(json.loads(out.read_text())["bits_per_byte"])


def python_of(config: BenchRecipeConfig) -> Path:
    """Its Python. UserError where there is none."""
    assert config.bench.nanochat is not None
    python = config.bench.nanochat_python or config.bench.nanochat / ".venv/bin/python"
    if not python.is_file():
        raise UserError(f"{python} does not exist: uv sync in the checkout, or give bench.nanochat_python=FILE")
    return python.absolute()


def rehearsal_iterations(minutes: float) -> int:
    """Iterations of the rehearsal of a run of ``minutes``."""
    return min(MOST_REHEARSAL, LEAST_REHEARSAL + int(REHEARSAL_PER_MINUTE * minutes))


def step_seconds(log: str) -> float:
    """Seconds of an iteration, the mean of the second half of those that its log has. UserError for none."""
    found = [float(value) / 1000 for value in re.findall(r"\bdt: ([\d.]+)\s*ms", log)]
    if not found:
        raise UserError("nanochat's log names no time of a step (dt: ...ms): this version of it is not known here")
    return fmean(found[len(found) // 2 :])


def steps_that_fit(seconds: float, overhead: float, step: float) -> int:
    """Iterations that end in time. UserError where none does."""
    steps = int((seconds - overhead) / step)
    if steps < 1:
        raise UserError(f"nanochat's set-up takes {overhead:.0f} s here, and a step {step:.1f} s: give more minutes")
    return steps


def _write_shards(folder: Path, config: BenchRecipeConfig) -> None:
    """One shard of training text, and one of validation text, which its loader takes from the last."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)

    def limited(documents: Iterable[str]) -> list[str]:
        found: list[str] = []
        size = 0
        for document in documents:
            size += len(document.encode())
            if size > MOST_TEXT and found:
                break
            found.append(document)
        return found

    seed = config.train.seed
    for index, split in enumerate(("train", "validation")):
        table = pa.table({"text": limited(iter_documents(config.data, split, seed))})  # type: ignore[arg-type]
        pq.write_table(table, folder / SHARD.format(index), row_group_size=ROW_GROUP)
