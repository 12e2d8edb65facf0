import gguf
import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.export.imatrix import Begun, collect
from slm.kernels.choice import open_kernels
from slm.kernels.column_squares import ColumnSquares
from slm.model.transformer import LanguageModel
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    model = LanguageModel(tiny.config(d_model=32, n_heads=4, head_dim=8, ffn_dim=48, vocab_size=64)).eval()
    tiny.randomize(model)
    return model


WINDOWS = np.random.default_rng(0).integers(0, 64, (3, 16), dtype=np.int32)


@torch.inference_mode()
def test_sums_are_the_squares_of_what_each_matrix_reads(model):
    matrix = collect(model, WINDOWS, dataset="test", output=True)
    assert (matrix.n_rows, matrix.chunk_size, matrix.n_chunks) == (48, 16, 3)
    ids_BT = torch.from_numpy(WINDOWS.astype(np.int64))
    x_BTD = model.model.embed_tokens(ids_BT)
    first = model.model.layers[0].input_layernorm(x_BTD).double().square().sum((0, 1)).numpy()
    for kind in "qkv":
        np.testing.assert_allclose(matrix.sums[f"blk.0.attn_{kind}.weight"], first, rtol=1e-5)
    last = model.hidden_states(ids_BT).double().square().sum((0, 1)).numpy()
    np.testing.assert_allclose(matrix.sums["output.weight"], last, rtol=1e-5)
    assert matrix.sums["blk.1.ffn_down.weight"].shape == (48,)
    assert np.array_equal(matrix.sums["blk.1.ffn_gate.weight"], matrix.sums["blk.1.ffn_up.weight"])
    assert len(matrix.sums) == 2 * 7 + 1


def test_output_is_left_out_unless_asked_for_and_hooks_go(model):
    assert "output.weight" not in collect(model, WINDOWS, dataset="test").sums
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_file_is_llama_cpps_format(model, tmp_path):
    matrix = collect(model, WINDOWS, dataset="test")
    matrix.write(tmp_path / "imatrix.gguf")
    reader = gguf.GGUFReader(tmp_path / "imatrix.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert fields == {
        "general.type": "imatrix",
        "imatrix.datasets": ["test"],
        "imatrix.chunk_count": 3,
        "imatrix.chunk_size": 16,
    }
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 * len(matrix.sums)
    for name, mean in matrix.means().items():
        count = tensors[f"{name}.counts"].data
        assert count.tolist() == [48.0]
        assert np.array_equal(tensors[f"{name}.in_sum2"].data / count, mean)


def test_activations_that_are_not_finite_are_named(model):
    broken = LanguageModel(model.config).eval()
    with torch.no_grad():
        broken.model.layers[1].input_layernorm.weight[3] = float("inf")
    with pytest.raises(UserError, match=r"blk.1.attn_q.weight is not finite"):
        collect(broken, WINDOWS, dataset="test")


def test_the_training_kernels_give_the_same_sums():
    """Another engine, several windows at a time, the last group smaller."""
    kernels, why = open_kernels("auto", "f32")
    if kernels is None:
        pytest.skip(why)
    for arch in ("qwen3", "gemma3", "lfm2"):
        # Every variant's tiles divide this vocabulary; 400 is no multiple of the 32 of the f32 kernels for AVX-512.
        model = LanguageModel(tiny.config(arch=arch, n_layers=3, vocab_size=416)).eval()
        tiny.randomize(model)
        windows = np.random.default_rng(1).integers(0, model.config.vocab_size, (9, 500), dtype=np.int32)
        steps: list[int] = []
        ours = collect(model, windows, dataset="x", output=True, kernels=kernels, progress=steps.append)
        theirs = collect(model, windows, dataset="x", output=True)
        assert steps == [4, 4, 1]
        assert ours.sums.keys() == theirs.sums.keys()
        assert (ours.n_rows, ours.n_chunks, ours.chunk_size) == (theirs.n_rows, theirs.n_chunks, theirs.chunk_size)
        for name, sums in ours.sums.items():
            np.testing.assert_allclose(sums, theirs.sums[name], rtol=2e-3, err_msg=name)


def test_sums_that_another_pass_began_are_those_of_one(model):
    whole = collect(model, WINDOWS, dataset="x")
    squares = ColumnSquares(model)
    with squares.watched(None):
        model.hidden_states(torch.from_numpy(WINDOWS[::2][:2].astype(np.int64)))
    model.hidden_states(torch.from_numpy(WINDOWS.astype(np.int64)))  # not watched
    begun = Begun(squares=squares, inputs=WINDOWS[::2][:2])
    assert np.array_equal(begun.left(WINDOWS), np.delete(WINDOWS, [0, 2], axis=0))
    assert begun.left(WINDOWS[1:]) is None
    assert begun.left(np.concatenate([WINDOWS, WINDOWS[:1]])) is None
    assert begun.left(WINDOWS[:, 1:]) is None
    found = collect(model, begun.left(WINDOWS), dataset="x", begun=begun)
    assert (found.n_rows, found.n_chunks) == (whole.n_rows, whole.n_chunks)
    for name, sums in whole.sums.items():
        np.testing.assert_allclose(found.sums[name], sums, rtol=1e-5)
