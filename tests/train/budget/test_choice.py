"""What is chosen for a time and a text, with a machine and a law that are given."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from slm.train.budget import choice, choose
from slm.train.budget.choice import Candidate, Wanted
from slm.train.budget.corpus import CorpusSize
from slm.train.budget.machine import Machine
from slm.train.budget.named_machine import named_machine
from slm.train.budget.shapes import SHAPES, VOCABULARIES
from slm.train.predict import records
from slm.train.predict.law import LossLaw, calibrated, fit
from slm.train.predict.ngram import Level
from tests.helpers.machines import MACHINE

LAW = LossLaw(floor=0.85, size=0.45, alpha=0.35, text=1.0, beta=0.4, error=0.01, span=(5e5, 5e6, 1e6, 1e7))
TOKENS = dict(zip(VOCABULARIES, (3.0, 3.4, 3.75, 4.0, 4.2, 4.3), strict=True))
LARGE = CorpusSize(50e9, exact=False, bytes_per_token=TOKENS, level=Level())


def chosen(seconds: float, corpus: CorpusSize = LARGE, machine: Machine = MACHINE, **more) -> Candidate:
    return choice.best(choice.candidates(machine, corpus, LAW, seconds, **more))


def test_more_time_never_gives_a_smaller_model_and_always_a_lower_loss():
    budgets = [60, 600, 1800, 3 * 3600, 8 * 3600, 2 * 86400, 14 * 86400]
    runs = [chosen(seconds) for seconds in budgets]
    for less, more in pairwise(runs):
        assert less.shape.n_matrix <= more.shape.n_matrix
        # The largest is for models that begin as bigrams, which one with a tied head cannot.
        assert less.vocab_size <= more.vocab_size or (more.shape.tied and more.vocab_size == choice.MOST_RANDOM)
        assert less.bits_per_byte > more.bits_per_byte
        assert less.sequences * less.seq_len <= more.sequences * more.seq_len
    assert runs[0].shape.n_matrix < runs[3].shape.n_matrix < runs[-1].shape.n_matrix
    assert runs[0].vocab_size < runs[-1].vocab_size


def test_little_text_gives_a_smaller_model_and_vocabulary():
    small = replace(LARGE, bytes=400_000.0, bytes_per_token={2048: 2.9, 4096: 3.2})
    less, more = chosen(8 * 3600, small), chosen(8 * 3600)
    assert less.shape.n_matrix < more.shape.n_matrix
    assert less.vocab_size == 2048 < more.vocab_size
    assert less.bits_per_byte > more.bits_per_byte
    assert less.epochs > 4


def test_a_head_that_is_calibrated_at_the_end_is_in_what_is_predicted():
    given = Wanted(n_layers=4, d_model=256, ffn_dim=512, vocab_size=16_384, seq_len=512)
    with_it, without = (chosen(3600, wanted=replace(given, calibrate_head=each)) for each in (True, False))
    assert with_it.steps == without.steps
    gain = calibrated(with_it.last_epochs, vocab_size=16_384, d_model=256)
    for end in ("bits_per_byte", "low", "high"):
        assert getattr(with_it, end) == pytest.approx(gain * getattr(without, end))
    assert gain < 1


def test_a_run_ends_before_its_time_where_its_text_has_been_read_often_enough():
    small = replace(LARGE, bytes=400_000.0, bytes_per_token={2048: 2.9})
    hour, day = chosen(3600, small), chosen(86400, small)
    for run in (hour, day):
        assert run.ends_early
        assert run.last_epochs == pytest.approx(choice.MOST_EPOCHS, rel=0.1)
        training = run.steps * MACHINE.step_seconds(run.model, run.sequences * run.seq_len, run.seq_len)
        assert 0.3 * training < run.seconds < training + 0.2 * 3600
    assert hour.seconds < 3600
    assert day.seconds < 86400
    assert day.bits_per_byte <= hour.bits_per_byte


def test_a_run_reads_its_text_no_more_often_than_it_may():
    small = replace(LARGE, bytes=4e6, bytes_per_token={2048: 2.9})
    shape = {"n_layers": 2, "d_model": 256}
    run = chosen(8 * 3600, small, wanted=Wanted(max_epochs=2, **shape))
    assert run.ends_early
    assert 1.8 < run.epochs < 2
    assert run.steps <= run.most_steps
    bags = chosen(8 * 3600, small, wanted=Wanted(max_epochs=2, superposition=4, **shape))
    assert 1.8 < bags.epochs < 2
    free = chosen(8 * 3600, small, wanted=Wanted(**shape))
    assert free.epochs > 4
    assert free.most_steps == math.inf
    # Time enough for one reading only: the machine may prove faster, the text does not grow.
    for seconds in (60, 150, 305, 600):
        short = chosen(seconds, small, wanted=Wanted(max_epochs=1))
        options = dict(word.split("=", 1) for word in choose.words(short, []))
        positions = int(options["train.max_steps"]) * short.sequences * short.seq_len
        read = positions * (1 + (short.superposition - 1) * 0.1) * 2.9
        assert read <= 4e6, seconds


def test_a_run_is_born_again_where_its_text_is_read_often():
    small = replace(LARGE, bytes=4e6, bytes_per_token={2048: 2.9, 4096: 3.3})
    once, often = chosen(60, small), chosen(8 * 3600, small)
    assert (once.born_again, once.last_share) == (0, 1)
    assert once.epochs < choice.BORN_AGAIN_FROM
    assert often.born_again == choice.BORN_AGAIN
    assert often.last_share * often.steps == pytest.approx(often.last_steps, abs=0.5)
    alone = chosen(8 * 3600, small, wanted=Wanted(born_again=0.0))
    assert alone.born_again == 0
    assert often.bits_per_byte < alone.bits_per_byte
    assert chosen(8 * 3600).born_again == 0


def test_a_smaller_model_that_reads_more_is_no_reason_to_be_born_again():
    small = replace(LARGE, bytes=4e6, bytes_per_token={2048: 2.9, 4096: 3.3})
    seen = set()
    for seconds in (60, 600, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600):
        found = choice.candidates(MACHINE, small, LAW, seconds)
        alone = [each for each in found if not each.born_again]
        many = choice.best(alone).epochs >= choice.BORN_AGAIN_FROM
        assert any(each.born_again for each in found) == many
        seen.add((many, max(each.epochs for each in alone) >= choice.BORN_AGAIN_FROM))
    assert seen == {(False, False), (False, True), (True, True)}


@pytest.mark.parametrize("time", [300, 36000])
def test_the_parts_of_a_run_that_is_born_again_take_their_shares_of_it(time):
    """Where time ends it, of the time; where steps do, of the steps."""
    small = replace(LARGE, bytes=4e6, bytes_per_token={2048: 2.9})
    run = chosen(time, small, wanted=Wanted(born_again=0.4))
    alone = MACHINE.step_seconds(run.model, run.sequences * run.seq_len, run.seq_len)
    teacher, last = (1 - run.last_share) * run.steps * alone, run.last_steps * alone * choice.TAUGHT_STEP
    assert run.ends_early == (time == 36000)
    share = 1 - run.last_share if run.ends_early else teacher / (teacher + last)
    assert share == pytest.approx(0.4, rel=0.01)


@pytest.mark.parametrize("text", [LARGE, replace(LARGE, bytes=math.inf)])
def test_a_run_takes_its_time_where_there_is_text_enough(text):
    run = chosen(3600, text)
    assert not run.ends_early
    assert run.seconds == 3600
    assert choice.most_steps(math.inf) >= run.steps


def test_a_run_of_very_little_text_still_has_steps_to_learn_in():
    assert choice.most_steps(1000 / 4096) == choice.LEAST_STEPS


def test_a_faster_machine_gives_more():
    fast = replace(
        MACHINE,
        rates=tuple(replace(r, layer_flops=8 * r.layer_flops, head_flops=8 * r.head_flops) for r in MACHINE.rates),
    )
    assert chosen(3600, machine=fast).bits_per_byte < chosen(3600).bits_per_byte


def test_steps_fill_the_time_that_is_left():
    plain = Wanted(short_seq_len=0, sampled_softmax=0)
    for spent in (0.0, 300.0):
        run = chosen(3600, spent=spent, wanted=plain)
        training = run.steps * MACHINE.step_seconds(run.model, run.sequences * run.seq_len, run.seq_len)
        assert 0.88 * (3600 - spent) < training < 3600 - spent
        assert run.tokens == run.steps * run.sequences * run.seq_len
        assert run.sequences % run.micro_batch == 0


def test_what_a_person_sets_is_kept():
    run = chosen(3600, wanted=Wanted(n_layers=5, d_model=512, vocab_size=10_000, seq_len=256, sequences=20))
    assert (run.shape.n_layers, run.shape.d_model, run.vocab_size) == (5, 512, 10_048)  # padded to rows of 64
    assert (run.seq_len, run.sequences) == (256, 20)
    shape = {"n_layers": 4, "d_model": 256, "vocab_size": 8192}
    passes = chosen(3600, wanted=Wanted(**shape, micro_batch=5))
    assert (passes.micro_batch, passes.sequences % 5) == (5, 0)
    assert passes.sequences > 5
    whole = chosen(3600, wanted=Wanted(**shape, grad_accum=1))
    assert whole.micro_batch == whole.sequences


def test_memory_bounds_the_size():
    free = chosen(14 * 86400)
    bound = chosen(14 * 86400, memory=free.memory_bytes)
    assert bound.memory_bytes <= choice.MEMORY_SHARE * free.memory_bytes
    assert choice.candidates(MACHINE, LARGE, LAW, 3600, memory=1e6) == []


def test_sizes_are_in_order_and_fit_k_quants():
    sizes = [each.n_matrix for each in SHAPES]
    assert sizes == sorted(sizes)
    for shape in SHAPES:
        model = shape.model_config(4096, 512)  # refuses widths that K-quants cannot hold
        assert model.n_matmul_params == shape.n_matrix + 4096 * shape.d_model


@pytest.mark.parametrize("tokens", [2e5, 1e7, 1e9])
def test_the_law_of_batches(tokens):
    """16K, 37K and 116K tokens a step at 10, 50 and 500 million."""
    expected = 16384 * (tokens / 1e7) ** 0.5
    assert abs(math.log(choice.step_sequences(tokens, 512) * 512 / expected)) < 0.35 or expected < 1024


def test_bags_of_tokens_where_no_text_is_read_twice_for_them():
    plenty = chosen(3600)
    assert plenty.superposition == 4
    single = chosen(3600, wanted=Wanted(superposition=1))
    assert single.superposition == 1
    assert plenty.bits_per_byte < single.bits_per_byte
    assert plenty.epochs == pytest.approx(1.3 * plenty.bytes / LARGE.bytes)
    assert chosen(3600, wanted=Wanted(seq_len=510)).superposition == 1
    for text, bag in ((1.4, 4), (1.2, 1)):  # a tenth of the positions read four tokens each
        tokens = {single.vocab_size: TOKENS[single.vocab_size]}
        corpus = replace(LARGE, bytes=text * single.bytes, bytes_per_token=tokens)
        run = chosen(3600, corpus, wanted=Wanted(n_layers=single.shape.n_layers, d_model=single.shape.d_model))
        assert run.superposition == bag, text


def test_bags_that_a_person_asks_for_on_little_text_repeat_it():
    wanted = Wanted(n_layers=4, d_model=256, superposition=4)
    plenty, little = (chosen(3600, replace(LARGE, bytes=size), wanted=wanted) for size in (LARGE.bytes, 2e6))
    assert little.epochs > 4
    assert little.bits_per_byte > 1.02 * plenty.bits_per_byte


def test_short_sequences_and_sampled_words_leave_time_for_more_steps():
    shape = {"n_layers": 4, "d_model": 512, "vocab_size": 8192, "sequences": 16}
    plain = chosen(3600, wanted=Wanted(**shape, short_seq_len=0, sampled_softmax=0))
    short = chosen(3600, wanted=Wanted(**shape, sampled_softmax=0))
    sampled = chosen(3600, wanted=Wanted(**shape, short_seq_len=0))
    both = chosen(3600, wanted=Wanted(**shape))
    assert (both.short_seq_len, both.sampled_softmax) == (128, 2048)
    assert plain.steps < min(short.steps, sampled.steps) < max(short.steps, sampled.steps) < both.steps
    step = MACHINE.step_seconds(plain.model, 16 * 512, 512)
    quick = MACHINE.step_seconds(plain.model, 16 * 512, 128)
    assert quick < step
    half = plain.steps / 2  # half of the time each
    assert short.steps == pytest.approx(half + half * step / quick, rel=0.01)


def test_short_sequences_need_a_length_and_sampled_words_a_vocabulary():
    assert chosen(3600, wanted=Wanted(seq_len=256)).short_seq_len == 0
    assert chosen(3600, wanted=Wanted(seq_len=1024)).short_seq_len == 256
    assert chosen(3600, wanted=Wanted(vocab_size=2048)).sampled_softmax == 0
    assert chosen(3600, wanted=Wanted(vocab_size=4096)).sampled_softmax == 2048
    larger = chosen(3600, wanted=Wanted(n_layers=2, d_model=256)).vocab_size
    assert chosen(3600, wanted=Wanted(n_layers=2, d_model=256, sampled_softmax=0)).vocab_size < larger


def test_validations_score_fewer_tokens_where_training_computes_few_logits():
    """A validation computes all of them."""
    shape = {"n_layers": 1, "d_model": 256, "vocab_size": 32768, "sequences": 8}
    few, all_of_them = (chosen(3600, wanted=Wanted(**shape, sampled_softmax=each)) for each in (2048, 0))
    for run in (few, all_of_them):
        forward = run.model.flops_per_token(512) / 3
        scored = choice.VALIDATIONS * 512 * run.validation_blocks * forward
        trained = run.tokens * run.model.flops_per_token(512, run.sampled_softmax)
        assert scored / trained < choice.VALIDATION_SHARE
    shares = [run.validation_blocks * 512 / run.tokens for run in (few, all_of_them)]
    assert shares[0] < shares[1] / 5


def test_bigrams_take_a_fortieth_of_the_time_and_no_tied_head():
    counts = [chosen(seconds).init_bigrams for seconds in (60, 300, 600, 3600)]
    assert counts == [500_000, 5_000_000, 12_500_000, 20_000_000]
    assert all(each.init_bigrams == 0 for each in choice.candidates(MACHINE, LARGE, LAW, 3600) if each.shape.tied)
    with_them, random = (chosen(600, wanted=Wanted(init_bigrams=each)) for each in (12_500_000, 0))
    assert with_them.bits_per_byte < 0.99 * random.bits_per_byte
    same = Wanted(n_layers=2, d_model=256, vocab_size=2048, superposition=1)
    steps = [chosen(600, wanted=replace(same, init_bigrams=each)).steps for each in (12_500_000, 0)]
    assert 0.96 < steps[0] / steps[1] < 0.99


@pytest.mark.parametrize("name", ["2xzen4", "16xzen4"])
def test_plenty_of_text_needs_no_tricks_for_repeated_text(name):
    """350 MB, 3.5 GB and 35 GB: what is for repeated text switches off by itself, and more text is no loss."""
    law = replace(fit(records.load()), error=0.01)
    texts = [replace(LARGE, bytes=size) for size in (350e6, 3.5e9, 35e9)]
    times = [600, 1800, 3 * 3600, 12 * 3600, 3 * 86400]
    runs = [
        [choice.best(choice.candidates(named_machine(name), text, law, seconds)) for seconds in times] for text in texts
    ]
    for of_text in runs:
        for less, more in pairwise(of_text):
            assert less.bits_per_byte > more.bits_per_byte
    for less, more in pairwise(runs):
        for little, plenty in zip(less, more, strict=True):
            assert plenty.bits_per_byte < 1.004 * little.bits_per_byte  # the head's gain by a reading, at most
    for run in (each for of_text in runs for each in of_text):
        given = {word.partition("=")[0] for word in choose.words(run, [])}
        assert ({"optim.table_decay", "optim.weight_decay"} <= given) == (run.epochs > 1)
        assert (run.superposition > 1) == (run.bytes <= choice.BAGS_AT_MOST)
        assert run.born_again == 0 or run.epochs > choice.BORN_AGAIN_FROM
    assert not any(run.born_again for run in (*runs[1], *runs[2]))
    assert all(run.epochs < 1 for run in runs[2])


def test_repeated_text_is_worth_no_more_than_new_text():
    """A lower rate gains most where text is read again, and would make two readings better than as much new text."""
    law = replace(fit(records.load()), error=0.01)
    wanted = Wanted(n_layers=4, d_model=512, vocab_size=49152, superposition=1, calibrate_head=False)
    machine = named_machine("2xzen4")
    new, again = (
        choice.best(choice.candidates(machine, replace(LARGE, bytes=size), law, 3 * 86400, wanted=wanted))
        for size in (1e12, 3.5e9)
    )
    assert again.tokens == new.tokens
    assert 1.2 < again.epochs < 2
    assert again.bits_per_byte >= new.bits_per_byte
