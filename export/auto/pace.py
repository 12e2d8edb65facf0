"""What finished files teach about the speed of types: how much slower each is in a real model than the trial said.

The slow-down of every type is unknown, in logarithms: a part that all types share (the trial ran on a busier or quieter
machine, or on a cut model) and a part of each type's own. Each finished file measures a sum of them, weighted by the
share of its time that a type takes. The estimate is the posterior mean of a linear Gaussian model (a Kalman update).

Tested in tests/export/auto/test_fast.py.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

_SHARED_SD, _OWN_SD, _NOISE_SD = 1.0, 0.15, 0.03
"""Standard deviations of logarithms: of what all types share (next to nothing is known), of a type's own part, and of
the measurement of a file."""


class Pace:
    """The slow-down of each type."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        self._mean = np.zeros(len(self.kinds))
        self._covariance = _SHARED_SD**2 + _OWN_SD**2 * np.eye(len(self.kinds))

    def factor(self, kind: str) -> float:
        """By which a token's time in this type is to be multiplied; of a type that no trial measured, the shared
        part."""
        known = kind in self.kinds
        return float(np.exp(self._mean[self.kinds.index(kind)] if known else self._mean.mean()))

    def learn(self, seconds: Mapping[str, float], measured_s: float) -> None:
        """``seconds``: of a file's token, by type, as predicted with the factors so far; ``measured_s``: the whole."""
        predicted = sum(seconds.values())
        share = np.array([seconds.get(kind, 0.0) / predicted for kind in self.kinds])
        spread = self._covariance @ share
        gain = spread / (float(share @ spread) + _NOISE_SD**2)
        self._mean = self._mean + gain * math.log(measured_s / predicted)
        self._covariance = self._covariance - np.outer(gain, spread)
