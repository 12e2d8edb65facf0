"""The options of ``slm exam``; configs/exam.yaml holds the same defaults.

Tested in tests/slm/evaluate/exam/test_command.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slm.data.errors import UserError

ScoreName = Literal["auto", "exact", "contains", "json", "tools", "likelihood"]


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """The command's configuration."""

    run: Path = Path("runs/latest")
    """A run, one of its checkpoints, a Hugging Face model directory, or a GGUF file."""
    data: list[str] = field(default_factory=list)
    """Conversations that end with the expected answer: paths, globs, folders, or a data set on the Hub. Empty: the
    embedded questions about stories."""
    score: ScoreName = "auto"
    """How replies to ``data`` are judged; ``auto`` chooses by the expected answers (``questions.choose_scores``)."""
    questions: int = 500
    """Most questions that are asked; of more, a random sample that is always the same."""
    files: list[Path] | None = None
    """GGUF files to ask instead of all the run's."""
    checkpoint: bool = True
    """Ask the checkpoint, too."""
    max_tokens: int | None = None
    """A reply that is longer is cut off. None: 64 for the stories; for ``data`` 1.5 times the tokens of the expected
    answer and 24 more, 1,024 at most."""
    show: int = 3
    """Wrong replies that are printed."""
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads={self.threads} must be at least 1")
        if self.questions < 1 or self.show < 0 or (self.max_tokens is not None and self.max_tokens < 1):
            raise UserError("questions and max_tokens must be at least 1, and show not negative")
        if self.score != "auto" and not self.data:
            raise UserError(
                f"score={self.score} is for your questions: add data=my.jsonl (the embedded questions about "
                "stories have their own rule)"
            )
