"""The options of ``python -m slm.evaluate``; configs/evaluate.yaml holds the same defaults."""

from dataclasses import dataclass, field
from pathlib import Path

from slm.data.errors import UserError

LONGEST_DEFAULT_CONTEXT = 1024
"""Tokens of the sliding window where no context is given and the model has more."""


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Which text is scored, how much of it, and in which context."""

    text: Path | None = None
    """A UTF-8 text file; None takes the command's default."""
    context: int | None = None
    """Context of the sliding window, tokens; None takes the model's own, at most 1024."""
    max_tokens: int | None = None
    """Use about this many tokens from the start of the text; None takes all."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 8:
            raise UserError(f"eval.context={self.context} must be at least 8 tokens")
        if self.max_tokens is not None and self.max_tokens < 16:
            raise UserError(f"eval.max_tokens={self.max_tokens} is too few to score; give at least 16")


@dataclass(frozen=True, kw_only=True)
class EvalConfig(TextOptions):
    """What to score and how much of it. Without ``text``, it is the run's validation.txt, else WikiText-2's raw test
    set from the Hub, which ``text=wikitext`` asks for."""

    contiguous: int | None = None
    """Score in a third definition, too: windows of this many tokens that do not overlap, every token scored."""
    n_ctx: int = 512
    """Window of llama.cpp's definition, tokens; a model with less context gets less."""
    files: list[Path] | None = None
    """GGUF files to score instead of all the run's."""
    checkpoint: bool = True
    """Score the checkpoint too."""
    coherence_stories: int = 0
    """Stories that the checkpoint of a run on the tales writes, to be scored for coherence, 0 to 1; 0: none."""
    threads: int | None = None
    """CPU threads; None for the physical cores that this process may use."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contiguous is not None and self.contiguous < 8:
            raise UserError(f"eval.contiguous={self.contiguous} must be at least 8 tokens")
        if self.coherence_stories < 0:
            raise UserError(f"eval.coherence_stories must not be negative, not {self.coherence_stories}")
        if self.n_ctx < 8:
            raise UserError(f"eval.n_ctx={self.n_ctx} must be at least 8 tokens")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"eval.threads={self.threads} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class HarnessConfig:
    """How tasks of lm-evaluation-harness are run."""

    include_path: Path | None = None
    """A folder with YAML files of further tasks."""
    limit: int | None = None
    """Most examples of each task; None takes all."""
    num_fewshot: int | None = None
    """Examples with their answers before each question; None: the task's own number, else 0."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UserError(f"harness.limit={self.limit} must be at least 1 example")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UserError(f"harness.num_fewshot={self.num_fewshot} must not be negative")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """The command's configuration."""

    run: Path
    """A run, one of its checkpoints, or a Hugging Face model directory."""
    tasks: list[str] = field(default_factory=list)
    """Tasks of lm-evaluation-harness (names, groups, patterns) to run in place of perplexity."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    harness: HarnessConfig = field(default_factory=HarnessConfig)
