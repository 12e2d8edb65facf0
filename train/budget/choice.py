"""The choice for a budget: of every size that fits, the one with the lowest predicted loss by the deadline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from slm.model.config import ModelConfig
from slm.train.budget.corpus import BYTES_PER_MERGE, CorpusSize
from slm.train.budget.machine import SAMPLED_WORDS, Machine
from slm.train.budget.shapes import SHAPES, Shape
from slm.train.phases import bags_fit
from slm.train.predict.law import LossLaw, calibrated, learns_slower, taught, text_factor, text_read, text_worth

BATCH_TOKENS, BATCH_AT, BATCH_POWER = 16_384, 10e6, 0.5
"""Tokens per step: BATCH_TOKENS * (training tokens / BATCH_AT) ** BATCH_POWER. This is 2.1 to 3.3 times the batch that
Li et al. (2025, arXiv 2503.04715) find best at equal tokens. At equal time a larger step wins, because the update of a
small model with large tables takes a fifth of a short step (docs/results/recipe.md, measured up to 25 million
tokens)."""
SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sequences per step to choose from. Each number divides into micro-batches."""
MOST_IN_A_PASS, MOST_SAMPLED = 8, 4
"""Largest micro-batch, in sequences of 512 tokens, with a full softmax and with a sampled one. The sampled one is
smaller because fewer sequences have fewer distinct targets."""
LONG_RUN = 300e6
"""Training tokens above which sequences have 1,024 tokens instead of 512."""
BYTES_PER_ID = 750.0
"""Bytes of text required per token of the vocabulary: both in the corpus and read by the run or counted for its
bigrams. The smallest vocabulary has no such requirement."""
TABLE_SHARE, SAMPLED_TABLE_SHARE = 0.5, 24.0
"""Largest head with a full softmax and with a sampled one, as a multiple of the layers' parameters. The smallest
vocabulary is always allowed."""
SAMPLED_FROM = 4096
"""Smallest vocabulary with a sampled softmax (``train.sampled_softmax``) over SAMPLED_WORDS tokens."""
MORE_WORDS = 1.15
"""Logits computed per step, in units of SAMPLED_WORDS: micro-batches with many distinct targets compute more."""
SHORT_PIECES, LEAST_SHORT = 4, 128
"""Number of pieces that a sequence is cut into in the first part of a run, and the fewest tokens of a piece."""
SHORT_UNTIL = 0.5
"""Share of the run at which the part with short sequences ends."""
MOST_RANDOM = 32768
"""Largest vocabulary without bigram initialization."""
BAG = 4
"""Tokens per bag at the beginning of a run that has enough text."""
BAGS_UNTIL = 0.1
"""Share of the run at which the part with token bags ends."""
BAGS_AT_MOST = 100e6
"""Bytes of text of a run above which bags are off. They are worth ``MOST_SUPERPOSED`` bytes at most: 2.5 % of this,
less than two seeds are apart. Nothing beyond a third of it was measured (docs/lab/recipe-choices.md)."""
LEAST_BIGRAMS, MOST_BIGRAMS, BIGRAM_SHARE = 500_000, 20_000_000, 0.025
"""Fewest and most token pairs counted for the initial weights (``optim.init_bigrams``), and the largest share of the
run's time for counting them."""
BIGRAMS_PER_S, FACTORS_SECONDS = 1_000_000, 2.5
"""Pairs counted per second, and seconds that their low-rank factors take."""
READABLE = 0.97
"""Share of the text allowed by ``data.max_epochs`` that a plan uses, because the number of its tokens is an
estimate."""
MOST_EPOCHS = 8.0
"""Most epochs of a run. A budget that allows more ends early: on 1 MB of text twice as many epochs lower the bits per
byte by .06 % (docs/results/recipe.md)."""
BORN_AGAIN = 0.4
"""Share of the time that trains the teacher of self-distillation (``distill.born_again``). Among .3, .4 and .5 it gives
the lowest predicted loss where time ends the run, and is within .2 % of the lowest where the text does."""
TAUGHT_STEP = 1.35
"""Seconds of a step with a teacher, relative to one without."""
BORN_AGAIN_FROM = 6.0
"""Epochs of the best run without a teacher above which self-distillation is considered. With fewer epochs both models
read too little or must be smaller. Five minutes with 13 MB and thirty with 52 MB gained nothing; five minutes with 4 MB
on a slower processor lost 1 % (docs/lab/recipe-choices.md)."""
LEAST_STEPS = 100
"""Fewest steps of a run that the menu shows."""
EQUAL = 0.002
"""Predictions within this share count as equal, and the smaller model is chosen."""
MEMORY_SHARE = 0.8
"""Share of the available memory that a run may use."""
VALIDATIONS = 6
"""Validations during a run."""
VALIDATION_SHARE = 0.03
"""Share of the time for all validations together."""
LAST_VALIDATION = 6
"""The last validation scores this many times as much as one on the way. It says what the model has become, where the
others only need to be compared with each other."""
VALIDATED_TOKENS = (8_192, 131_072)
"""Fewest and most tokens of a validation on the way; the last one may have twice the most."""
OVERHEAD = 0.03
"""Share of the time for data, records, samples and checkpoints."""
STARTING_SECONDS = 6.0
"""Seconds before the first step: imports, model and data."""
TOKENIZER_BYTES_PER_S = 2.5e6
"""Bytes of text that BPE training processes per second."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options set by the person, which the choice keeps."""

    n_layers: int | None = None
    d_model: int | None = None
    ffn_dim: int | None = None
    vocab_size: int | None = None
    seq_len: int | None = None
    sequences: int | None = None
    """Sequences per step."""
    micro_batch: int | None = None
    """Sequences per micro-batch."""
    grad_accum: int | None = None
    """Micro-batches per step."""
    superposition: int | None = None
    """Tokens per bag in the first part of the run."""
    superposition_share: float = BAGS_UNTIL
    """Share of the run at which that part ends."""
    short_seq_len: int | None = None
    """Tokens per sequence in the first part of the run; 0: the same as later."""
    short_seq_share: float = SHORT_UNTIL
    """Share of the run at which that part ends."""
    sampled_softmax: int | None = None
    """Tokens of the sampled softmax; 0: a full softmax."""
    init_bigrams: int | None = None
    """Pairs that are counted for the first weights; 0: none."""
    born_again: float | None = None
    """Share of the run that trains a teacher; 0: no teacher."""
    max_epochs: int | None = None
    """How often the text may be read, by both models together."""
    calibrate_head: bool = True
    """Whether an untied head is calibrated at the end of the run."""

    def shapes(self) -> list[Shape]:
        """The sizes that are left; those of ``SHAPES`` with the given widths where none has them all."""
        given = {k: v for k in ("n_layers", "d_model", "ffn_dim") if (v := getattr(self, k)) is not None}
        fitting = [each for each in SHAPES if all(getattr(each, k) == v for k, v in given.items())]
        return fitting or sorted({replace(each, **given) for each in SHAPES}, key=lambda each: each.n_matrix)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One size, and what a run of it would be."""

    shape: Shape
    model: ModelConfig
    seq_len: int
    sequences: int
    """Sequences per optimizer step."""
    micro_batch: int
    superposition: int
    """Tokens of a bag in the first part of the run; 1: single tokens."""
    short_seq_len: int
    """Tokens per sequence in the first part of the run; 0: the same as later."""
    sampled_softmax: int
    """Tokens of the sampled softmax; 0: a full softmax."""
    init_bigrams: int
    """Pairs counted for bigram initialization; 0: random initialization."""
    born_again: float
    """Share of the run that trains a teacher; 0: no teacher."""
    last_share: float
    """Share of the steps that train the final model; 1 without a teacher."""
    steps: int
    tokens: int
    bytes: float
    epochs: float
    """Epochs of both models together; 0 for endless text."""
    tokens_per_s: float
    seconds: float
    """Seconds of the whole run, including its start."""
    ends_early: bool
    """Whether the largest number of epochs is reached before the time is over, so that steps end the run."""
    most_steps: float
    """Steps for which there is text; infinite without ``data.max_epochs``."""
    memory_bytes: float
    bits_per_byte: float
    low: float
    high: float
    """Two runs of three should end between ``low`` and ``high``."""
    sample_bytes: int
    """Bytes of text that the tokenizer is trained on."""

    @property
    def last_steps(self) -> int:
        """Steps of the final model."""
        return round(self.last_share * self.steps)

    @property
    def last_epochs(self) -> float:
        """Epochs of the final model."""
        return self.last_share * self.epochs

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def validation_blocks(self) -> int:
        """Sequences per validation on the way, as many as fit ``VALIDATION_SHARE`` of the time."""
        return round(self._validated_tokens() / self.seq_len)

    @property
    def last_validation_blocks(self) -> int:
        """Sequences of the last validation."""
        most = 2 * VALIDATED_TOKENS[1]
        return round(min(most, LAST_VALIDATION * self._validated_tokens()) / self.seq_len)

    def _validated_tokens(self) -> float:
        least, most = VALIDATED_TOKENS
        share = VALIDATION_SHARE / (VALIDATIONS + LAST_VALIDATION)
        share /= self.model.validation_share(self.seq_len, self.sampled_softmax)
        return min(most, max(least, share * self.tokens))


def candidates(
    machine: Machine,
    corpus: CorpusSize,
    law: LossLaw,
    seconds: float,
    *,
    spent: float = 0.0,
    memory: float = math.inf,
    wanted: Wanted | None = None,
) -> list[Candidate]:
    """Every size and vocabulary that a run of ``seconds`` could have, ``spent`` of them being over already.

    ``memory``: bytes that a run may take. The list is empty where nothing fits.
    """
    wanted = wanted or Wanted()
    most = MEMORY_SHARE * memory
    found, often = [], []
    for shape in wanted.shapes():
        for vocab_size, bytes_per_token in _vocabularies(corpus, wanted):
            run = partial(make, machine, corpus, law, shape, vocab_size, bytes_per_token, seconds, spent, wanted)
            candidate = run()
            free = wanted.vocab_size is None and vocab_size > min(corpus.bytes_per_token)
            share = SAMPLED_TABLE_SHARE if candidate.sampled_softmax else TABLE_SHARE
            seen = max(candidate.bytes, candidate.init_bigrams * bytes_per_token)
            too_large = (
                vocab_size * shape.d_model > share * shape.n_matrix
                or vocab_size * BYTES_PER_ID > seen
                or (vocab_size > MOST_RANDOM and not candidate.init_bigrams)
            )
            if free and too_large:
                continue
            if candidate.memory_bytes <= most:
                found.append(candidate)
            if candidate.epochs >= BORN_AGAIN_FROM:
                often.append(run)
    if wanted.born_again is None and (not found or best(found).epochs >= BORN_AGAIN_FROM):
        again = [run(born_again=BORN_AGAIN) for run in often]
        found += [each for each in again if each.memory_bytes <= most]
    return found


def _vocabularies(corpus: CorpusSize, wanted: Wanted) -> list[tuple[int, float]]:
    """Vocabularies to choose from, with the bytes of a token."""
    known = corpus.bytes_per_token
    if (given := wanted.vocab_size) is not None:
        nearest = min(known, key=lambda each: abs(math.log(each / given)))
        return [(given, known[nearest] * (given / nearest) ** 0.12)]
    enough = [size for size in known if size * BYTES_PER_ID <= corpus.bytes]
    return [(size, known[size]) for size in enough or [min(known)]]


def make(
    machine: Machine,
    corpus: CorpusSize,
    law: LossLaw,
    shape: Shape,
    vocab_size: int,
    bytes_per_token: float,
    seconds: float,
    spent: float,
    wanted: Wanted,
    *,
    born_again: float = 0.0,
) -> Candidate:
    """The run of one size in this time; after the share ``born_again`` of it, or the one that a person has set, its
    model teaches a new one."""
    born_again = born_again if wanted.born_again is None else wanted.born_again
    pace = born_again + (1 - born_again) / TAUGHT_STEP if born_again else 1.0
    sample_bytes = round(min(50e6, max(1e6, 15_000 * seconds, BYTES_PER_MERGE * vocab_size)))
    text = min(sample_bytes, corpus.bytes)
    bigrams = _bigrams(wanted, shape, seconds)
    counting = bigrams / BIGRAMS_PER_S + FACTORS_SECONDS if bigrams else 0.0
    training = seconds - spent - STARTING_SECONDS - text / TOKENIZER_BYTES_PER_S - counting
    training = max(training, 0.3 * seconds) * (1 - VALIDATION_SHARE - OVERHEAD)
    seq_len, tokens = wanted.seq_len or 512, 1_000_000
    model = shape.model_config(vocab_size, seq_len)
    sampled = _sampled(wanted, vocab_size)
    words = min(vocab_size, round(MORE_WORDS * sampled))
    for _ in range(8):  # the step's size depends on the tokens, and the tokens on the step's size
        if wanted.seq_len is None:
            seq_len = 1024 if tokens >= LONG_RUN else 512
        sequences = wanted.sequences or step_sequences(tokens, seq_len, wanted.micro_batch or wanted.grad_accum or 1)
        per_step = sequences * seq_len
        step_seconds = machine.step_seconds(model, per_step, seq_len, words)
        if short := _short(wanted, seq_len):
            quick = machine.step_seconds(model, per_step, short, words)
            # A share of the time, not of the steps: as many steps are done as both parts have time for.
            for_short = wanted.short_seq_share
            step_seconds = 1 / (for_short / quick + (1 - for_short) / step_seconds)
        in_time = max(1, round(training * pace / step_seconds))
        text_steps = corpus.bytes / bytes_per_token / per_step
        most = most_steps(text_steps) / (1 - born_again)
        readable = _readable(wanted) * text_steps
        steps = max(1, min(math.ceil(min(in_time, most)), math.floor(min(in_time, readable))))
        # The share of the time that the teacher takes, or of the steps where these end the run.
        last_share = (1 - born_again if steps < in_time else 1 - born_again / pace) if born_again else 1.0
        tokens = round(last_share * steps) * per_step
    model = shape.model_config(vocab_size, seq_len)
    micro_batch = wanted.micro_batch or (sequences // wanted.grad_accum if wanted.grad_accum else 0)
    if not micro_batch:
        most = (MOST_SAMPLED if sampled else MOST_IN_A_PASS) * 512 // seq_len
        micro_batch = max(n for n in range(1, max(1, most) + 1) if sequences % n == 0)
    n_bytes = tokens * bytes_per_token  # of the model which the run ends with
    bag = _bag(wanted, seq_len, n_bytes, corpus.bytes)
    counted = min(corpus.bytes, bigrams * bytes_per_token)
    slower = learns_slower(shape.n_layers, bigrams)
    share = wanted.superposition_share

    def run(n_bytes: float, text: float = corpus.bytes) -> tuple[float, float, float, int]:
        """What the law is asked for this shape, which reads so much of ``text`` bytes."""
        read = text_read(n_bytes, bag=bag, share=share)
        worth = text_worth(
            n_bytes,
            bag=bag,
            counted=counted,
            vocab_size=vocab_size,
            sampled=sampled > 0,
            slower=slower,
            readings=read / text,
        )
        # The text counts as worth / read of what is read of it, and so does all that there is.
        return shape.n_matrix, worth, text * worth / read, vocab_size

    def head_gain(readings: float) -> float:
        """The calibrated head's factor."""
        calibrates = wanted.calibrate_head and not shape.tied
        return calibrated(readings, vocab_size=vocab_size, d_model=shape.d_model) if calibrates else 1.0

    last = run(n_bytes)
    alone = law.predict(*last)
    factor, blur = text_factor(corpus.level, last[1])
    if born_again:
        factor *= taught(alone, law.predict(*run(n_bytes * (1 / last_share - 1)))) / alone
    last_epochs = text_read(n_bytes, bag=bag, share=share) / corpus.bytes
    # A deep model's lower rate and the head gain where text is read again: it is worth no more than new text even so.
    new_text = head_gain(min(1.0, last_epochs)) * law.predict(*run(n_bytes, math.inf)) / alone
    factor *= max(head_gain(last_epochs), new_text)
    value = factor * alone
    low, high = (factor * each for each in law.interval(*last))
    return Candidate(
        shape=shape,
        model=model,
        seq_len=seq_len,
        sequences=sequences,
        micro_batch=micro_batch,
        superposition=bag,
        short_seq_len=short,
        sampled_softmax=sampled,
        init_bigrams=bigrams,
        born_again=born_again,
        last_share=last_share,
        steps=steps,
        tokens=steps * per_step,
        bytes=n_bytes,
        epochs=last_epochs / last_share,
        tokens_per_s=pace * per_step / step_seconds,
        seconds=seconds - training * (1 - steps / in_time) / (1 - VALIDATION_SHARE - OVERHEAD),
        ends_early=steps < in_time,
        most_steps=readable / (1 if wanted.superposition else text_read(1.0, bag=bag, share=share)),
        memory_bytes=memory_bytes(model, micro_batch, seq_len) + (4 * model.n_params if born_again else 0),
        bits_per_byte=value,
        low=low / (1 + blur),
        high=high * (1 + blur),
        sample_bytes=sample_bytes,
    )


def _bag(wanted: Wanted, seq_len: int, n_bytes: float, text: float) -> int:
    """The bag of a run with positions that stand for ``n_bytes``.

    Bags read more text for the same work. They are chosen where no text is read twice for it, in a run that is short
    enough to gain by them.
    """
    if wanted.superposition is not None:
        return wanted.superposition
    read = text_read(n_bytes, bag=BAG, share=wanted.superposition_share)
    enough = read <= text * (READABLE if wanted.max_epochs == 1 else 1)
    return BAG if enough and n_bytes <= BAGS_AT_MOST and bags_fit(BAG, seq_len) else 1


def _short(wanted: Wanted, seq_len: int) -> int:
    """Tokens of the first sequences; 0: as many as later."""
    if wanted.short_seq_len is not None:
        return wanted.short_seq_len
    fits = seq_len % SHORT_PIECES == 0 and seq_len >= SHORT_PIECES * LEAST_SHORT
    return seq_len // SHORT_PIECES if fits else 0


def _sampled(wanted: Wanted, vocab_size: int) -> int:
    """Tokens of the sampled softmax; 0: a full softmax."""
    if wanted.sampled_softmax is not None:
        return wanted.sampled_softmax
    return SAMPLED_WORDS if vocab_size >= SAMPLED_FROM else 0


def _bigrams(wanted: Wanted, shape: Shape, seconds: float) -> int:
    """Pairs that are counted for embedding and head; 0 where the two are one matrix."""
    if wanted.init_bigrams is not None:
        return wanted.init_bigrams
    in_time = round(max(0.0, BIGRAM_SHARE * seconds - FACTORS_SECONDS) * BIGRAMS_PER_S, -5)
    return 0 if shape.tied else int(min(MOST_BIGRAMS, max(LEAST_BIGRAMS, in_time)))


def step_sequences(tokens: float, seq_len: int, unit: int = 1) -> int:
    """Sequences of an optimizer step in a run of ``tokens``, a multiple of ``unit``."""
    ideal = BATCH_TOKENS * (tokens / BATCH_AT) ** BATCH_POWER / seq_len
    multiples = [unit * each for each in SEQUENCES if unit * each <= SEQUENCES[-1]] or [unit]
    return min(multiples, key=lambda each: abs(math.log(each / max(ideal, 1e-9))))


def most_steps(text_steps: float) -> float:
    """The steps that read the text ``MOST_EPOCHS`` times, ``LEAST_STEPS`` at least. ``text_steps``: those that read it
    once, infinite where the text is."""
    return max(LEAST_STEPS, MOST_EPOCHS * text_steps)


def _readable(wanted: Wanted) -> float:
    """How often steps of single tokens may go through the text, a little less than ``data.max_epochs`` allows: its
    tokens are estimated. A bag that a person has asked for reads more."""
    if wanted.max_epochs is None:
        return math.inf
    return READABLE * wanted.max_epochs / (1 + ((wanted.superposition or 1) - 1) * wanted.superposition_share)


def memory_bytes(model: ModelConfig, micro_batch: int, seq_len: int) -> float:
    """Bytes of a run: weights, gradients and moments, the activations of a pass in f32, and half a GiB for all else."""
    return model.training_state_bytes + model.activation_bytes(micro_batch * seq_len, value_bytes=4) + GIB / 2


def best(found: Sequence[Candidate]) -> Candidate:
    """The lowest predicted loss; of those that are as good, the smallest model."""
    found = [each for each in found if each.steps >= LEAST_STEPS] or found
    lowest = min(each.bits_per_byte for each in found)
    good = [each for each in found if each.bits_per_byte <= lowest * (1 + EQUAL)]
    return min(good, key=lambda each: (each.model.n_params, each.bits_per_byte))


def menu(found: Sequence[Candidate]) -> list[Candidate]:
    """The best vocabulary of each size, from the smallest to the largest, without those that would hardly begin."""
    enough = [each for each in found if each.steps >= LEAST_STEPS] or [best(found)]
    sizes = sorted({each.shape for each in enough}, key=lambda each: each.n_matrix)
    return [best([each for each in enough if each.shape == shape]) for shape in sizes]
