"""The law between a model's size, the text that it has read, and its loss, fitted to the records of finished runs.

    bits per byte = E + A (N / 1M)^-alpha + B (D / 1MB)^-beta

N counts the parameters of the layers' matrices, D the bytes of text (Hoffmann et al. 2022, arXiv 2203.15556; in bytes,
so that vocabularies can be compared). Text that is read again counts less, as in Muennighoff et al. 2023 (arXiv
2305.16264): R repetitions of U bytes are worth R* (1 - exp(-R / R*)) times U, and a model that is larger than such text
can fill counts as a smaller one.

It holds for runs whose learning rate falls to zero by their end. Other text than the English books of the records has
another level, by ``text_factor``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from train.predict.records import Record

REPEATED_TEXT = 15.4
"""R* of repeated text: the repetitions whose worth is at most as much as so much new text."""
REPEATED_SIZE = 5.3
"""R* of parameters beyond those that the text can fill."""
BYTES_PER_PARAMETER = 40.0
"""Bytes of text that one parameter needs at the best use of a machine's time: about 10 tokens."""
UNIT = 1e6
"""Parameters and bytes are counted in millions."""

PRIOR = {"floor": (0.80, 0.15), "alpha": (0.40, 0.10), "beta": (0.40, 0.10)}
"""What is known before any run: mean and deviation. The floor (bits per byte) and the exponents are those of larger
studies; a few small runs alone would leave them open."""
NOISE = 0.006
"""Deviation of a run's result by its seed and the piece of text that scores it, as a share."""
COARSE, FINE = 0.1, 0.01
"""Steps of the exponents that are tried: coarse ones everywhere, fine ones around the best."""


@dataclass(frozen=True, kw_only=True)
class LossLaw:
    """The law's constants, and how far it is off."""

    floor: float
    """E: bits per byte that no model gets below."""
    size: float
    """A, bits per byte."""
    alpha: float
    text: float
    """B, bits per byte."""
    beta: float
    error: float = 0.0
    """Root mean square of the relative errors of records that were left out of the fit, one at a time."""
    span: tuple[float, float, float, float] = (0.0, math.inf, 0.0, math.inf)
    """The least and the most parameters, the least and the most bytes of the records."""

    def predict(self, n: float, n_bytes: float, unique: float = math.inf) -> float:
        """Bits per byte of a model with ``n`` parameters in its layers' matrices that reads ``n_bytes`` of text.

        ``unique``: the bytes that the text has; it is read more than once where that is less.
        """
        n, n_bytes = effective(n, n_bytes, unique)
        return self.floor + self.size * (n / UNIT) ** -self.alpha + self.text * (n_bytes / UNIT) ** -self.beta

    def interval(self, n: float, n_bytes: float, unique: float = math.inf) -> tuple[float, float]:
        """Bits per byte between which two runs of three should end.

        ``error`` both ways; for each factor of ten beyond the records, in size or text, twice that in addition, and
        half of it for each doubling of epochs from four on.
        """
        value = self.predict(n, n_bytes, unique)
        least_n, most_n, least_d, most_d = self.span
        beyond = _decades(n, least_n, most_n) + _decades(n_bytes, least_d, most_d)
        epochs = max(0.0, math.log2(max(n_bytes / unique, 1e-9) / 4))
        half = value * self.error * (1 + 2 * beyond + epochs / 2)
        return max(0.0, value - half), value + half


def _decades(value: float, least: float, most: float) -> float:
    """Factors of ten by which ``value`` lies outside of a range."""
    return max(0.0, math.log10(value / most) if most < math.inf else 0.0, math.log10(least / value) if least else 0.0)


def effective(n: float, n_bytes: float, unique: float) -> tuple[float, float]:
    """Parameters and bytes after what repetition takes away."""
    if n_bytes <= unique:
        return n, n_bytes
    repeats = n_bytes / unique - 1
    worth = unique * (1 + REPEATED_TEXT * (1 - math.exp(-repeats / REPEATED_TEXT)))
    filled = unique / BYTES_PER_PARAMETER
    if n > filled:
        n = filled * (1 + REPEATED_SIZE * (1 - math.exp(-(n / filled - 1) / REPEATED_SIZE)))
    return n, worth


def text_factor(difficulty: float) -> tuple[float, float]:
    """By what the law's bits per byte are multiplied for a text, and by what share that may be off.

    ``difficulty``: what bz2 leaves of the text, in units of the books'. A model gains more than bz2 from text that
    repeats itself: the embedded stories, a quarter of the books for bz2, are a fifteenth for a model. The power 1.5 is
    between the two, and the share says how little it is to be trusted.
    """
    return difficulty**1.5, 0.5 * abs(math.log(difficulty))


def fit(records: Sequence[Record], *, prior: bool = True) -> LossLaw:
    """The law that fits best, without its ``error``. ``prior=False``: from these records alone."""
    n = np.array([effective(r.n_matrix, r.bytes, r.unique_bytes)[0] for r in records])
    d = np.array([effective(r.n_matrix, r.bytes, r.unique_bytes)[1] for r in records])
    factors = [text_factor(r.difficulty) for r in records]
    y = np.array([r.bits_per_byte / factor for r, (factor, _) in zip(records, factors, strict=True)])
    weight = 1 / (y * np.array([math.hypot(NOISE, blur) for _, blur in factors]))
    coarse = [(a, b) for a in np.arange(0.1, 1.0, COARSE) for b in np.arange(0.1, 1.0, COARSE)]
    (_, alpha, beta), _ = _best(coarse, n, d, y, weight, prior)
    near = np.arange(-COARSE, COARSE + FINE / 2, FINE)
    fine = [(alpha + i, beta + j) for i in near for j in near if min(alpha + i, beta + j) > 0.02]
    (terms, alpha, beta), _ = _best(fine, n, d, y, weight, prior)
    floor, size, text = map(float, terms)
    span = (float(n.min()), float(n.max()), float(d.min()), float(d.max()))
    return LossLaw(floor=floor, size=size, alpha=float(alpha), text=text, beta=float(beta), span=span)


def _best(
    exponents: list[tuple[float, float]], n: np.ndarray, d: np.ndarray, y: np.ndarray, weight: np.ndarray, prior: bool
) -> tuple[tuple[np.ndarray, float, float], float]:
    """Of pairs of exponents the best one, with the law's three other constants, and its cost."""
    best, best_cost = None, math.inf
    for alpha, beta in exponents:
        columns = np.stack([np.ones_like(y), (n / UNIT) ** -alpha, (d / UNIT) ** -beta], axis=1)
        left, right = columns * weight[:, None], y * weight
        cost = 0.0
        if prior:
            mean, deviation = PRIOR["floor"]
            left, right = np.vstack([left, [1 / deviation, 0, 0]]), np.append(right, mean / deviation)
            for name, value in (("alpha", alpha), ("beta", beta)):
                mean, deviation = PRIOR[name]
                cost += ((value - mean) / deviation) ** 2
        solution = np.linalg.lstsq(left, right, rcond=None)[0]
        cost += float(np.square(left @ solution - right).sum())
        if cost < best_cost and (solution >= 0).all():
            best_cost, best = cost, (solution, alpha, beta)
    if best is None:
        raise ValueError("no law with positive terms fits these records")
    return best, best_cost


def left_out_errors(records: Sequence[Record]) -> list[float]:
    """For each record the relative error of the law that is fitted to all others: predicted / measured - 1."""
    errors = []
    for index, record in enumerate(records):
        law = fit([*records[:index], *records[index + 1 :]])
        predicted = law.predict(record.n_matrix, record.bytes, record.unique_bytes) * text_factor(record.difficulty)[0]
        errors.append(predicted / record.bits_per_byte - 1)
    return errors


def fitted(records: Sequence[Record]) -> LossLaw:
    """The law that fits best, with the error that leaving out one record at a time gives."""
    errors = np.array(left_out_errors(records))
    return replace(fit(records), error=float(np.sqrt(np.square(errors).mean())))
