"""What travels between the server and the engine process: plain, frozen, picklable data.

Commands go in, lists of events come out. Whoever makes a command has validated it for the client's sake; the
engine checks again whatever would reach native code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
FailureCode = Literal["context_length_exceeded", "invalid_request", "engine_error", "engine_died", "deadline_exceeded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the next token is picked. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """0: the likeliest token."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    """Tokens the repeat penalty looks back, prompt included."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    ignore_eos: bool = False
    grammar: str | None = None
    """A GBNF grammar that serve/gbnf.py has checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generate:
    """One sequence to continue."""

    id: str
    prompt: str | tuple[int, ...]
    add_special: bool = True
    """Put BOS before a text prompt where the model's file asks for it."""
    parse_special: bool = False
    """Read special tokens spelled in a text prompt as such."""
    max_tokens: int | None = None
    """None: as far as the context goes. 0: only look at the prompt."""
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = SamplingParams()
    top_logprobs: int | None = None
    """None: no log-probabilities; n: the picked token's and the n likeliest."""
    from_cache: bool = True
    """Whether what is cached of the prompt may be used. Without, the numbers do not depend on what came before."""
    echo: bool = False
    """Give the prompt back as text, with its log-probabilities where ``top_logprobs`` is set."""
    speculate: bool = True
    """Whether guesses at its tokens may be checked, where the engine makes any. The text is the same."""
    deadline_s: float | None = None
    """Seconds from when the engine takes it, waiting for a slot included. After them a sequence that has made a token
    ends with what there is and ``finish`` "length"; one that has made none fails with "deadline_exceeded"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Forget a sequence; nothing more is said about it."""

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenize:
    id: str
    text: str
    add_special: bool
    parse_special: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Detokenize:
    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Embed:
    id: str
    inputs: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shutdown:
    """End the engine process."""


Question = Tokenize | Detokenize | Embed
Command = Generate | Cancel | Question | Shutdown


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What the server tells about the model and needs to know of it."""

    path: str
    architecture: str
    n_params: int
    size_bytes: int
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    context: int
    """Most tokens of one sequence in this engine."""
    slots: int
    kv_tokens: int
    threads: int
    bos: str
    """The text of the token; "" where there is none."""
    eos: str
    add_bos: bool
    chat_template: str | None
    load_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    info: ModelInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class StartFailed:
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """One token with the model's own (unmodified) log-probability, natural logarithm."""

    token: int
    piece: bytes
    logprob: float | None
    """None for the first token of a prompt, which nothing precedes."""
    top: tuple[tuple[int, bytes, float], ...]
    offset: int
    """Characters of text before it (prompt tokens: in the prompt; others: in the reply)."""
    ends: bool = False
    """Whether it is the end-of-text token, which adds no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompted:
    """The prompt has been computed."""

    id: str
    prompt_tokens: int
    cached_tokens: int = 0
    """Of these, how many were in the cache already."""
    queue_s: float = 0.0
    """Seconds for which the sequence waited for a slot."""
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """More text of a sequence; the last one has ``finish``."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    completion_tokens: int = 0
    """Tokens generated so far, the end-of-text token included."""
    finish: FinishReason | None = None
    drafted_tokens: int = 0
    """Guesses that were checked, told with the last text."""
    accepted_tokens: int = 0
    """Of these, those that were right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The sequence or question ``id`` ended without a result."""

    id: str
    code: FailureCode
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Embeddings:
    vectors: tuple[bytes, ...]
    """float32 [n_embd] each, little-endian, of length 1; one per input."""
    n_tokens: int
    """Of all inputs."""


Answer = list[int] | str | Embeddings


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer to a question."""

    id: str
    value: Answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """The engine's state, told now and then and when it has nothing to do."""

    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    """Tokens of running sequences in the cache."""
    preempted: int = 0
    """Since this engine's start."""


Event = Ready | StartFailed | Prompted | Delta | Failure | Reply | Stats
