"""The steps since the last training record, averaged."""

from typing import Any


class MetricsWindow:
    """Sums over steps. Its state is part of a checkpoint, so that a resumed run writes the same records."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self.steps: int = state.get("steps", 0)
        self.tokens: int = state.get("tokens", 0)
        self.seconds: float = state.get("seconds", 0.0)
        self.data_seconds: float = state.get("data_seconds", 0.0)
        self._loss: float = state.get("loss", 0.0)
        self._norm: float = state.get("norm", 0.0)
        self._counted: int = state.get("counted", 0)
        self._sums: dict[str, float] = dict(state.get("sums", {}))

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "data_seconds": self.data_seconds,
            "loss": self._loss,
            "norm": self._norm,
            **({"counted": self._counted, "sums": dict(self._sums)} if self._sums else {}),
        }

    def add(
        self,
        *,
        loss: float,
        grad_norm: float,
        tokens: int,
        seconds: float,
        data_seconds: float,
        counted: int = 0,
        sums: dict[str, float] | None = None,
    ) -> None:
        """Add one step. ``seconds`` is its whole time, ``data_seconds`` the part of it that waited for batches.

        ``sums``: further figures, summed over the ``counted`` tokens or pairs of the step.
        """
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.data_seconds += data_seconds
        self._loss += loss
        self._norm += grad_norm
        self._counted += counted
        for name, value in (sums or {}).items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    @property
    def loss(self) -> float:
        """Mean loss of the steps, nats per token."""
        return self._loss / self.steps

    @property
    def grad_norm(self) -> float:
        """Mean L2 norm of the gradient before clipping."""
        return self._norm / self.steps

    @property
    def figures(self) -> dict[str, float]:
        """Means of the further figures, over the tokens or pairs of all steps."""
        return {name: value / max(1, self._counted) for name, value in self._sums.items()}
