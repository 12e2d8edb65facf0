"""Where a run will end, from its own curve so far.

The loss law says how the loss of such a model falls with the text that it has read. A run in progress lies above the
law, since its learning rate is still high: by the share ``UNDECAYED`` at the peak, and by nothing at zero. So at each
point of the curve there is an expected loss, and

    log(measured) = level + steepness * log(expected)

is fitted to the curve. The level belongs to the text and to what the law does not know of the run, the steepness to the
text (stories from a small grammar are learnt faster than books). The steepness begins at 1, the law's own, and moves as
far as the points bear it. The end is the same line at the whole run's text with the learning rate at its end.
"""

import math
from dataclasses import dataclass

import numpy as np

from slm.train.config import RunConfig
from slm.train.predict import records
from slm.train.predict.law import LossLaw, calibrated, fit

UNDECAYED = 0.045
"""Relative excess of the loss at the peak learning rate over that of a run that has decayed by then. This is an
estimate, not a measurement."""
LEAST_SHARE = 0.15
"""Share of the run before which there is no forecast."""
LEAST_POINTS = 8
POINTS = 24
"""Number of groups that neighbouring training records are averaged into."""
BYTES_PER_TOKEN = 3.5
"""Assumed until a validation has measured it."""
STEEPNESS_SPREAD = 0.5
"""Standard deviation of a text's steepness relative to that of the books."""
EXPECTED_ERROR = 0.2
"""Relative error of the law, as a share of the remaining decrease of the loss."""
SKIPPED = 0.05
"""Share of the curve that the fit ignores at its beginning, where the initial weights still matter. Steps on token bags
(``train.phases``) are ignored, too."""


@dataclass(frozen=True)
class Outlook:
    """The loss at the end of the run."""

    value: float
    low: float
    high: float
    """Two runs of three should end between ``low`` and ``high``."""
    unit: str
    """``bits per byte`` (of the validation text) or ``nats per token`` (of the training text, before a validation)."""

    def text(self) -> str:
        """The text of the progress line."""
        return f"{self.value:.3f} ± {(self.high - self.low) / 2:.3f} {self.unit}"

    def record(self) -> dict[str, float]:
        """The keys added to a training record."""
        name = "forecast_" + self.unit.replace(" ", "_")
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def make_forecast(config: RunConfig) -> "Forecast | Planned | None":
    """The forecast of a run; None for a model that was trained before, for conversations, with a teacher, and without a
    decay. A taught run has its plan's, if there is one."""
    optim, model, predicted = config.optim, config.model, config.facts.get("predicted") or {}
    if config.distill.teacher and "bits_per_byte" in predicted:
        value, low, high = (float(predicted[name]) for name in ("bits_per_byte", "low", "high"))
        return Planned(Outlook(value, low, high, "bits per byte"))
    no_decay = optim.min_lr_ratio > 0.15 or optim.schedule == "range_test"
    if config.init_from or config.distill.teacher or no_decay or config.data.has_chat:
        return None
    n_matrix = model.model_config(vocab_size=1, seq_len=config.train.seq_len, eos_id=None).n_layer_matrix_params
    epochs, tokens = predicted.get("epochs") or 0.0, predicted.get("tokens") or 0
    unique_tokens = tokens / epochs if epochs else math.inf
    gain = 1.0
    if config.calibrates_head:
        gain = calibrated(epochs, vocab_size=config.tokenizer.vocab_size, d_model=model.d_model)
    return Forecast(fit(records.load()), n_matrix, unique_tokens, optim.min_lr_ratio, gain)


class Planned:
    """The plan's prediction, for runs where the curve of the first model tells nothing about the end of the second."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def training(self, tokens: float, lr_share: float, loss: float) -> None:
        pass

    def validation(self, tokens: float, nats: float, bits_per_byte: float) -> None:
        pass

    def at_end(self, tokens: float) -> Outlook:
        return self._outlook


class Forecast:
    """A run's curve combined with the law for its size. ``n_matrix``: parameters of the layers' matrices.
    ``unique_tokens``: distinct tokens of its text. ``end_share``: the learning rate's share of its peak at the end.
    ``closing``: factor on the loss after the last step."""

    def __init__(
        self,
        law: LossLaw,
        n_matrix: float,
        unique_tokens: float = math.inf,
        end_share: float = 0.0,
        closing: float = 1.0,
    ) -> None:
        self._law, self._n, self._unique = law, n_matrix, unique_tokens
        self._end_share, self._closing = end_share, closing
        self._training: list[tuple[float, float, float]] = []  # tokens, share of the peak learning rate, loss
        self._validations: list[tuple[float, float, float]] = []
        self._bytes_per_token = BYTES_PER_TOKEN

    def training(self, tokens: float, lr_share: float, loss: float) -> None:
        """Add a training record. ``loss``: nats per token; ``lr_share``: share of the peak learning rate."""
        if math.isfinite(loss) and loss > 0:
            self._rewind(self._training, tokens)
            self._training.append((tokens, lr_share, loss))

    def validation(self, tokens: float, nats: float | None, bits_per_byte: float | None) -> None:
        """Add a validation at the learning rate of the last training record. None: the value was not finite."""
        if bits_per_byte and nats and bits_per_byte > 0 and nats > 0 and self._training:
            self._rewind(self._validations, tokens)
            self._validations.append((tokens, self._training[-1][1], bits_per_byte))
            self._bytes_per_token = nats / math.log(2) / bits_per_byte

    @staticmethod
    def _rewind(points: list[tuple[float, float, float]], tokens: float) -> None:
        """Drop the records that a run restored from a checkpoint will compute again."""
        while points and points[-1][0] >= tokens:
            points.pop()

    def at_end(self, tokens: float) -> Outlook | None:
        """The predicted loss after ``tokens``; None while the curve is too short."""
        if len(self._training) < LEAST_POINTS or self._training[-1][0] < LEAST_SHARE * tokens:
            return None
        curve = self._groups(tokens)
        steepness, level, error = self._fit(curve)
        unit, now, measured = "nats per token", curve[-1], math.exp(level)
        if self._validations:
            # Validations are few and exact: their level, with the training curve's steepness.
            points = np.array(self._validations[-2:])
            residual = np.log(points[:, 2]) - steepness * np.log(self._expected(points[:, 0], points[:, 1]))
            measured, unit, now = math.exp(float(residual.mean())), "bits per byte", points[-1]
            error = 0.004
        end = float(self._expected(np.array([tokens]), np.array([self._end_share]))[0])
        here = float(self._expected(now[:1], now[1:2])[0])
        value = measured * end**steepness * self._closing
        half = math.hypot(error, EXPECTED_ERROR * steepness * math.log(here / end))
        return Outlook(value, value * math.exp(-half), value * math.exp(half), unit)

    def _expected(self, tokens: np.ndarray, lr_share: np.ndarray) -> np.ndarray:
        """The law's bits per byte after ``tokens`` at these learning rates."""
        text = self._unique * self._bytes_per_token
        law = [self._law.predict(self._n, each * self._bytes_per_token, text) for each in tokens]
        return np.array(law) * (1 + UNDECAYED * lr_share)

    def _groups(self, tokens: float) -> np.ndarray:
        """The training curve as at most ``POINTS`` means: [tokens, share of the learning rate, loss]."""
        all_points = np.array(self._training)
        kept = all_points[all_points[:, 0] > all_points[0, 0] + SKIPPED * tokens]
        kept = kept if len(kept) >= 2 else all_points[-2:]
        return np.array([group.mean(axis=0) for group in np.array_split(kept, min(POINTS, len(kept)))])

    def _fit(self, curve: np.ndarray) -> tuple[float, float, float]:
        """Steepness, level, and the level's standard deviation. Later points weigh more, because they are nearer to the
        end."""
        x, y = np.log(self._expected(curve[:, 0], curve[:, 1])), np.log(curve[:, 2])
        weight = curve[:, 0] / curve[-1, 0]
        x_mean, y_mean = np.average(x, weights=weight), np.average(y, weights=weight)
        noise = max(0.003, float(np.std(np.diff(y))) / math.sqrt(2)) if len(y) > 2 else 0.1
        spread = float((weight * (x - x_mean) ** 2).sum())
        slope = float((weight * (x - x_mean) * (y - y_mean)).sum())
        prior = (noise / STEEPNESS_SPREAD) ** 2
        steepness = (slope + prior) / (spread + prior)
        error = noise / math.sqrt(max(1.0, float(weight.sum())))
        return steepness, float(y_mean - steepness * x_mean), error
