"""From a goal to a type for every matrix.

Tested in tests/export/auto/test_planner.py.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from slm.data.errors import UserError
from slm.evaluate.perplexity import chunked_plan
from slm.export.auto.candidates import bits
from slm.export.auto.choose import frontier, least
from slm.export.auto.options import WINDOW, Matrix, Options, measure_options, n_windows, round_matrix
from slm.export.auto.pace import Pace
from slm.export.imatrix import ImportanceMatrix
from slm.export.source import Source
from slm.export.target import Target
from slm.export.texts import Text
from slm.llama.gguf_check import GgufHeader
from slm.llama.speed import USUAL, DecodeSpeeds, Shape, Workload, decode_speeds, forget

TIME_PER_LOSS = 10.0
"""``auto``: nats per token that a share of a token's time is worth: 1 % of loss for 10 % of time."""
_ROUNDS = 4
"""Measurements of a whole file's loss until the goal is met."""
_CLOSE = 0.9
"""A file with at least this share of the allowed loss is close enough."""
_WRONG_SPEEDS = 1.35
"""Kept speeds that are off by this factor are measured again the next time."""
_HEADER_BYTES = 1_024
"""What the record of the choice may add to a file."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A type for every matrix, and what it is expected to cost."""

    target: Target
    types: dict[str, str]
    """GGUF's name -> ggml type."""
    predicted_kl: float
    """Nats per token: the sum of the matrices' own."""
    measured_kl: float | None
    """KL divergence of the whole model on the calibration text, rounded in torch; None: not measured."""
    n_bytes: int
    """Estimated bytes of the file."""
    bits_per_weight: float
    decode_tok_s: float | None = None
    """Expected on this machine; None where speed was not asked for."""
    measured_tok_s: float | None = None
    """The same, measured on the finished file; None where it was not."""
    workload: dict[str, int] | None = None
    """What both speeds are the speeds of: prompt, tokens, threads."""
    tries: list[dict[str, Any]] = field(default_factory=list)
    """For a decode speed: the files that were measured, and what they were predicted to do."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One per role of matrices: what a person reads."""

    @property
    def file_type(self) -> str:
        """llama.cpp's file type of the most common type: what programs show that know file types only."""
        shares: dict[str, int] = defaultdict(int)
        for row in self.rows:
            for kind, entry in row["types"].items():
                shares[kind] += entry["weights"]
        most = max(shares, key=lambda kind: shares[kind])
        return most + "_m" if most in ("q3_k", "q4_k", "q5_k") else most

    def overrides(self) -> dict[str, str]:
        """Regular expression -> type, one per matrix, as llama.cpp's quantizer takes them."""
        return {"^" + name.replace(".", r"\.") + "$": kind for name, kind in self.types.items()}

    def metadata(self) -> dict[str, str | float]:
        """What the file says about the choice, under ``slm.auto.*``."""
        counts: dict[str, int] = defaultdict(int)
        for kind in self.types.values():
            counts[kind] += 1
        listed = " ".join(f"{kind}:{counts[kind]}" for kind in sorted(counts, key=lambda each: -counts[each]))
        found: dict[str, str | float] = {
            "slm.auto.goal": self.target.spelled,
            "slm.auto.kl_predicted": self.predicted_kl,
            "slm.auto.types": listed[:127],
        }
        return found if self.measured_kl is None else found | {"slm.auto.kl_measured": self.measured_kl}

    def record(self) -> dict[str, Any]:
        """For the export's record."""
        return {
            "goal": self.target.spelled,
            "predicted_kl": self.predicted_kl,
            "measured_kl": self.measured_kl,
            "predicted_bytes": self.n_bytes,
            "bits_per_weight": self.bits_per_weight,
            "predicted_decode_tok_s": self.decode_tok_s,
            "measured_decode_tok_s": self.measured_tok_s,
            "decode_workload": self.workload,
            "tries": self.tries,
            "types": self.types,
            "roles": self.rows,
        }


class GoalError(UserError):
    """No file of this model meets the goal."""


class Planner:
    """Measures once what every goal needs, and chooses."""

    def __init__(
        self,
        source: Source,
        header: GgufHeader,
        text: Text,
        imatrix: ImportanceMatrix | None,
        *,
        threads: int,
        log: Callable[[str], None],
        speeds: DecodeSpeeds | None = None,
        workload: Workload = USUAL,
    ) -> None:
        """``header``: of the unquantized file. ``text``: the calibration text. ``speeds``: measured already.
        ``workload``: what a decode speed is the speed of; it is cut to the model's context."""
        self.source, self.header, self.text, self.threads, self.log = source, header, text, threads, log
        self.importance = imatrix.means() if imatrix else {}
        self._after = imatrix.n_rows if imatrix else 0
        self._speeds = speeds
        self.workload = workload.within(source.model.config.seq_len)
        self._learned = 0

    @cached_property
    def options(self) -> Options:
        """Every matrix with its options; measured when it is first asked for."""
        model = self.source.model
        ids = self.source.scorer.tokenize(self.text.content)
        window = max(4, min(WINDOW, model.config.seq_len, len(ids) // 2))
        stream, windows = chunked_plan(self.source.scorer, ids, window, None)
        wanted = n_windows(model, window)
        # Text that the importance matrix has not seen, where there is enough of it.
        unseen = [each for each in windows if each.start >= self._after]
        windows = unseen if len(unseen) >= wanted else windows
        picked = [windows[i] for i in np.linspace(0, len(windows) - 1, min(wanted, len(windows))).astype(int)]
        counts_V = np.bincount(ids, minlength=model.config.vocab_size).astype(np.float64)
        self.log(f"choosing types: sensitivity of every matrix on {len(picked)} windows of {window} tokens")
        options = measure_options(
            model, np.stack([each.inputs(stream) for each in picked]), counts_V, self.importance, self.threads
        )
        ratios = np.array([each["measured"] / each["estimated"] for each in options.checks])
        if len(ratios):
            spread = math.exp(float(np.abs(np.log(np.maximum(ratios, 1e-9))).mean()))
            self.log(
                f"choosing types: {len(ratios)} groups measured; the estimates before were off by a factor of "
                f"{spread:.2f} (geometric mean), and are corrected"
            )
        return options

    @cached_property
    def speeds(self) -> DecodeSpeeds:
        """Tokens per second of this model's shape in every type on this machine."""
        if self._speeds is not None:
            return self._speeds
        config = self.source.model.config
        kinds = sorted({kind for matrix in self.options.matrices for kind in matrix.kinds}, key=bits)
        return decode_speeds(Shape.of(config), kinds, self.threads, self.log, self.workload)

    @cached_property
    def pace(self) -> Pace:
        """What the files measured so far say about ``speeds``."""
        return Pace(list(self.speeds.tok_s))

    def learn(self, choice: Choice, measured_tok_s: float) -> None:
        """Correct the speeds of types by the measured speed of a choice's file: for later choices, of this goal and
        of others."""
        seconds: dict[str, float] = defaultdict(float)
        for matrix in filter(self._is_read, self.options.matrices):
            kind = choice.types[matrix.name]
            seconds[kind] += self._per_weight(kind) * matrix.n_weights
        ratio = measured_tok_s * sum(seconds.values())
        self.pace.learn(seconds, 1 / measured_tok_s)
        self._learned += 1
        wrong = not 1 / _WRONG_SPEEDS < ratio < _WRONG_SPEEDS
        if self._learned == 1 and wrong and self._speeds is None and self.speeds.shape.is_of(self.source.model.config):
            forget(self.speeds)
            self.log(
                f"the decode speeds kept for this machine were off by a factor of {max(ratio, 1 / ratio):.1f}; the "
                "next command measures them again"
            )

    def choose(self, target: Target, stricter: float = 1.0) -> Choice:
        """The choice for a goal. ``stricter``: what the goal's number is multiplied by, where an earlier choice turned
        out to miss it. UserError where nothing meets the goal."""
        value = target.value * stricter
        if target.goal == "decode":
            return self._fast_enough(target, value)
        if target.goal in ("bits", "size"):
            return self._within_bytes(target, value)
        return self._within_loss(target, value)

    def _within_bytes(self, target: Target, value: float) -> Choice:
        fixed, padded = self._other_bytes()
        matrices = self.options.matrices
        if target.goal == "bits":
            n_weights = sum(math.prod(each.shape) for each in self.header.tensors)
            budget = value * n_weights / 8 - fixed
            cost = [np.array([each.n_bytes(kind) for kind in each.kinds], np.float64) for each in matrices]
        else:
            budget = value - padded
            cost = [np.array([_padded(each.n_bytes(kind)) for kind in each.kinds], np.float64) for each in matrices]
        chosen = least([each.loss for each in matrices], cost, budget)
        if chosen is None:
            smallest = self._choice(target, [int(np.argmin(each)) for each in cost])
            raise GoalError(
                f"quant={target.spelled} cannot be met: this model's smallest choice has "
                f"{smallest.bits_per_weight:.2f} bits per weight, {smallest.n_bytes / 1e6:.2f} MB; give more"
            )
        return self._choice(target, chosen)

    def _fast_enough(self, target: Target, tok_s: float) -> Choice:
        """Where nothing is predicted to be fast enough: the fastest."""
        matrices = self.options.matrices
        chosen = least([each.loss for each in matrices], [self._seconds(each) for each in matrices], 1 / tok_s)
        return self._choice(target, chosen or self._fastest_options())

    def singles(self, target: Target) -> list[Choice]:
        """The choices with one type for all matrices that are read for every token, in every type. A matrix that cannot
        have the type gets the fastest that it can have."""
        matrices, fastest = self.options.matrices, self._fastest_options()

        def option(matrix: Matrix, kind: str, otherwise: int) -> int:
            has = self._is_read(matrix) and kind in matrix.kinds
            return matrix.kinds.index(kind) if has else otherwise

        return [
            self._choice(target, [option(each, kind, k) for each, k in zip(matrices, fastest, strict=True)])
            for kind in self.speeds.tok_s
        ]

    def _fastest_options(self) -> list[int]:
        """Each matrix's fastest type; for a matrix that is only looked up, the type of least loss."""
        return [
            int(np.argmin(self._seconds(each) if self._is_read(each) else each.loss)) for each in self.options.matrices
        ]

    def again(self, target: Target, types: Mapping[str, str]) -> Choice:
        """The choice that an earlier command made for the goal. ``types``: of its record."""
        return self._choice(target, [each.kinds.index(types[each.name]) for each in self.options.matrices])

    def _within_loss(self, target: Target, limit: float) -> Choice:
        """The cheapest choice with a measured loss within the limit: the sum of the matrices' losses is only a
        first guess at the loss of all together."""
        matrices = self.options.matrices
        rounding = partial(round_matrix, self._weights, self.importance, self.threads)
        allowed, best = limit, None
        for _ in range(_ROUNDS):
            chosen = self._fastest(allowed) if target.goal == "speed" else self._smallest(allowed)
            if chosen is None:
                break
            types = {each.name: each.kinds[k] for each, k in zip(matrices, chosen, strict=True)}
            measured = self.options.round(types, rounding)
            choice = self._choice(target, chosen, measured)
            self.log(
                f"{target.spelled}: {choice.bits_per_weight:.2f} bits per weight, added loss {measured:.3g} nats "
                f"(predicted {choice.predicted_kl:.3g}, at most {limit:.3g})"
            )
            if measured <= limit and (best is None or choice.n_bytes < best.n_bytes or target.goal == "speed"):
                best = choice
            if _CLOSE * limit <= measured <= limit or (target.goal == "speed" and measured <= limit):
                break
            allowed = choice.predicted_kl * limit / max(measured, 1e-12) * (0.97 if measured > limit else 0.99)
        if best is None:
            lowest = float(sum(each.loss.min() for each in matrices))
            raise GoalError(
                f"quant={target.spelled} cannot be met: the best types for every matrix add about {lowest:.2g} nats "
                "per token; give a larger limit, or quant=f16"
            )
        return best

    def _smallest(self, allowed: float) -> list[int] | None:
        matrices = self.options.matrices
        cost = [np.array([each.n_bytes(kind) for kind in each.kinds], np.float64) for each in matrices]
        return least(cost, [each.loss for each in matrices], allowed)

    def _fastest(self, allowed: float) -> list[int] | None:
        """Along the best trades of time for loss, the choice with the least log(time) + 10 * loss."""
        matrices = self.options.matrices
        loss, seconds = [each.loss for each in matrices], [self._seconds(each) for each in matrices]
        best, least_score = None, math.inf
        for chosen in frontier(loss, seconds):
            total = sum(float(v[k]) for v, k in zip(loss, chosen, strict=True))
            time_s = sum(float(s[k]) for s, k in zip(seconds, chosen, strict=True))
            score = math.log(time_s) + TIME_PER_LOSS * total
            if total <= allowed and score < least_score:
                best, least_score = chosen, score
        return best

    def _seconds(self, matrix: Matrix) -> np.ndarray:
        """Seconds per token, by type. A matrix that is only looked up costs next to nothing: its bytes decide a
        little."""
        per_weight = np.array([self._per_weight(kind) for kind in matrix.kinds])
        if not self._is_read(matrix):
            smallest = self._per_weight(self.speeds.fastest)
            per_weight = 0.01 * smallest * np.array([bits(kind) for kind in matrix.kinds]) / 8
        return np.asarray(per_weight * matrix.n_weights, np.float64)

    @cached_property
    def read_names(self) -> list[str]:
        """Names of the matrices that every token reads, which decide the decode speed."""
        return [each.name for each in self.options.matrices if self._is_read(each)]

    def _is_read(self, matrix: Matrix) -> bool:
        """Whether all of it is read for every token; of an embedding that is not the head, too, one row is."""
        return matrix.name != "token_embd.weight" or self.source.model.config.tie_embeddings

    def _per_weight(self, kind: str) -> float:
        return self.speeds.seconds_per_weight(kind) * self.pace.factor(kind)

    @cached_property
    def _weights(self) -> Mapping[str, np.ndarray]:
        return {name: tensor.detach().float().numpy() for name, tensor in self.source.model.state_dict().items()}

    def _other_bytes(self) -> tuple[int, int]:
        """Bytes of all that no choice changes: the tensors alone, and the whole rest of the file with its padding."""
        chosen = {each.name for each in self.options.matrices}
        others = [each for each in self.header.tensors if each.name not in chosen]
        fixed = sum(each.n_bytes for each in others)
        padded = self.header.data_offset + _HEADER_BYTES + sum(_padded(each.n_bytes) for each in others)
        return fixed, padded

    def _choice(self, target: Target, chosen: list[int], measured: float | None = None) -> Choice:
        matrices = self.options.matrices
        fixed, padded = self._other_bytes()
        types = {each.name: each.kinds[k] for each, k in zip(matrices, chosen, strict=True)}
        own = [each.n_bytes(each.kinds[k]) for each, k in zip(matrices, chosen, strict=True)]
        n_weights = sum(math.prod(each.shape) for each in self.header.tensors)
        speed, workload = None, None
        if target.goal in ("speed", "decode"):
            read = filter(self._is_read, matrices)
            speed = 1 / sum(self._per_weight(types[each.name]) * each.n_weights for each in read)
            workload = self.workload.record() | {"threads": self.threads}
        return Choice(
            target=target,
            types=types,
            predicted_kl=float(sum(each.loss[k] for each, k in zip(matrices, chosen, strict=True))),
            measured_kl=measured,
            n_bytes=padded + sum(map(_padded, own)),
            bits_per_weight=8 * (fixed + sum(own)) / n_weights,
            decode_tok_s=speed,
            workload=workload,
            rows=role_rows(matrices, chosen),
        )


def role_rows(matrices: list[Matrix], chosen: list[int]) -> list[dict[str, Any]]:
    """One row per role: its types with their layers, and what the next smaller and larger types would change."""
    roles: dict[str, list[tuple[Matrix, int]]] = defaultdict(list)
    for matrix, k in zip(matrices, chosen, strict=True):
        roles[matrix.name.split(".")[2] if matrix.name.startswith("blk.") else matrix.name.split(".")[0]].append(
            (matrix, k)
        )
    rows = []
    for role, members in roles.items():
        types: dict[str, dict[str, Any]] = {}
        for matrix, k in sorted(members, key=lambda member: -bits(member[0].kinds[member[1]])):
            entry = types.setdefault(matrix.kinds[k], {"layers": [], "weights": 0})
            entry["weights"] += matrix.n_weights
            if matrix.name.startswith("blk."):
                entry["layers"] = sorted([*entry["layers"], int(matrix.name.split(".")[1])])
        smaller = [_change(matrix, k, -1) for matrix, k in members]
        larger = [_change(matrix, k, +1) for matrix, k in members]
        rows.append(
            {
                "role": role,
                "types": types,
                "weights": sum(matrix.n_weights for matrix, _ in members),
                "bytes": sum(matrix.n_bytes(matrix.kinds[k]) for matrix, k in members),
                "kl": float(sum(matrix.loss[k] for matrix, k in members)),
                "smaller": {"bytes": sum(b for b, _ in smaller), "kl": sum(kl for _, kl in smaller)},
                "larger": {"bytes": sum(b for b, _ in larger), "kl": sum(kl for _, kl in larger)},
            }
        )
    return rows


def _change(matrix: Matrix, k: int, step: int) -> tuple[int, float]:
    """Bytes and nats that one type smaller or larger would change; of types of equal size the better counts."""
    now = matrix.n_bytes(matrix.kinds[k])
    sizes = [matrix.n_bytes(kind) for kind in matrix.kinds]
    others = [size for size in sizes if (size - now) * step > 0]
    if not others:
        return 0, 0.0
    nearest = min(others) if step > 0 else max(others)
    loss = min(float(matrix.loss[i]) for i, size in enumerate(sizes) if size == nearest)
    return nearest - now, loss - float(matrix.loss[k])


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // 32) * 32
