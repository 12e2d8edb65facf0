"""Decode speeds by type: asked of a child process once, then of the cache folder. Nothing here loads llama.cpp.

Tested in tests/slm/llama/speed/test_kept.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import slm
from slm.data.errors import UserError, excerpt
from slm.data.storage import cache_home
from slm.llama.speed.workload import USUAL, Workload
from slm.llama.verdict import build_stamp
from slm.model.architectures import Architecture
from slm.report import atomic_write_json

if TYPE_CHECKING:
    from slm.model.config import ModelConfig

_FORMAT = 2
"""Version of the cached measurements. A higher number measures again."""
_TRIAL_S = 300
_MOST_WEIGHTS = 150_000_000
"""A larger model is measured with fewer layers."""
_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a model's speed depends on."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    arch: Architecture = "llama"
    sliding_window: int | None = None

    @classmethod
    def of(cls, config: ModelConfig) -> Shape:
        """A model's shape, its widths rounded up to what every type holds, cut to a size that is quickly measured.

        Attention stands for short convolutions: it reads about as many weights. Matrices that are joined are taken
        apart.
        """
        up = lambda width: -(-width // _BLOCK) * _BLOCK  # noqa: E731 - a line
        n_heads = config.n_heads
        while n_heads * config.head_dim % _BLOCK:
            n_heads += config.n_kv_heads
        shape = cls(
            n_layers=config.n_layers,
            d_model=up(config.d_model),
            n_heads=n_heads,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            ffn_dim=up(config.ffn_dim),
            vocab_size=config.vocab_size,
            arch="qwen3" if config.traits.short_conv else "llama" if config.traits.joined else config.arch,
            sliding_window=config.sliding_window,
        )
        layers = max(1, min(shape.n_layers, (_MOST_WEIGHTS - shape.n_head) // shape.n_layer))
        return cls(**(asdict(shape) | {"n_layers": layers}))

    def is_of(self, config: ModelConfig) -> bool:
        """Whether this is the model's own shape, not rounded up and not cut."""
        own = (config.n_layers, config.d_model, config.n_heads, config.ffn_dim)
        return not config.n_conv_layers and own == (self.n_layers, self.d_model, self.n_heads, self.ffn_dim)

    @property
    def n_head(self) -> int:
        """Weights of the output head."""
        return self.vocab_size * self.d_model

    @property
    def n_layer(self) -> int:
        """Weights of one layer."""
        attention = 2 * self.d_model * self.head_dim * (self.n_heads + self.n_kv_heads)
        return attention + 3 * self.d_model * self.ffn_dim

    @property
    def n_read(self) -> int:
        """Weights that are read for every token."""
        return self.n_layers * self.n_layer + self.n_head


@dataclass(frozen=True, kw_only=True)
class DecodeSpeeds:
    """What was measured."""

    shape: Shape
    threads: int
    tok_s: dict[str, float]
    """ggml type -> median tokens per second of a model with this type in all matrices, as ``workload`` defines them."""
    workload: Workload = USUAL

    @property
    def fastest(self) -> str:
        """The type with the most tokens per second."""
        return max(self.tok_s, key=lambda kind: self.tok_s[kind])

    def seconds_per_weight(self, kind: str) -> float:
        """A token's time, divided by the number of weights that it reads. A type that was not measured has the time of
        the slowest one."""
        return 1 / (self.tok_s.get(kind, min(self.tok_s.values())) * self.shape.n_read)


STANDARD = Shape(n_layers=6, d_model=768, n_heads=12, n_kv_heads=4, head_dim=64, ffn_dim=2048, vocab_size=16_384)
"""The shape that ``make doctor`` measures: 50M weights, more than most caches hold."""
STANDARD_TYPES = ("q4_0", "iq4_nl", "q4_k", "q5_k", "q6_k", "q8_0")


def decode_speeds(
    shape: Shape,
    kinds: Sequence[str],
    threads: int,
    log: Callable[[str], None] = lambda line: None,
    workload: Workload = USUAL,
) -> DecodeSpeeds:
    """Tokens per second of models of ``shape`` in each type. Types that this machine was not asked about before are
    measured, about a second each. UserError where the child process fails."""
    kept = _kept_file(shape, threads, workload)
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        known = {str(kind): float(rate) for kind, rate in json.loads(kept.read_text())["tok_s"].items()}
    missing = [kind for kind in kinds if kind not in known]
    if missing:
        # All of them together, so that what is compared was measured in turn.
        together = list(dict.fromkeys([*known, *kinds]))
        log(
            f"measuring decode speed in {len(together)} types on this machine ({workload.spelled(threads)}; kept for "
            "the next time)"
        )
        known = _measure(shape, together, threads, workload)
        with contextlib.suppress(OSError):  # it is measured again the next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            record = {"shape": asdict(shape), "threads": threads, "workload": workload.record(), "tok_s": known}
            atomic_write_json(kept, record)
    return DecodeSpeeds(shape=shape, threads=threads, tok_s={kind: known[kind] for kind in kinds}, workload=workload)


def forget(speeds: DecodeSpeeds) -> None:
    """Measure these again the next time: finished files showed that they are wrong, as after a measurement on a busy
    machine."""
    with contextlib.suppress(OSError):
        _kept_file(speeds.shape, speeds.threads, speeds.workload).unlink()


def _kept_file(shape: Shape, threads: int, workload: Workload) -> Path:
    key = [_FORMAT, build_stamp(), asdict(shape), threads, workload.record()]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return cache_home() / "llama" / f"speed-{name}.json"


def _measure(shape: Shape, kinds: Sequence[str], threads: int, workload: Workload) -> dict[str, float]:
    request = {"shape": asdict(shape), "kinds": list(kinds), "threads": threads, "workload": workload.record()}
    try:
        with tempfile.TemporaryDirectory(prefix="slm-speed-", ignore_cleanup_errors=True) as folder:
            done = subprocess.run(
                [sys.executable, "-m", "slm.llama.speed.trial", folder, json.dumps(request)],
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRIAL_S,
                cwd=slm.PARENT,
            )
        if done.returncode == 0:
            return {str(kind): float(rate) for kind, rate in json.loads(done.stdout.splitlines()[-1]).items()}
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        reason = excerpt(error)
    raise UserError(
        f"the decode speed of this machine could not be measured ({reason}); choose by size or loss instead, "
        "as in quant=auto:4.5 or quant=auto:1%"
    )
