"""The law between a model's size, the text that it has read, and its loss, fitted to the records of finished runs.

    bits per byte = E + (x^(1/beta) + y^(1/beta))^beta,    x = A (N / 1M)^-alpha,    y = B (D V / 1MB)^-beta

This is the form of Kaplan et al. 2020 (arXiv 2001.08361, equation 1.5) above a floor E. N counts the parameters of the
layers' matrices and D the bytes of text (in bytes, so that vocabularies can be compared). Where text is short, the size
hardly counts, and the other way round; a plain sum of x and y cannot say that. A larger vocabulary learns more
from the same bytes: V = (vocabulary / 2048)^g. Text that is read again counts less, as in Muennighoff et al. 2023
(arXiv 2305.16264): R repetitions of U bytes are worth R* (1 - exp(-R / R*)) times U, and a model that is larger than
such text can fill counts as a smaller one.

It holds for runs whose learning rate falls to zero by their end. Other text than the English books of the records has
another level, by ``text_factor``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slm.train.predict.records import Record

REPEATED_TEXT = 2.0
"""R* of repeated text: however often a text is repeated, that is worth at most so much new text. Muennighoff et al.
find 15.4 for large models. With it the law put eight readings of 1 MB at 1.86 bits per byte, and 1.95 came; with 2 it
is nearer to these runs and to all older records (docs/results/plan.md)."""
REPEATED_SIZE = 5.3
"""R* of parameters beyond those that the text can fill."""
BYTES_PER_PARAMETER = 40.0
"""Bytes of text that one parameter needs at the best use of a machine's time: about 10 tokens."""
VOCABULARY, VOCABULARY_GAIN = 2048, 0.1
"""A vocabulary's text counts as more by its size in units of the first number, to the power g, on top of the bytes of
its longer tokens. The first 31 records, each left out in turn, are off by 0.99 % with .1, 1.07 % with 0, 1.21 % with
.2."""
SUPERPOSED_TEXT, MOST_SUPERPOSED = 0.25, 2.5e6
"""A run that began with bags of four tokens for a tenth of its steps (``train.phases``) counts as more text by
this share of that of its positions, at most by so many bytes. From docs/lab/recipe-choices.md: 1.8 % fewer bits
per byte after 2.5M tokens, and .1 % after 7.7M."""
BIGRAM_TEXT, BIGRAM_AT = 1e7, 1e7
"""A run whose embedding and head begin as a model of bigrams (``optim.init_bigrams``) counts as much more text as the
first number, once it has read much more than the second; bytes. From docs/results/recipe.md."""
BIGRAM_VOCABULARY, BIGRAM_GAIN = 8192, 0.3
"""Bigrams count as more text by the vocabulary's size in units of the first number, to this power: a larger vocabulary
has more rows that training alone would hardly reach. With .3 the law puts 48,675 ids 0.4 % below 32,768 after 4.9M
tokens (measured: 0.4 and 0.6 %), with 0 less than 0.2 %. Over the first 31 records it is off by 0.99 % with .3, 0.94 %
with 0."""
SAMPLED_VOCABULARY, SAMPLED_GAIN = 8192, 0.22
"""What a run with ``train.sampled_softmax`` and a vocabulary larger than the first number reads counts as more text, by
this share for each factor of e. From docs/results/recipe.md, where words are drawn by frequency: 1.0 % fewer bits per
byte after 1.2M tokens and 2.2 % after 4.9M with 48,675 ids. The first 32 records are of runs that drew evenly, and do
not count so."""
DEEP_FROM, DEEP_LR = 4, 0.02
"""Budgets train the matrices of so many layers or more at this rate, instead of 0.03, where embedding and head begin as
bigrams."""
DEEP_TEXT, DEEP_READINGS = 0.12, (0.5, 1.5)
"""By what share the text of such a run counts as more: by nothing up to the first number of readings, by all of it from
the second on. At 0.03 as low a loss took 13 % more text after 1.9 readings, and 2 % more after .6
(docs/lab/recipe-choices.md)."""
TAUGHT, TEACHER_BEHIND = 0.978, 0.3
"""Bits per byte of a model that learns from the predictions of a teacher of its own kind, too (``distill.born_again``),
in units of those without, where the teacher has read as often; and how much of the share by which the teacher is worse
than that is added. Eight runs of 1 to 52 MB have .969 to .987 times what the law says of them without a teacher
(docs/results/recipe.md)."""
CALIBRATED, CALIBRATED_HEAD = 0.0003, (16_384, 256)
"""What each reading of the text gives to a head that is calibrated at the end (``train.calibrate_head``), as a share of
the bits per byte, for a head of so many words and such a width; with its words and the square of its width. Eleven
models are within .2 points of it (docs/results/plan.md)."""
CALIBRATED_READINGS, MOST_CALIBRATED = 8.0, 0.011
"""The most readings, and the most gained, that were measured."""
COUNTED_SHARE = 0.5
"""At most this share of the text whose bigrams were counted."""
UNIT = 1e6
"""Parameters and bytes are counted in millions."""

PRIOR = {"floor": (1.00, 0.25), "alpha": (0.40, 0.08), "beta": (0.40, 0.08)}
"""What is known before any run: mean and deviation. The floor (bits per byte) and the exponents are those of larger
studies; a few small runs alone would leave them open."""
BEST_USE = (5.0, 50.0, 0.2)
"""Known, too: a model of so many million parameters is the best use of a machine's time with so many bytes of text for
each, give or take this in the logarithm of x / y (nanochat's log: 10.5 tokens for each parameter, head included)."""
NOISE = 0.006
"""Deviation of a run's result by its seed and the piece of text that scores it, as a share."""
STARTS = ((1.0, 0.3, 0.4, 1.2, 0.4), (0.8, 0.5, 0.3, 1.5, 0.3), (1.2, 0.2, 0.5, 1.0, 0.5))
"""Floor, A, alpha, B and beta from which a fit begins; the best end counts."""
ITERATIONS = 60


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

    def predict(self, n: float, n_bytes: float, unique: float = math.inf, vocab_size: int = VOCABULARY) -> float:
        """Bits per byte of a model with ``n`` parameters in its layers' matrices that reads ``n_bytes`` of text.

        ``unique``: the bytes that the text has; it is read more than once where that is less.
        """
        n, n_bytes = effective(n, n_bytes, unique, vocab_size)
        constants = np.array([self.floor, self.size, self.alpha, self.text, self.beta])
        return float(_curve(constants, np.array([n]), np.array([n_bytes]))[0])

    def interval(
        self, n: float, n_bytes: float, unique: float = math.inf, vocab_size: int = VOCABULARY
    ) -> tuple[float, float]:
        """Bits per byte between which two runs of three should end.

        ``error`` both ways; for each factor of ten beyond the records, in size or text, twice that in addition, and
        half of it for each doubling of epochs from four on.
        """
        value = self.predict(n, n_bytes, unique, vocab_size)
        least_n, most_n, least_d, most_d = self.span
        beyond = _decades(n, least_n, most_n) + _decades(n_bytes, least_d, most_d)
        epochs = max(0.0, math.log2(max(n_bytes / unique, 1e-9) / 4))
        half = value * self.error * (1 + 2 * beyond + epochs / 2)
        return max(0.0, value - half), value + half


def _decades(value: float, least: float, most: float) -> float:
    """Factors of ten by which ``value`` lies outside of a range."""
    return max(0.0, math.log10(value / most) if most < math.inf else 0.0, math.log10(least / value) if least else 0.0)


def effective(n: float, n_bytes: float, unique: float, vocab_size: int) -> tuple[float, float]:
    """Parameters and bytes after what repetition takes away and the vocabulary adds."""
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
    """What the text of a run counts, bytes; ``n_bytes``: what its positions stand for as tokens.

    ``bag``: tokens of each of the first positions (``train.phases``; 1: all hold one). ``counted``: the text
    whose bigrams were counted for the first weights, bytes. ``vocab_size``: rows that these begin.
    ``sampled``: whether training computes the logits of some words only (``train.sampled_softmax``). ``slower``:
    whether the matrices of a deep model learn at ``DEEP_LR``. ``readings``: how often the text is read.
    """
    gain = (vocab_size / BIGRAM_VOCABULARY) ** BIGRAM_GAIN
    begun = gain * min(BIGRAM_TEXT, COUNTED_SHARE * counted) / (n_bytes + BIGRAM_AT)
    drawn = SAMPLED_GAIN * math.log(max(1.0, vocab_size / SAMPLED_VOCABULARY)) if sampled else 0.0
    bags = min(SUPERPOSED_TEXT * n_bytes, MOST_SUPERPOSED) if bag > 1 else 0.0
    least, most = DEEP_READINGS
    deep = DEEP_TEXT * min(1.0, max(0.0, (readings - least) / (most - least))) if slower else 0.0
    return (n_bytes * (1.0 + begun + drawn) + bags) * (1.0 + deep)


def taught(alone: float, teacher: float) -> float:
    """Bits per byte of a model whose teacher has ``teacher``, and that would have ``alone`` without one."""
    return alone * (TAUGHT + TEACHER_BEHIND * max(0.0, teacher / alone - 1))


def calibrated(readings: float, *, vocab_size: int, d_model: int) -> float:
    """Bits per byte of a model whose head is calibrated at its end, in units of those without.

    ``readings``: how often the model reads its text, its teacher's not counted.
    """
    words, width = CALIBRATED_HEAD
    gain = CALIBRATED * min(readings, CALIBRATED_READINGS) * vocab_size / words * (d_model / width) ** 2
    return 1 - min(MOST_CALIBRATED, gain)


def learns_slower(n_layers: int, bigrams: float) -> bool:
    """Whether budgets train the matrices at ``DEEP_LR``; ``bigrams``: what is counted for embedding and head."""
    return n_layers >= DEEP_FROM and bigrams > 0


def text_read(n_bytes: float, *, bag: int, share: float) -> float:
    """What a run reads, bytes, where the first ``share`` of its positions hold ``bag`` tokens each."""
    return n_bytes * (1 + share * (bag - 1))


def text_factor(difficulty: float) -> tuple[float, float]:
    """By what the law's bits per byte are multiplied for a text, and by what share that may be off.

    ``difficulty``: what bz2 leaves of the text, in units of the books'. A model gains more than bz2 from text that
    repeats itself: the embedded stories, a quarter of the books for bz2, are a fifteenth for a model. The power 1.5 is
    between the two, and the share says how little it is to be trusted.
    """
    return difficulty**1.5, 0.5 * abs(math.log(difficulty))


def fit(records: Sequence[Record], *, prior: bool = True) -> LossLaw:
    """The law that fits best, without its ``error``. ``prior=False``: from these records alone."""
    worth = [effective(r.n_matrix, r.bytes, r.unique_bytes, r.vocab_size) for r in records]
    n, d = (np.array(column) for column in zip(*worth, strict=True))
    factors = [text_factor(r.difficulty) for r in records]
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
            * text_factor(record.difficulty)[0]
        )
        errors.append(predicted / record.bits_per_byte - 1)
    return errors


def fitted(records: Sequence[Record]) -> LossLaw:
    """The law that fits best, with the error that leaving out one record at a time gives."""
    errors = np.array(left_out_errors(records))
    return replace(fit(records), error=float(np.sqrt(np.square(errors).mean())))
