"""What travels between the server and the engine process: plain, frozen, picklable data.

Commands go in, lists of events come out. The maker of a command has validated it, so that the client gets a good
message; the engine checks again whatever would reach native code.

Tested in tests/serve/engine/test_engine.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length"]
StoppedBy = Literal["max_tokens", "context", "timeout_s"]
"""What cut a text off that ended with "length": the request's number of tokens, the end of the model's context, or the
time that the request had."""
FailureCode = Literal["context_length_exceeded", "invalid_request", "engine_error", "engine_died", "deadline_exceeded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the next token is sampled. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """0: always the most likely token."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    """How many tokens the repeat penalty looks back, the prompt's included."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    """By token id, or by a text: the bias is added to all its tokens."""
    seed: int = 0
    ignore_eos: bool = False
    min_tokens: int = 0
    """So many tokens come before one that ends the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the text and add nothing to it."""
    top_n_sigma: float = -1.0
    """0 or less: off."""
    dynatemp_range: float = 0.0
    """0: off."""
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    """0: off."""
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    """0: off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    """How many tokens it looks back, the prompt's included; -1: all."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    """0: off; 1 and 2: the algorithm's version, in place of the samplers that leave tokens out."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    grammar: str | None = None
    """A grammar in llguidance's form that serve/grammar has checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingDefaults:
    """What holds where a request says nothing: llama-server's values."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    """None: another one for each request."""

    def params(self, **given: Any) -> SamplingParams:
        """The parameters of a request that gives these; None counts as not given."""
        chosen = asdict(self) | {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{name: value for name, value in chosen.items() if value is not None})


@dataclass(frozen=True, kw_only=True, slots=True)
class ThoughtLimit:
    """How long a reply may reason, over all parts of it that are reasoning."""

    tokens: int
    """Most of them; behind these the engine writes ``written``, and the model goes on."""
    opened: bool
    """Whether the prompt ends inside the reasoning. Else a reply that begins with ``begin`` has some."""
    begin: str
    ends: tuple[str, ...]
    """Marks, one of which ends it."""
    written: str = ""
    """What the engine writes; "": the first of ``ends``."""
    again: tuple[str, ...] = ()
    """What it writes where the model begins to reason again behind that: the first one that the grammar allows. ():
    ``begin`` has a meaning at the beginning of the reply alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageHeaders:
    """The messages of a reply have headers between control tokens that come out by their names (``Generate.shown``)."""

    end: str
    """The control token that ends a header; each other one begins a header, or goes on with it."""
    opened: bool
    """Whether the prompt ends inside a header."""
    lead: str
    """What such a header may go on with, besides a control token. Any other text there is a message without a
    header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generate:
    """One sequence to continue."""

    id: str
    prompt: str | tuple[int | str, ...]
    """A text, or token ids, between which texts may stand."""
    add_special: bool = True
    """Whether BOS is put before a text prompt, where the model's file asks for it."""
    parse_special: bool = False
    """Whether the names of special tokens in a text prompt stand for those tokens."""
    literal_spans: tuple[tuple[int, int], ...] = ()
    """Parts of a text prompt, in order, in which the names of control tokens are text in spite of ``parse_special``.
    Each begins and ends at a special token, or at an end of the prompt."""
    max_tokens: int | None = None
    """None: as many as the context has room for. 0: only the prompt is computed."""
    stop: tuple[str, ...] = ()
    """Texts that end it, and names of control tokens."""
    stop_until: str = ""
    """A text from which on no stop string ends it: the mark that begins a tool call. "": none. Among ``headers`` it
    stands in one, and the message behind that is the call."""
    headers: MessageHeaders | None = None
    """Parts in which no stop string ends it. None: there are none."""
    thought: ThoughtLimit | None = None
    """None: it reasons as long as it likes."""
    n_keep: int = 0
    """With ``context_shift``, the first tokens of the prompt that always stay; -1: all of them."""
    n_discard: int = 0
    """With ``context_shift``, how many tokens behind these go at a time; 0: half of them."""
    shown: tuple[str, ...] = ()
    """Control tokens that come out as text by their names: those of tool calls."""
    sampling: SamplingParams = SamplingParams()
    adapters: tuple[float, ...] = ()
    """By what each of the engine's adapters is multiplied; (): as the engine's configuration says."""
    top_logprobs: int | None = None
    """None: no log-probabilities; n: those of the sampled token and of the n most likely ones."""
    slot: int | None = None
    """The slot that it gets if that is free when its turn comes; else, and with None, another."""
    use_prefix_cache: bool = True
    """Whether cached tokens of the prompt may be used. Without them, the numbers do not depend on earlier requests."""
    echo: bool = False
    """Whether to return the prompt as text, with its log-probabilities where ``top_logprobs`` is set."""
    return_tokens: bool = False
    """Whether the deltas hold the ids of their tokens."""
    speculate: bool = True
    """Whether draft tokens may be verified for it, where the engine makes any. The text is the same."""
    return_progress: bool = False
    """Whether ``PrefillProgress`` is sent with every chunk of the prompt."""
    deadline_s: float | None = None
    """Seconds from when the engine takes it; waiting for a slot counts. After that, a sequence that has generated a
    token ends with what there is and ``finish`` "length"; one that has none fails with "deadline_exceeded"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """Forget a sequence or a query. ``Canceled`` is its last event, also where it was over or never known."""

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenize:
    """A text to tokens."""

    id: str
    text: str
    add_special: bool
    parse_special: bool
    literal_spans: tuple[tuple[int, int], ...] = ()
    """As in ``Generate``."""
    limit: int | None = None
    """A text longer than this, in tokens, is truncated before it is counted. None: no truncation."""
    with_pieces: bool = False
    """Whether each token comes with its bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detokenize:
    """Tokens to text."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Embed:
    """One embedding per input, each a text or token ids, between which texts may stand."""

    id: str
    inputs: tuple[str | tuple[int | str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListSlots:
    """What each slot does."""

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotAction:
    """Write what a free slot holds into a file, read it back into one, or forget it."""

    id: str
    slot: int
    action: Literal["save", "restore", "erase"]
    path: str = ""
    """The file; "" to forget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shutdown:
    """End the engine process."""


Query = Tokenize | Detokenize | Embed | ListSlots | SlotAction
"""A command that gets one ``Reply``."""
Command = Generate | Cancel | Query | Shutdown


@dataclass(frozen=True, kw_only=True, slots=True)
class FimTokens:
    """Ids of the tokens for filling in the middle."""

    prefix: int
    suffix: int
    middle: int
    repository: int = -1
    """-1: there is none; the same for ``file``."""
    file: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankForm:
    """How a reranking model takes a query and a document: as ids before, between and behind them, or in a text."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    template: str = ""
    """With {query} and {document}; "": there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What the server reports about the model and needs to know of it."""

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
    """The name of the token; "" where there is none."""
    eos: str
    add_bos: bool
    chat_template: str | None
    control_tokens: tuple[str, ...]
    """Names of the control tokens; empty without a chat template, where none is parsed."""
    load_s: float
    bos_id: int = -1
    """-1: there is none."""
    endings: tuple[int, ...] = ()
    """Tokens that end a text."""
    ranking: RankForm | None = None
    """None: the model is no reranking model."""
    fim: FimTokens | None = None
    """None: the model cannot fill in the middle."""
    sampling: SamplingDefaults = SamplingDefaults()
    """What ``serve.sampling`` says, else the model's file, else this server."""
    adapters: tuple[tuple[str, float], ...] = ()
    """Adapters that a request may choose: the file of each, and by what it is multiplied where a request chooses
    none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The model is loaded: commands are taken from now on."""

    info: ModelInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class StartFailed:
    """The model could not be loaded; the process ends."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The prompt of a sequence is tokenized and fits the context: the sequence now waits for a slot."""

    id: str
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Canceled:
    """The engine has read a ``Cancel``: the sequence or query takes neither room nor time any more."""

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillProgress:
    """Some of the prompt has been computed."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    processed: int
    """How many are computed, the cached ones included."""
    seconds: float
    """Since the sequence got a slot."""


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
    is_eog: bool = False
    """Whether it is the end-of-generation token, which adds no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillDone:
    """The prompt has been computed."""

    id: str
    prompt_tokens: int
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    queue_s: float = 0.0
    """How long the sequence waited for a slot, in seconds."""
    prefill_s: float = 0.0
    """From its slot to the end of the prompt, in seconds."""
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """More text of a sequence; the last one has ``finish``."""

    id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()
    """Ids of the tokens since the last delta, where the request asks for them."""
    completion_tokens: int = 0
    """Tokens generated so far, the end-of-generation token included."""
    decode_s: float = 0.0
    """From the end of the prompt until now, in seconds."""
    finish: FinishReason | None = None
    stopped_by: StoppedBy | None = None
    """Only with ``finish`` "length"."""
    stop_string: str | None = None
    """The one of the request that ended the text."""
    drafted_tokens: int = 0
    """Draft tokens that were verified, counted in the last delta."""
    accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    dropped_tokens: int = 0
    """The oldest ones that were dropped because the context was full (``context_shift``), counted in the last delta."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The sequence or query ``id`` ended without a result."""

    id: str
    code: FailureCode
    message: str
    n_tokens: int = 0
    """Tokens of a prompt that is too long, as far as they were counted; else 0."""
    n_context: int = 0
    """Most tokens that such a prompt may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Embeddings:
    vectors: tuple[bytes, ...]
    """float32 [n_embd] each, little-endian, of length 1; one per input. A reranking model returns its
    scores, [n_scores]."""
    n_tokens: int
    """Tokens of all inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotState:
    """A slot at the moment."""

    processing: bool
    n_prompt: int = 0
    """Prompt tokens of the sequence that holds it."""
    n_generated: int = 0
    n_held: int = 0
    """Tokens in its cells, of the sequence or left from an earlier one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotMoved:
    """What a ``SlotAction`` did."""

    n_tokens: int
    n_bytes: int = 0
    """Bytes of the file."""
    seconds: float = 0.0


QueryResult = list[int] | list[tuple[int, bytes]] | str | Embeddings | tuple[SlotState, ...] | SlotMoved


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The result of a query."""

    id: str
    value: QueryResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """The engine's state, sent four times a second, and when it has nothing to do."""

    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    """Tokens of running sequences in the cache."""
    preempted: int = 0
    """Since this engine's start."""
    steps: int = 0
    """Batches computed since this engine's start, and how many sequences were in them, ..."""
    in_steps: int = 0
    """... in all."""
    threads: int = 0
    """Threads that the engine computes with at the moment."""
    step_s: float = 0.0
    """Seconds that the present step has taken so far; 0 between steps."""


SequenceEvent = PrefillProgress | PrefillDone | Delta
"""What comes of a sequence that goes well, after ``Accepted``."""
Event = Ready | StartFailed | Accepted | Canceled | SequenceEvent | Failure | Reply | Stats
