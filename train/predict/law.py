"""The law between a model's size, the text that it has read, and its loss, fitted to the records of finished runs.

    bits per byte = E + (x^(1/beta) + y^(1/beta))^beta,    x = A (N / 1M)^-alpha,    y = B (D V / 1MB)^-beta

This is the form of Kaplan et al. 2020 (arXiv 2001.08361, equation 1.5) above a floor E. N counts the parameters of the
layers' matrices and D the bytes of text (in bytes, so that vocabularies can be compared). Where text is short, the size
hardly counts, and the other way round; a plain sum of x and y cannot say that. A larger vocabulary learns more
from the same bytes: V = (vocabulary / 2048)^g. Text that is read again counts less, as in Muennighoff et al. 2023
(arXiv 2305.16264): R repetitions of U bytes are worth R* (1 - exp(-R / R*)) times U, and a model that is larger than
such text can fill counts as a smaller one.

It holds for runs with a learning rate that falls to zero by their end. Other text than the English books of the records
has another level, by ``text_factor``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slm.train.predict.ngram import Level
from slm.train.predict.records import Record

REPEATED_TEXT = 2.0
"""R* of repeated text: the most new text, as a multiple of the unique text, that repetitions are worth. Muennighoff et
al. find 15.4 for large models. With 15.4 the law predicts 1.86 bits per byte after eight epochs of 1 MB, and 1.95 was
measured. With 2 it is closer to these runs and to all older records (docs/results/plan.md)."""
REPEATED_SIZE = 5.3
"""R* of parameters in excess of those that the text can fill."""
BYTES_PER_PARAMETER = 40.0
"""Bytes of text per parameter at the compute-optimal size, about 10 tokens."""
VOCABULARY, VOCABULARY_GAIN = 2048, 0.1
"""Text counts (vocabulary / VOCABULARY) ** VOCABULARY_GAIN times, in addition to the longer tokens of a larger
vocabulary. The leave-one-out error of the first 31 records is 0.99 % with .1, 1.07 % with 0 and 1.21 % with .2."""
SUPERPOSED_TEXT, MOST_SUPERPOSED = 0.25, 2.5e6
"""Extra text, as a share of the text at the run's positions and at most in bytes, that a first tenth of bags of four
tokens is worth (``train.phases``). Measured: 1.8 % fewer bits per byte after 2.5M tokens, .1 % after 7.7M
(docs/lab/recipe-choices.md)."""
BIGRAM_TEXT, BIGRAM_AT = 1e7, 1e7
"""Extra bytes of text that bigram initialization is worth (``optim.init_bigrams``): BIGRAM_TEXT * n / (n + BIGRAM_AT)
after n bytes (docs/results/recipe.md)."""
BIGRAM_VOCABULARY, BIGRAM_GAIN = 8192, 0.3
"""Bigram initialization is worth (vocabulary / BIGRAM_VOCABULARY) ** BIGRAM_GAIN times that text, because a larger
vocabulary has more rows that training alone rarely reaches. With .3 the law predicts 48,675 tokens 0.4 % below 32,768
after 4.9M training tokens (measured: 0.4 and 0.6 %), with 0 less than 0.2 %. The error over the first 31 records is
0.99 % with .3 and 0.94 % with 0."""
SAMPLED_VOCABULARY, SAMPLED_GAIN = 8192, 0.22
"""Extra text, as a share per factor of e above SAMPLED_VOCABULARY, that ``train.sampled_softmax`` is worth. Measured
with 48,675 tokens sampled by frequency: 1.0 % fewer bits per byte after 1.2M training tokens and 2.2 % after 4.9M
(docs/results/recipe.md). The runs of the first 32 records sampled uniformly and have no such share."""
DEEP_FROM, DEEP_LR = 4, 0.02
"""Number of layers from which budgets use the lower learning rate DEEP_LR, instead of 0.03, with bigram
initialization."""
DEEP_TEXT, DEEP_READINGS = 0.12, (0.5, 1.5)
"""Extra text, as a share, that the lower rate is worth: none up to the first number of epochs, all of it from the
second on. A rate of 0.03 needed 13 % more text for the same loss after 1.9 epochs, and 2 % more after .6
(docs/lab/recipe-choices.md)."""
TAUGHT, TEACHER_BEHIND = 0.978, 0.3
"""Bits per byte after self-distillation (``distill.born_again``) relative to training without a teacher, where the
teacher has seen as many epochs, and the share of a weaker teacher's gap that is added. Eight runs on 1 to 52 MB reached
.969 to .987 times the law's prediction without a teacher (docs/results/recipe.md)."""
CALIBRATED, CALIBRATED_HEAD = 0.0003, (16_384, 256)
"""Share of the bits per byte that calibrating the head (``train.calibrate_head``) removes per epoch, for the vocabulary
and width of CALIBRATED_HEAD. It grows with vocabulary × width². Eleven models are within .2 percentage points
(docs/results/plan.md)."""
CALIBRATED_READINGS, MOST_CALIBRATED = 8.0, 0.011
"""Most epochs, and the largest share removed, in the measurements."""
COUNTED_SHARE = 0.5
"""Largest extra text of bigram initialization, as a share of the text that was counted."""
EASIER, EASIER_WITH_TEXT, EASIER_AT = 2.92, 0.57, 10e6
"""Cubic term of ``text_factor``, how much it grows per factor of e in text, and the bytes of text at which it is
``EASIER``."""
EASIEST = 0.3
"""A level below this counts as this: the easiest text of the fit, the stories, has .42."""
REPETITION, REPETITION_AT = 0.25, 8e6
"""How much the memory for repetition is worth per factor of e below ``REPETITION_AT`` bytes of text: a model learns to
repeat late, an n-gram model with a memory can from the beginning."""
TEXT_ERROR, TEXT_SPAN = 0.055, (2.5e6, 950e6)
"""Relative error of ``text_factor``, and the bytes of the runs of texts.csv, on Wikipedia, Python, Markdown, German
laws and stories. Its constants were fitted to all of them but the longest. A text that was left out of the fit is
within 9 %, 5.5 % as root mean square, the stories apart (docs/results/plan.md)."""
BEYOND = 3.0
"""Growth of the interval per factor of ten beyond the records, in units of the leave-one-out error. A law fitted to the
runs that read less than 40 MB is off by 1.7 to 3.2 % on the nine that read 160 to 410 MB; with 3 eight of these are
within its interval, with 2 it would hold two (docs/results/plan.md)."""
UNIT = 1e6
"""Unit of parameters and bytes in the law: one million."""

PRIOR = {"floor": (1.00, 0.25), "alpha": (0.40, 0.08), "beta": (0.40, 0.08)}
"""Prior mean and standard deviation of the floor (bits per byte) and the exponents, from larger studies. A few small
runs alone do not determine them."""
BEST_USE = (5.0, 50.0, 0.2)
"""Prior on the compute-optimal size: millions of parameters, bytes of text per parameter, and the standard deviation of
log(x / y). From nanochat's log: 10.5 tokens per parameter, head included."""
NOISE = 0.006
"""Relative standard deviation of a run's result over seeds and validation texts."""
STARTS = ((1.0, 0.3, 0.4, 1.2, 0.4), (0.8, 0.5, 0.3, 1.5, 0.3), (1.2, 0.2, 0.5, 1.0, 0.5))
"""Initial values of floor, A, alpha, B and beta. The fit with the lowest error of all is kept."""
ITERATIONS = 60


@dataclass(frozen=True, kw_only=True)
class LossLaw:
    """The law's constants and its error."""

    floor: float
    """E: the irreducible bits per byte."""
    size: float
    """A, bits per byte."""
    alpha: float
    text: float
    """B, bits per byte."""
    beta: float
    error: float = 0.0
    """Root mean square of the relative leave-one-out errors."""
    span: tuple[float, float, float, float] = (0.0, math.inf, 0.0, math.inf)
    """Least and most parameters, least and most bytes of the records."""

    def predict(self, n: float, n_bytes: float, unique: float = math.inf, vocab_size: int = VOCABULARY) -> float:
        """Bits per byte of a model with ``n`` parameters in its layers' matrices that reads ``n_bytes`` of text.

        ``unique``: bytes of distinct text. Below ``n_bytes`` the text is read for more than one epoch.
        """
        n, n_bytes = effective(n, n_bytes, unique, vocab_size)
        constants = np.array([self.floor, self.size, self.alpha, self.text, self.beta])
        return float(_curve(constants, np.array([n]), np.array([n_bytes]))[0])

    def interval(
        self, n: float, n_bytes: float, unique: float = math.inf, vocab_size: int = VOCABULARY
    ) -> tuple[float, float]:
        """Bits per byte between which two runs of three should end.

        The half-width is ``error``, plus ``BEYOND`` times ``error`` per factor of ten beyond the records in size or
        text, plus half of it per doubling of the epochs above four.
        """
        value = self.predict(n, n_bytes, unique, vocab_size)
        least_n, most_n, least_d, most_d = self.span
        beyond = _decades(n, least_n, most_n) + _decades(n_bytes, least_d, most_d)
        epochs = max(0.0, math.log2(max(n_bytes / unique, 1e-9) / 4))
        half = value * self.error * (1 + BEYOND * beyond + epochs / 2)
        return max(0.0, value - half), value + half


def _decades(value: float, least: float, most: float) -> float:
    """Decades by which ``value`` lies outside of a range."""
    return max(0.0, math.log10(value / most) if most < math.inf else 0.0, math.log10(least / value) if least else 0.0)


def effective(n: float, n_bytes: float, unique: float, vocab_size: int) -> tuple[float, float]:
    """Effective parameters and bytes, after repetition and vocabulary."""
    gain = (vocab_size / VOCABULARY) ** VOCABULARY_GAIN
    if n_bytes <= unique:
        return n, n_bytes * gain
    repeats = n_bytes / unique - 1
    worth = unique * (1 + REPEATED_TEXT * (1 - math.exp(-repeats / REPEATED_TEXT)))
    filled = unique / BYTES_PER_PARAMETER
    if n > filled:
        n = filled * (1 + REPEATED_SIZE * (1 - math.exp(-(n / filled - 1) / REPEATED_SIZE)))
    return n, worth * gain


def text_worth(
    n_bytes: float,
    *,
    bag: int,
    counted: float,
    vocab_size: int,
    sampled: bool,
    slower: bool = False,
    readings: float = 0.0,
) -> float:
    """Effective bytes of a run's text. ``n_bytes``: bytes of the tokens at its positions.

    ``bag``: tokens per position in the first phase (``train.phases``; 1: no bags). ``counted``: bytes of text counted
    for bigram initialization. ``vocab_size``: rows that it initializes. ``sampled``: whether the softmax is sampled
    (``train.sampled_softmax``). ``slower``: whether a deep model's matrices learn at ``DEEP_LR``. ``readings``: epochs.
    """
    gain = (vocab_size / BIGRAM_VOCABULARY) ** BIGRAM_GAIN
    begun = gain * min(BIGRAM_TEXT, COUNTED_SHARE * counted) / (n_bytes + BIGRAM_AT)
    drawn = SAMPLED_GAIN * math.log(max(1.0, vocab_size / SAMPLED_VOCABULARY)) if sampled else 0.0
    bags = min(SUPERPOSED_TEXT * n_bytes, MOST_SUPERPOSED) if bag > 1 else 0.0
    least, most = DEEP_READINGS
    deep = DEEP_TEXT * min(1.0, max(0.0, (readings - least) / (most - least))) if slower else 0.0
    return (n_bytes * (1.0 + begun + drawn) + bags) * (1.0 + deep)


def taught(alone: float, teacher: float) -> float:
    """Bits per byte of a student. ``teacher``: the teacher's; ``alone``: the student's without a teacher."""
    return alone * (TAUGHT + TEACHER_BEHIND * max(0.0, teacher / alone - 1))


def calibrated(readings: float, *, vocab_size: int, d_model: int) -> float:
    """Bits per byte with a calibrated head, relative to those without. ``readings``: the model's epochs, without its
    teacher's."""
    words, width = CALIBRATED_HEAD
    gain = CALIBRATED * min(readings, CALIBRATED_READINGS) * vocab_size / words * (d_model / width) ** 2
    return 1 - min(MOST_CALIBRATED, gain)


def learns_slower(n_layers: int, bigrams: float) -> bool:
    """Whether budgets train the matrices at ``DEEP_LR``. ``bigrams``: pairs counted for initialization."""
    return n_layers >= DEEP_FROM and bigrams > 0


def text_read(n_bytes: float, *, bag: int, share: float) -> float:
    """Bytes read by a run. The first ``share`` of its positions hold ``bag`` tokens each."""
    return n_bytes * (1 + share * (bag - 1))


def text_factor(level: Level, n_bytes: float) -> tuple[float, float]:
    """Factor on the law's bits per byte for a text of this ``level``, and its relative error (one standard deviation).

    ``n_bytes``: what a run reads of it, as the law counts it. With more text a model comes closer to the n-gram model
    with a memory, and gains more than that from text that repeats itself, hence the cubic term. Text that is harder
    than the books has none: nothing like it was measured.
    """
    if level == Level():  # the books of the records
        return 1.0, 0.0
    least, most = TEXT_SPAN
    n_bytes = min(most, max(least, n_bytes))
    remembering = math.log(max(EASIEST, level.remembering))
    memory = math.log(max(EASIEST, level.forgetting)) - remembering
    easier = EASIER + EASIER_WITH_TEXT * math.log(n_bytes / EASIER_AT)
    late = REPETITION * math.log(REPETITION_AT / n_bytes) * memory
    return math.exp(remembering + easier * min(0.0, remembering) ** 3 + late), TEXT_ERROR


def fit(records: Sequence[Record], *, prior: bool = True) -> LossLaw:
    """The law that fits best, without its ``error``. ``prior=False``: from these records alone."""
    worth = [effective(r.n_matrix, r.bytes, r.unique_bytes, r.vocab_size) for r in records]
    n, d = (np.array(column) for column in zip(*worth, strict=True))
    factors = [text_factor(r.level, r.bytes) for r in records]
    y = np.array([r.bits_per_byte / factor for r, (factor, _) in zip(records, factors, strict=True)])
    weight = 1 / (y * np.array([math.hypot(NOISE, blur) for _, blur in factors]))
    ends = [_descend(np.array(start), n, d, y, weight, prior) for start in STARTS]
    (floor, size, alpha, text, beta), _ = min(ends, key=lambda end: end[1])
    sizes, texts = [r.n_matrix for r in records], [r.bytes for r in records]
    span = (float(min(sizes)), float(max(sizes)), float(min(texts)), float(max(texts)))
    return LossLaw(
        floor=float(floor), size=float(size), alpha=float(alpha), text=float(text), beta=float(beta), span=span
    )


def _curve(constants: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The law for parameters and effective bytes."""
    floor, size, alpha, text, beta = constants
    x, y = size * (n / UNIT) ** -alpha, text * (d / UNIT) ** -beta
    return floor + (x ** (1 / beta) + y ** (1 / beta)) ** beta


def _residuals(
    constants: np.ndarray, n: np.ndarray, d: np.ndarray, y: np.ndarray, weight: np.ndarray, prior: bool
) -> np.ndarray:
    found = (_curve(constants, n, d) - y) * weight
    if not prior:
        return found
    floor, size, alpha, text, beta = constants
    named = {"floor": floor, "alpha": alpha, "beta": beta}
    known = [(named[name] - mean) / deviation for name, (mean, deviation) in PRIOR.items()]
    millions, bytes_each, deviation = BEST_USE
    x, at_best = size * millions**-alpha, text * (millions * bytes_each) ** -beta
    # Where x^(1/beta) + y^(1/beta) is least for a given N D: alpha x^(1/beta) = beta y^(1/beta).
    known.append((math.log(x / at_best) + beta * math.log(alpha / beta)) / deviation)
    return np.append(found, known)


def _descend(
    start: np.ndarray, n: np.ndarray, d: np.ndarray, y: np.ndarray, weight: np.ndarray, prior: bool
) -> tuple[np.ndarray, float]:
    """Least squares by Levenberg and Marquardt, in the constants' logarithms, so that they stay positive."""

    def residuals(logs: np.ndarray) -> np.ndarray:
        return _residuals(np.exp(logs), n, d, y, weight, prior)

    logs, damping = np.log(start), 1e-2
    now = residuals(logs)
    for _ in range(ITERATIONS):
        slopes = np.stack([(residuals(logs + 1e-6 * unit) - now) / 1e-6 for unit in np.eye(len(logs))], axis=1)
        square = slopes.T @ slopes
        step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ now)
        new = residuals(np.clip(logs + step, -6, 3))
        if np.square(new).sum() < np.square(now).sum():
            done = np.square(now).sum() - np.square(new).sum() < 1e-9 * np.square(now).sum()
            logs, now, damping = np.clip(logs + step, -6, 3), new, damping / 3
            if done:
                break
        else:
            damping = min(damping * 4, 1e9)
    return np.exp(logs), float(np.square(now).sum())


def left_out_errors(records: Sequence[Record]) -> list[float]:
    """For each record the relative error of the law that is fitted to all others: predicted / measured - 1."""
    errors = []
    for index, record in enumerate(records):
        law = fit([*records[:index], *records[index + 1 :]])
        predicted = (
            law.predict(record.n_matrix, record.bytes, record.unique_bytes, record.vocab_size)
            * text_factor(record.level, record.bytes)[0]
        )
        errors.append(predicted / record.bits_per_byte - 1)
    return errors


def fitted(records: Sequence[Record]) -> LossLaw:
    """The law that fits best, with the error that leaving out one record at a time gives."""
    errors = np.array(left_out_errors(records))
    return replace(fit(records), error=float(np.sqrt(np.square(errors).mean())))
