"""What does not fit is refused before it is tried, and resource_errors where it was."""

import errno
from dataclasses import replace

import pytest
import torch

from slm.data.errors import UserError
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train import memory
from slm.train.backend import attention_bytes
from slm.train.budget import choice
from slm.train.config import TrainConfig
from slm.train.environment import Environment
from slm.train.memory import advice, check_memory, resource_errors

SMALL = ModelConfig(
    vocab_size=64, n_layers=1, d_model=256, n_heads=4, n_kv_heads=2, head_dim=64, ffn_dim=256, seq_len=32
)


def config(**changes) -> TrainConfig:
    return TrainConfig(**{"max_steps": 1, "seq_len": 32, "micro_batch": 4} | changes)


def test_a_model_beyond_the_memory_is_refused_and_a_tight_step_is_warned_of(monkeypatch):
    assert check_memory(SMALL, config()) is None
    vast = ModelConfig(
        vocab_size=50_304, n_layers=80, d_model=8192, n_heads=64, n_kv_heads=8, head_dim=128, ffn_dim=28672, seq_len=64
    )
    with pytest.raises(UserError, match=r"parameters need .* GiB .* available: take a smaller model"):
        check_memory(vast, config())
    state = SMALL.training_state_bytes
    monkeypatch.setattr(memory, "available_bytes", lambda: state + 1000)
    with pytest.raises(UserError, match="GiB for the weights and an adapter"):
        check_memory(vast, config(), rank=16)
    adapter = 16 * 16 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 256))
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * SMALL.n_params + adapter)
    assert "warning: a step needs" in check_memory(SMALL, config(), rank=16)
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * SMALL.n_params + adapter - 1)
    with pytest.raises(UserError, match="the weights and an adapter"):
        check_memory(SMALL, config(), rank=16)
    monkeypatch.setattr(memory, "available_bytes", lambda: state + 1000)
    warned = check_memory(SMALL, config())
    assert "train.micro_batch=2 train.grad_accum=2" in warned
    assert "train.gradient_checkpointing=true" in warned


def test_a_step_counts_what_the_kernels_keep_and_the_format_of_its_values(monkeypatch):
    values = 4 * 32 * (4 * 256 + 3 * 256 + SMALL.vocab_size)
    for value_bytes, packed, step in ((2, False, 2 * values), (4, True, 4 * values + 8 * SMALL.n_params)):
        needed = SMALL.training_state_bytes + step
        options = {"value_bytes": value_bytes, "packed": packed}
        monkeypatch.setattr(memory, "available_bytes", lambda needed=needed: needed)
        assert check_memory(SMALL, config(), **options) is None
        monkeypatch.setattr(memory, "available_bytes", lambda needed=needed: needed - 1)
        assert "warning: a step needs" in check_memory(SMALL, config(), **options)


def test_all_estimates_of_a_steps_memory_are_of_one_formula():
    """What the layers keep, by the tensors that autograd saves; and the choice for a budget counts the same."""
    tokens = 128
    ids = torch.zeros(4, 32, dtype=torch.long)
    per_layer = []
    for n_layers in (1, 3):
        model = LanguageModel(replace(SMALL, n_layers=n_layers))
        own = {each.untyped_storage().data_ptr() for each in model.parameters()}
        kept: dict[int, int] = {}

        def note(tensor, own=own, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model.hidden_states(ids).sum()
        assert loss.isfinite()
        per_layer.append(sum(kept.values()))
    measured = (per_layer[1] - per_layer[0]) / 2
    stated = SMALL.activation_bytes(tokens, value_bytes=4)
    assert stated <= measured <= 3 * stated  # it is a lower bound: uncompiled steps keep more
    assert SMALL.activation_bytes(tokens, recompute="layer") * 7 == SMALL.activation_bytes(tokens)
    assert choice.memory_bytes(SMALL, 4, 32) == SMALL.training_state_bytes + stated + 2**29


def test_a_value_is_expected_in_the_format_that_the_processor_is_faster_in(monkeypatch):
    for flags, expected in (({"avx512f", "avx512_bf16"}, 2), ({"avx2"}, 4)):
        monkeypatch.setattr(memory, "cpu_flags", lambda flags=flags: flags)
        assert memory.expected_value_bytes(config()) == expected
        assert memory.expected_value_bytes(config(precision="bf16")) == 2
        assert memory.expected_value_bytes(config(precision="f32")) == 4


def test_the_logits_that_the_head_has_at_once_count():
    """A quarter of a GiB at most, in f32: a head with more is computed for some positions at a time."""
    large = replace(SMALL, vocab_size=151_936)
    for tokens, logits in ((100, 400 * 151_936), (1024, 2**28)):
        kept = large.activation_bytes(tokens, value_bytes=4)
        step = memory.step_bytes(large, config(seq_len=tokens, micro_batch=1), value_bytes=4)
        assert step == kept + logits


def test_what_rounding_makes_up_for_errors_with_counts(monkeypatch):
    """Moments and factors of four inputs: 256 columns each here, in f32."""
    nearest = SMALL.training_state_bytes + memory.QAT_BYTES * SMALL.n_params
    compensated = nearest + 2 * 4 * 4 * 256**2
    for kind, needed in (("q4_0", compensated), ("q8_0", nearest), ("tq2_0", nearest)):
        options = config(qat=kind)
        monkeypatch.setattr(memory, "available_bytes", lambda needed=needed: needed)
        assert "warning" in check_memory(SMALL, options)
        monkeypatch.setattr(memory, "available_bytes", lambda needed=needed: needed - 1)
        with pytest.raises(UserError, match="available: take a smaller model"):
            check_memory(SMALL, options)


def environment(**changes) -> Environment:
    return Environment(**{"threads": 1, "precision": "f32", "compile": False, "notes": ()} | changes)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attentions_memory_is_what_autograd_keeps(masked, recompute):
    """Uncompiled; by the tensors that it saves for the backward pass."""
    shape = replace(SMALL, n_layers=2, seq_len=256)
    model, ids = LanguageModel(shape), torch.zeros(2, 256, dtype=torch.long)
    model.gradient_checkpointing = recompute
    kept: dict[int, int] = {}

    def note(tensor):
        if tensor.dim() == 4 and tensor.shape[-2:] == (256, 256):
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model.loss(ids, ids, torch.zeros(2, 256, dtype=torch.int32) if masked else None)
    asked = config(seq_len=256, micro_batch=2, gradient_checkpointing=recompute)
    estimate = attention_bytes(shape, asked, environment(), masked=masked)
    # Recomputed, a layer's mask is there only while the backward pass is in that layer.
    assert sum(kept.values()) == (0 if recompute else estimate)
    assert estimate == (4 * 2 * 256 * 256 * (1 if recompute else 2) if masked else 0)
    assert loss.isfinite()


def test_a_sequence_whose_attention_cannot_fit_is_refused_before_it_is_tried():
    long = config(seq_len=100_352, kernels=False)
    bf16 = environment(compile=True, precision="bf16")
    needed = attention_bytes(SMALL, long, bf16, masked=False)
    # Scores of a query with the keys up to the end of its block of 256, in bf16: 4 sequences, 1 layer, 4 heads.
    assert needed == 2 * 4 * 1 * 4 * sum(256 * stop for stop in range(256, 100_353, 256))
    with pytest.raises(UserError, match=r"attention over train.seq_len=100,352 needs 1[0-9]{2}\.. GiB, .*kernels=auto"):
        check_memory(SMALL, long, attention=needed)


def test_advice_keeps_the_batch_and_does_not_repeat_what_is_done():
    assert "train.micro_batch=2 train.grad_accum=6 (the same batch)" in advice(config(grad_accum=3))
    assert "train.micro_batch=1 train.grad_accum=5" in advice(config(micro_batch=5))
    assert advice(config(micro_batch=1, gradient_checkpointing=True)) == "a smaller train.seq_len"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "out of memory: use train.micro_batch=2"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x/samples.md"), "samples.md could not be written"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "quota exceeded; [0-9,]+ bytes are free there"),
        (Exception("No space left on device (os error 28)"), "could not be written"),
    ],
)
def test_what_the_machine_has_run_out_of_is_one_line(error, says, tmp_path):
    with pytest.raises(UserError, match=says) as caught, resource_errors(config(), tmp_path / "not" / "there"):
        raise error
    assert len(str(caught.value).splitlines()) == 1


def test_torchs_own_failure_to_allocate_is_recognised(tmp_path):
    with (
        pytest.raises(UserError, match=r"out of memory \([0-9.]+ GiB were asked for at once\): use"),
        resource_errors(config(), tmp_path),
    ):
        torch.empty(1 << 50, dtype=torch.uint8)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), OSError(errno.EACCES, "denied"), KeyError("x")])
def test_everything_else_stays_what_it_is(error, tmp_path):
    with pytest.raises(type(error)) as caught, resource_errors(config(), tmp_path):
        raise error
    assert caught.value is error
