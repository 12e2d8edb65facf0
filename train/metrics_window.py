"""The steps since the last training record, averaged."""

from typing import Any

from train.step import StepResult


class Window:
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

    def add(self, result: StepResult, seconds: float) -> None:
        self.steps += 1
        self.tokens += result.tokens
        self.seconds += seconds
        self.data_seconds += result.data_seconds
        self._loss += result.loss
        self._norm += result.grad_norm

    @property
    def loss(self) -> float:
        return self._loss / self.steps

    @property
    def grad_norm(self) -> float:
        return self._norm / self.steps
