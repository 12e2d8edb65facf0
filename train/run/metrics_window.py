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

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "data_seconds": self.data_seconds,
            "loss": self._loss,
            "norm": self._norm,
        }

    def add(self, *, loss: float, grad_norm: float, tokens: int, seconds: float, data_seconds: float) -> None:
        """Add one step. ``seconds`` is its whole time, ``data_seconds`` the part of it that waited for batches."""
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.data_seconds += data_seconds
        self._loss += loss
        self._norm += grad_norm

    @property
    def loss(self) -> float:
        """Mean loss of the steps, nats per token."""
        return self._loss / self.steps

    @property
    def grad_norm(self) -> float:
        """Mean L2 norm of the gradient before clipping."""
        return self._norm / self.steps
