"""The options of a training run as frozen, checked dataclasses. The YAML under ``configs/`` holds the values."""

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from slm.data.config import DataConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.durations import seconds_of
from slm.model.architectures import LINEAR_LAYERS, TRAITS, Architecture
from slm.model.config import InitConfig, ModelConfig
from slm.runs import teacher_folder
from slm.train.phases import Phase, check_phases

VOCAB_MULTIPLE = 64
"""The embedding's rows are padded up to a multiple of this."""
HEAD_DIM = 64
"""The width of a new model's heads."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The shape of a new model; its vocabulary comes from the tokenizer and its context from train.seq_len."""

    arch: Architecture
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    tie_embeddings: bool = True

    def model_config(self, *, vocab_size: int, seq_len: int, eos_id: int | None) -> ModelConfig:
        """The model for a tokenizer of ``vocab_size`` ids. UserError for widths that K-quants cannot hold."""
        padded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        config = ModelConfig(
            **vars(self), head_dim=HEAD_DIM, vocab_size=padded, seq_len=seq_len, bos_id=eos_id, eos_id=eos_id
        )
        config.check_widths()
        config.check_runs_in_llama_cpp()
        return config


REFERENCE_WIDTH = 256
"""The width for which ``optim.embed_lr`` and the rates below are given; others get them times (width / 256)^-0.5."""
HEAD_LR, TIED_LR, GAIN_LR = 0.007, 0.01, 0.02
"""Muon: AdamW's peak learning rates of an untied head, of an embedding that is the head, too, and of the gains (these
at any width)."""
MUON_MOMENTUM = (0.85, 0.95)
"""At the first step and after ``optim.momentum_steps``."""
NS_STEPS = 3
"""Muon's Newton-Schulz iterations: five are more exact, and no better."""
WITHIN_BACKWARD = "adafactor"
"""The optimizer that holds no gradients beyond one."""
ADAMW_EPS = {"adamw": 1e-8, "muon": 1e-10}
"""AdamW's eps, alone and next to Muon."""
FIRST_WEIGHTS = {
    "adamw": InitConfig(),
    WITHIN_BACKWARD: InitConfig(),
    "muon": InitConfig(embed_std=0.8, head_std=0.001, tied_std=0.02, matrix_std=0.0, output_gain=0.0, qk_gain=1.2),
}
"""A new model's first weights, by optimizer."""
EMBED_STD_WITH_BAGS = 0.1
"""Muon's first embedding where a bag's tokens share a gradient: with 0.8 they keep their random places for long, which
costs a run of 160 steps 1.3 % (docs/results/recipe.md). Without bags that is the better one."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer, its learning rates and their schedule. The defaults are the classic recipe's."""

    name: Literal["adamw", "muon", "adafactor"] = "adamw"
    """``muon``: Muon for the layers' matrices, AdamW for embedding, head and gains. ``adafactor``: updates inside the
    backward pass, without moments: the memory of the weights and of one gradient."""
    lr: float
    """Peak learning rate; with Muon that of the layers' matrices, with Adafactor a share of each parameter's size."""
    embed_lr: float = 0.1
    """Muon: AdamW's peak learning rate of the embedding at a width of 256; others get it times (width / 256)^-0.5."""
    other_lr_scale: float = 1.0
    """Muon: what AdamW's peak learning rates of embedding, head and gains are multiplied by."""
    betas: tuple[float, ...] = (0.9, 0.95)
    """AdamW's."""
    weight_decay: float = 0.1
    """Per unit of learning rate, on matrices only. Muon's is cautious."""
    table_decay: float = 0.0
    """Muon: the share of themselves that embedding and head lose in a step at the peak rate, by AdamW's decay."""
    momentum_steps: int = 300
    """Muon: the steps in which its momentum grows to its height."""
    schedule: Literal["cosine", "linear", "range_test"] = "cosine"
    """The decay after the warm-up: a cosine over the whole run, or constant and then linear. ``range_test`` grows
    exponentially instead (``make sweep``, ``sweep.range_test``)."""
    decay_fraction: float = 0.7
    """linear: the share of the run over which the learning rate falls."""
    warmup_steps: int = 100
    min_lr_ratio: float = 0.1
    """Final learning rate as a share of the peak."""
    grad_clip: float = 1.0
    """Largest global gradient norm; 0 leaves gradients alone."""
    init_bigrams: int = 0
    """Pairs of neighbouring tokens of the text that are counted, to begin embedding and head as a model of which token
    follows which; 0: random numbers."""

    def table_rate(self, part: Literal["embedding", "head"], width: int, *, tied: bool) -> float:
        """Muon: AdamW's peak learning rate of a table; ``tied``: the embedding is the head, too."""
        rate = HEAD_LR if part == "head" else TIED_LR if tied else self.embed_lr
        return self.other_lr_scale * rate * (width / REFERENCE_WIDTH) ** -0.5

    def table_decays(self, part: Literal["embedding", "head"], width: int, *, tied: bool) -> float:
        """Muon: AdamW's weight decay of that table, per unit of its learning rate."""
        return self.table_decay / self.table_rate(part, width, tied=tied) if self.table_decay else 0.0

    @property
    def within_backward(self) -> bool:
        """Whether weights change inside the backward pass, and no gradient stays."""
        return self.name == WITHIN_BACKWARD

    @property
    def gain_rate(self) -> float:
        """Muon: AdamW's peak learning rate of the norms' gains."""
        return self.other_lr_scale * GAIN_LR

    @property
    def eps(self) -> float:
        """AdamW's."""
        return ADAMW_EPS[self.name]

    def __post_init__(self) -> None:
        for name in ("lr", "embed_lr", "other_lr_scale"):
            if getattr(self, name) <= 0:
                raise UserError(f"optim.{name} must be positive, not {getattr(self, name)}")
        if len(self.betas) != 2 or not all(0 <= each < 1 for each in self.betas):
            raise UserError(f"optim.betas must be two numbers from 0 to below 1, not {list(self.betas)}")
        for name in ("warmup_steps", "momentum_steps", "weight_decay", "table_decay", "grad_clip", "init_bigrams"):
            if getattr(self, name) < 0:
                raise UserError(f"optim.{name} must not be negative, not {getattr(self, name)}")
        for name in ("min_lr_ratio", "decay_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"optim.{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.schedule == "range_test" and not 0 < self.min_lr_ratio < 1:
            raise UserError("optim.schedule=range_test needs an optim.min_lr_ratio between 0 and 1, as 0.03")


EAGER = "eager"
"""``train.kernels``: neither kernels nor torch.compile."""
INTEGER_BITS = {"int16": 16, "int8": 8}
"""Bits of a product's integers, by ``train.precision``."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The length of the run, its batches, and what is written while it goes on."""

    max_steps: int
    """Optimizer steps."""
    max_minutes: float | None = None
    """Time that the run may take, minutes, from the process's start to its end: set-up (of every start of the run), and
    the last validation and checkpoint, too. Time asleep or between two starts never counts. The learning rate then
    decays with time, too."""
    seq_len: int
    """Tokens per sequence."""
    micro_batch: int
    """Sequences per forward and backward pass."""
    pack_tokens: int | None = None
    """Conversations: short ones share a sequence up to this many tokens, a longer one has its own sequence, and a
    step is only as long as what is in it; None: they share ``seq_len`` tokens, and each step has as many."""
    grad_accum: int = 1
    """Passes per optimizer step."""
    eval_every: int = 250
    eval_blocks: int = 64
    """Validation sequences of seq_len tokens."""
    eval_last_blocks: int | None = None
    """Sequences of the validation at the end of the run, the usual ones and others; None: ``eval_blocks``."""
    checkpoint_every: int = 500
    """Optimizer steps; a checkpoint is due after some minutes without one, too (``loop/saving.py``)."""
    keep_last: int = 3
    """The newest checkpoints kept; the one with the lowest validation loss is kept in addition."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """For a loss or gradient that is not finite: end the run, or skip the update and its data."""
    patience: int = 0
    """The run ends after this many validations in a row without a lower loss; 0: never. With ``distill.born_again``
    those of the second run count."""
    spike_factor: float | None = None
    """A loss above this many times the median of the last 100 steps sends the run back to its last checkpoint."""
    seed: int = 1234
    precision: Literal["auto", "bf16", "f32", "int16", "int8"] = "auto"
    """The number format of activations: bf16 where this machine multiplies faster in it, else f32 (``auto``). With
    ``int16`` and ``int8`` they are f32, and products are of integers of this many bits."""
    kernels: Literal["auto", "amx", "avx512bf16", "avx512", "avx2", "neon", "eager", True, False] = "auto"
    """The hand-written training kernels: the fastest ones of this processor (``auto``, true), or those for one
    instruction set. A model trains without them if they cannot take its widths. ``auto`` takes products of integers
    where they are faster and ``kernel_bits`` allows; kernels named here only with ``precision``. Without kernels layers
    and loss are compiled by torch.compile (false), or not at all (``eager``)."""
    gradient_checkpointing: bool | Literal["mlp"] = False
    """Activations that the backward pass recomputes: none, those of whole layers (true), or of gate and up (mlp)."""
    mask_documents: bool = False
    """Documents in one sequence do not attend to each other."""
    workers: int = 1
    """Processes that read and tokenize ahead of training; 0: the training process does it."""
    threads: int = 0
    """Compute threads; 0 takes every core this process may use."""
    shard_optimizer: bool = False
    """Several processes: each holds the optimizer state of its share of the parameters only (ZeRO-1)."""
    reduce: Literal["f32", "bf16"] = "f32"
    """Several processes: the number format in which gradients are sent and summed."""
    qat: Literal["q4_0", "q8_0", "iq4_nl", "q4_k", "q3_k", "tq2_0"] | None = None
    """Quantization-aware training: the last part of the run computes with the weights that a file of this type will
    hold; None: the whole run computes with unquantized ones."""
    phases: tuple[Phase, ...] = ()
    """What the first parts of the run read: bags of tokens, or short sequences. After the last one, and where there is
    none, steps read whole sequences."""
    sampled_softmax: int = 0
    """Tokens of the vocabulary for which a training step computes logits: the targets of a micro-batch, and others
    drawn at random, frequent ones more often, which stand for the rest; 0: all. Validation computes all."""
    calibrate_head: bool = True
    """At the end of the run, draw the head's rows of rare words towards their frequency, and all of it as far as
    held-out text says. For a new model with an untied head that reads plain text; others are not calibrated."""
    sample_prompts: tuple[str, ...] = ("Once upon a time",)
    """What the model continues at validations."""

    def __post_init__(self) -> None:
        at_least_one = ("max_steps", "seq_len", "micro_batch", "grad_accum", "eval_every", "eval_blocks")
        for name in (*at_least_one, "checkpoint_every", "keep_last"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("workers", "threads", "patience", "sampled_softmax"):
            if getattr(self, name) < 0:
                raise UserError(f"train.{name} must not be negative, not {getattr(self, name)}")
        if self.eval_last_blocks is not None and self.eval_last_blocks < self.eval_blocks:
            raise UserError(
                f"train.eval_last_blocks={self.eval_last_blocks} must be null, or at least "
                f"train.eval_blocks={self.eval_blocks}"
            )
        if self.pack_tokens is not None and not 1 <= self.pack_tokens <= self.seq_len:
            raise UserError(
                f"train.pack_tokens={self.pack_tokens} must be from 1 to train.seq_len={self.seq_len}, for example "
                f"{min(256, self.seq_len)}, or null"
            )
        if self.pack_tokens is not None and self.grad_accum > 1:
            raise UserError(
                f"train.pack_tokens={self.pack_tokens} makes passes of unequal length, which one update cannot sum: "
                f"leave train.grad_accum={self.grad_accum} at 1, or train.pack_tokens at null"
            )
        check_phases(self.phases, self.seq_len)
        if self.spike_factor is not None and self.spike_factor <= 1:
            raise UserError(f"train.spike_factor must be above 1, for example 1.5, not {self.spike_factor}")
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise UserError(f"train.max_minutes must be positive, not {self.max_minutes}")

    def check_processes(self, size: int) -> None:
        """UserError where a step's micro-batches cannot be divided over ``size`` processes."""
        if self.grad_accum % size:
            factor = size // math.gcd(self.grad_accum, size)
            if self.micro_batch % factor == 0:
                rows, passes = self.micro_batch // factor, self.grad_accum * factor
                use = f"micro_batch={rows} train.grad_accum={passes} (the same batch)"
            else:
                use = f"grad_accum={-(-self.grad_accum // size) * size}"
            raise UserError(
                f"train.grad_accum={self.grad_accum} cannot be divided over {size} processes: use train.{use}"
            )

    def kernel_bits(self, *, new: bool) -> int:
        """The fewest bits of integers to which the kernels that ``auto`` takes may round the values of a product; 32:
        none. A ``new`` model learns as much in 8; a trained one's values may be too unlike for them, and QAT rounds
        weights more finely."""
        if self.precision == "f32":
            return 32
        if self.precision in INTEGER_BITS:
            return INTEGER_BITS[self.precision]
        return 8 if new and not self.qat else 16

    @property
    def recompute(self) -> Literal["none", "mlp", "layer"]:
        """What ``gradient_checkpointing`` recomputes."""
        if self.gradient_checkpointing == "mlp":
            return "mlp"
        return "layer" if self.gradient_checkpointing else "none"

    def flops_per_token(self, shape: ModelConfig) -> int:
        """FLOPs of a token in a step as most of the run has it: whole sequences, ``sampled_softmax`` words."""
        return shape.flops_per_token(self.seq_len, self.sampled_softmax)

    def validation_share(self, shape: ModelConfig) -> float:
        """About what a token costs in a validation, in units of a training token."""
        return shape.validation_share(self.seq_len, self.sampled_softmax)

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch * self.grad_accum * self.seq_len


ADAPTER_SCALE = 2.0
"""What an adapter's B A is multiplied by, whatever its rank."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """A low-rank adapter that is trained in place of the weights, which stay W + 2 B A."""

    rank: int = 0
    """Inner width of B A; 0: no adapter, all weights are trained."""
    targets: tuple[str, ...] = LINEAR_LAYERS
    """The linear layers that get an adapter, by their names in every block."""
    base_bits: int | None = None
    """Bits of the base's weights in memory: 32 (f32), 8 (Q8_0 blocks) or 4 (Q4_0; embedding and head Q8_0). None: 32
    where that fits, else 8 or 4."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise UserError(f"lora.rank={self.rank} must be at least 1, for example 16, or 0 for no adapter")
        if self.base_bits not in (None, 4, 8, 32):
            raise UserError(f"lora.base_bits={self.base_bits} must be 4, 8 or 32, or null for what fits")
        known = {name for traits in TRAITS.values() for name in traits.linear_layers}
        if not known.issuperset(self.targets) or not self.targets or len(set(self.targets)) < len(self.targets):
            raise UserError(
                f"lora.targets=[{','.join(self.targets)}] must name linear layers, each once: "
                + ", ".join(LINEAR_LAYERS)
            )

    def targets_in(self, arch: Architecture) -> tuple[str, ...]:
        """``targets`` by the architecture's own names; all of a Llama's stand for all. UserError for one that it does
        not have."""
        layers = TRAITS[arch].linear_layers
        if set(self.targets) == set(LINEAR_LAYERS):
            return layers
        if unknown := [name for name in self.targets if name not in layers]:
            raise UserError(
                f"lora.targets names {unknown[0]}, which {arch} models do not have: theirs are {', '.join(layers)}"
            )
        return self.targets

    @property
    def alpha(self) -> float:
        """Twice the rank, as adapters' files name what B A is multiplied by: alpha / rank."""
        return ADAPTER_SCALE * self.rank


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """Learning from both answers of preference pairs (``data=chat`` with the fields chosen and rejected)."""

    loss: Literal["dpo", "orpo"] | None = None
    """``dpo``: against the model that the run starts from; ``orpo``: without a reference; None: only the chosen answers
    are learned, as any conversation."""
    beta: float = 0.1
    """``dpo``: what a nat of log-probability over the reference's counts as reward (larger: closer to the reference);
    ``orpo``: the weight of the odds ratio's loss next to the cross-entropy."""
    sft: float = 0.0
    """``dpo``: times the chosen answer's cross-entropy per token that is added."""

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise UserError(f"preference.beta={self.beta} must be above 0, for example 0.1")
        if not 0 <= self.sft < math.inf:
            raise UserError(f"preference.sft={self.sft} must be 0 or above, for example 0.2")
        if self.loss != "dpo" and self.sft:
            raise UserError(f"preference.sft={self.sft:g} is for preference.loss=dpo: leave it 0")

    @property
    def loss_unit(self) -> str:
        """What the run's losses are counted in."""
        return "nats per pair" if self.on else "nats per token"

    @property
    def on(self) -> bool:
        """Whether the run learns from pairs."""
        return self.loss is not None


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Learning from a teacher's predictions next to the text's own tokens."""

    teacher: str | None = None
    """A run, a checkpoint, a Hugging Face model directory, a GGUF file, or ``self``: the model that the run starts
    from, as it is then; None: no teacher."""
    alpha: float = 0.9
    """A token's loss is (1 - alpha) * cross-entropy + alpha * KL(teacher || student)."""
    born_again: float = 0.0
    """Two runs by one command: the first takes this share of the steps and the time, and its model is the teacher of
    the second, which takes the rest; 0: one run."""
    cache: str | None = None
    """A folder that keeps the teacher's predictions: of every text it is asked once. None: it computes along."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise UserError(f"distill.alpha={self.alpha} must be above 0 and at most 1, for example 0.9")
        if not 0 <= self.born_again < 1:
            raise UserError(
                f"distill.born_again={self.born_again} must be a share of the run below 1, for example 0.35, or 0"
            )
        if self.born_again and self.teacher:
            raise UserError("distill.born_again makes its teacher: leave it 0 with distill.teacher")
        if self.cache and not self.teacher:
            raise UserError("distill.cache keeps a teacher's predictions: name the teacher with distill.teacher=DIR")


RESHARD = "reshard"
"""``resume``: also where another number of processes goes on."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run."""

    preset: str
    """The preset's name."""
    budget: str | None = None
    """Time for the whole run, set-up included, as ``8h``; it becomes ``train.max_minutes``, and with ``preset=auto``
    everything that is not given is chosen for it."""
    name: str | None = None
    """The name of the run and of its directory in ``runs_dir``; None: the preset's."""
    runs_dir: str = "runs"
    resume: str = "auto"
    """``auto``; ``reshard``: also with another number of processes, which read the text from its beginning again;
    ``never``; or the path of a checkpoint of this run. A resolved configuration never has a run's name here."""
    init_from: str | None = None
    """A run, a Hugging Face model directory or a name on the Hub: its shape, tokenizer and weights are what a new run
    starts from. A resolved configuration has the model's directory here."""
    model: ModelSpec
    tokenizer: TokenizerConfig
    data: DataConfig
    optim: OptimConfig
    train: TrainConfig
    logger: Literal["none", "wandb"] = "none"
    """Where metrics go in addition to ``metrics.jsonl``."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    components: dict[str, Any] = field(default_factory=dict)
    """More components of the training loop: the name of a file in ``train/components/``, and its options."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the preset states about itself: parameters, FLOPs, memory (a test compares them with the formulas), and the
    learning rate and warm-up of the classic recipe."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            seconds_of(self.budget)
        name = self.name or self.preset
        if "/" in name or name in ("", ".", "..", "latest"):
            raise UserError(f"name={name!r} cannot name a run: use letters, digits, '-', '_' and '.'")
        if self.optim.within_backward:
            self._check_adafactor()
        if self.lora.rank:
            self._check_lora()
        if self.preference.on:
            self._check_preference()
        if self.distill.born_again:
            self._check_born_again()
        self._check_phases()
        if self.optim.init_bigrams and not self._has_new_head:
            raise UserError(
                f"optim.init_bigrams={self.optim.init_bigrams} is for a new model with an untied head "
                "(model.tie_embeddings=false) on plain text: leave it 0 with init_from, conversations or a tied head"
            )
        if self.train.sampled_softmax and (self.preference.on or self.distill.cache):
            raise UserError(
                f"train.sampled_softmax={self.train.sampled_softmax} computes the logits of words that are drawn anew: "
                "leave it 0 with preference.loss or distill.cache"
            )

    def check_processes(self, size: int) -> None:
        """UserError where ``size`` processes cannot train together so."""
        self.train.check_processes(size)
        if size > 1 and self.optim.within_backward:
            raise UserError(f"optim=adafactor works with one process, not {size}: use optim=adamw")
        if size > 1 and self.distill.born_again:
            raise UserError(
                f"distill.born_again={self.distill.born_again:g} works with one process: leave it 0 with {size}, or "
                "train a teacher first and name it with distill.teacher"
            )

    def _check_adafactor(self) -> None:
        """It changes weights while gradients are computed: these are whole after one pass, and then gone."""
        for name, wrong, right in (
            ("train.grad_accum", self.train.grad_accum > 1, 1),
            ("optim.grad_clip", self.optim.grad_clip > 0, 0),
            ("train.qat", self.train.qat is not None, "null"),
            ("preference.loss", self.preference.on, "null"),
            ("distill.teacher", self.distill.teacher is not None, "null"),
        ):
            if wrong:
                group, _, key = name.partition(".")
                value = getattr(getattr(self, group), key)
                raise UserError(
                    f"optim=adafactor updates the weights inside one backward pass, which {name}={value} cannot: "
                    f"use {name}={right}, or optim=adamw"
                )

    def _check_phases(self) -> None:
        bags = any(each.bags > 1 for each in self.train.phases)
        if bags and (self.data.has_chat or self.distill.teacher or self.init_from):
            raise UserError(
                "train.phases with bags are for a new model on plain text: leave them out with init_from, "
                "conversations or a teacher"
            )
        if self.data.has_chat and any(each.seq_len for each in self.train.phases):
            raise UserError("train.phases with seq_len would cut conversations: leave them out with data=chat")

    def _check_born_again(self) -> None:
        share = self.distill.born_again
        if self.init_from or self.preference.on:
            raise UserError(
                f"distill.born_again={share:g} begins twice with new weights: leave it 0 with init_from or "
                "preference.loss"
            )

    def _check_lora(self) -> None:
        if not self.init_from:
            raise UserError("lora.rank trains an adapter of a model: name that model with init_from=DIR")
        if self.optim.name != "adamw":
            raise UserError(f"an adapter (lora.rank) is trained with optim=adamw, not {self.optim.name}")
        if self.train.qat:
            raise UserError(
                "train.qat trains all weights, an adapter (lora.rank) leaves them: continue the merged model"
            )

    def _check_preference(self) -> None:
        if self.distill.teacher:
            raise UserError("preference.loss and distill.teacher are two losses: give one of them")
        if any(source.kind != "chat" for source in self.data.all_sources()):
            raise UserError(
                f"preference.loss={self.preference.loss} learns from pairs of answers: give data=chat "
                "data.files=[pairs.jsonl] with the fields prompt, chosen and rejected, without text (tune.replay=0)"
            )

    @property
    def init(self) -> InitConfig:
        """The weights that a new model starts from."""
        init, phases = FIRST_WEIGHTS[self.optim.name], self.train.phases
        if self.optim.name == "muon" and phases and phases[0].bags > 1 and not self.optim.init_bigrams:
            return replace(init, embed_std=EMBED_STD_WITH_BAGS)
        return init

    @property
    def calibrates_head(self) -> bool:
        """Whether the run ends with a calibration of its head. Quantized weights, a trained model's head and one that
        is the embedding, too, are left as they are."""
        return self.train.calibrate_head and self._has_new_head and not self.train.qat

    @property
    def kernel_bits(self) -> int:
        """``TrainConfig.kernel_bits`` of the model that the run begins with."""
        return self.train.kernel_bits(new=not self.init_from)

    @property
    def _has_new_head(self) -> bool:
        """Whether the run trains a new model with an untied head on plain text. Adapters and pairs of answers need a
        model or conversations, so they are none."""
        return not (self.init_from or self.data.has_chat or self.model.tie_embeddings)

    @property
    def root(self) -> Path:
        """The run's directory."""
        return Path(os.path.expanduser(self.runs_dir)) / (self.name or self.preset)

    @property
    def teacher_root(self) -> Path:
        """The directory of the run that trains the teacher of this one (``distill.born_again``)."""
        return teacher_folder(self.root)
