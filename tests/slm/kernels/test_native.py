"""Buffers are as large as the library says, whatever it says, and what it cannot do becomes an exception.

The functions that tell sizes need no AVX-512, so they are built and called on every machine with a compiler. A stand-in
for the other kernels looks at what it is given.
"""

import ctypes
import itertools
import math
import re
import subprocess
from pathlib import Path

import pytest
import torch

from slm.kernels import native
from slm.kernels.fused import Fused
from slm.kernels.native import ALLOCATING, FOLDER, SIGNATURES, SIZES, VARIANTS
from slm.kernels.roofline import SOURCES
from slm.machine.cpp_build import compiler
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel

BF16 = VARIANTS["avx512bf16"]
needs_compiler = pytest.mark.skipif(compiler(gcc_only=True) is None, reason="no g++")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Builds a shared library of C++ sources, with the kernels' headers next to them."""
    folder = tmp_path_factory.mktemp("library")
    numbers = itertools.count()

    def build(*sources: Path | str, changed: dict[str, str] | None = None) -> ctypes.CDLL:
        place = folder / str(next(numbers))
        place.mkdir()
        for name in BF16.headers:
            text = (FOLDER / name).read_text()
            for old, new in (changed or {}).items():
                text = text.replace(old, new)
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text)
        files = []
        for number, source in enumerate(sources):
            file = place / f"{number}.cpp"
            file.write_text(source if isinstance(source, str) else source.read_text())
            files.append(str(file))
        out = place / "library.so"
        command = [
            str(compiler(gcc_only=True)),
            "-O1",
            "-shared",
            "-fPIC",
            "-std=c++17",
            "-DSLM_BF16",
            f"-I{place}",
            *files,
        ]
        subprocess.run([*command, "-o", str(out)], check=True)
        return ctypes.CDLL(str(out))

    return build


class StandIn:
    """The sizes of a real library; every other kernel notes its arguments and does nothing."""

    def __init__(self, sizes: ctypes.CDLL) -> None:
        self.calls: list[tuple[str, tuple]] = []
        for name in SIGNATURES:
            setattr(self, name, self._noting(name))
        for name, arguments in SIZES.items():
            function = getattr(sizes, name)
            function.argtypes, function.restype = arguments, ctypes.c_long
            setattr(self, name, function)
        self.dtype, self.values_per_unit = torch.bfloat16, 4 // self.slm_activation_bytes()
        self.head = self

    def _noting(self, name):
        return lambda *arguments: self.calls.append((name, arguments))

    def of(self, name: str) -> list[tuple]:
        found = [arguments for each, arguments in self.calls if each == name]
        assert found, name
        return found


def new_model(**changes) -> LanguageModel:
    values = dict(arch="llama", n_layers=1, d_model=128, n_heads=4, n_kv_heads=2, head_dim=32, ffn_dim=256, seq_len=512)
    return LanguageModel(ModelConfig(**(values | dict(vocab_size=320) | changes))).train()


@needs_compiler
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"LOSS_ROWS = 192": "LOSS_ROWS = 320", "GRADIENT_ROWS = 1024": "GRADIENT_ROWS = 4096"},
        {"NR = 32": "NR = 64", "NORM_PARTS = 64": "NORM_PARTS = 96"},
    ],
)
@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (2, 700)])
def test_every_buffer_follows_the_librarys_sizes(compiled, changed, shape):
    sizes = compiled(FOLDER / "sizes.cpp", changed=changed)
    model = new_model(head_dim=64) if "NR = 32" in changed else new_model()
    kernels = StandIn(sizes)
    fused = Fused(model, kernels)
    ids = torch.zeros(shape, dtype=torch.int64)
    fused.loss_and_gradients(ids, ids)
    fused.losses(ids, ids)
    c, (B, T) = model.config, shape
    for *_, keep, logits, _slopes, losses in kernels.of("slm_cross_entropy"):
        assert len(logits) >= (len(losses) if keep else kernels.slm_cross_entropy_rows())
    for *_, m, n, k, _grad, _add, scratch in kernels.of("slm_weight_gradient"):
        assert m == B * T
        assert scratch.numel() >= kernels.slm_weight_gradient_scratch(m, n, k)
    for *_, partial in kernels.of("slm_rmsnorm_backward"):
        assert partial.numel() >= kernels.slm_rmsnorm_backward_scratch(c.d_model)
    for *_, scratch in kernels.of("slm_attention_forward"):
        assert scratch.numel() >= kernels.slm_attention_scratch(B, T, c.n_kv_heads, c.head_dim)
    for *_, heads, norms in kernels.of("slm_attention_backward"):
        assert heads.numel() >= kernels.slm_attention_backward_scratch(B, T, c.n_heads, c.head_dim)
        assert norms.numel() >= 2 * B * c.n_heads * c.head_dim


@needs_compiler
@pytest.mark.parametrize(
    ("ids", "targets", "starts", "says"),
    [
        ([[1, 320]], [[1, 2]], None, "ids holds 320"),
        ([[1, -1]], [[1, 2]], None, "ids holds -1"),
        ([[1, 2]], [[1, 400]], None, "targets holds 400"),
        ([[1, 2]], [[1, 2, 3]], None, "targets must be int64"),
        ([1, 2], [1, 2], None, "ids must be int64"),
        ([[1, 2]], [[1, 2]], [[0]], "starts must be"),
        ([[1, 2, 3]], [[1, 2, 3]], [[0, 0, 3]], "between 0 and their own position"),
        ([[1, 2, 3]], [[1, 2, 3]], [[0, -1, 0]], "between 0 and their own position"),
        ([[1, 2, 3]], [[1, 2, 3]], [[0, 1, 0]], "must not fall"),
    ],
)
def test_what_would_be_read_beyond_a_tensor_is_refused(compiled, ids, targets, starts, says):
    fused = Fused(new_model(), StandIn(compiled(FOLDER / "sizes.cpp")))
    starts_BT = None if starts is None else torch.tensor(starts, dtype=torch.int32)
    for entry in (fused.loss_and_gradients, fused.losses):
        with pytest.raises(ValueError, match=says):
            entry(torch.tensor(ids), torch.tensor(targets), starts_BT=starts_BT)


@needs_compiler
def test_the_sizes_are_enough_for_what_the_kernels_lay_out(compiled):
    kernels = StandIn(compiled(FOLDER / "sizes.cpp"))
    for m in (1, 2, 1023, 1024, 1025, 5000):
        pairs = -(-min(m, 1024) // 2)  # positions by twos, of a block
        assert kernels.slm_weight_gradient_scratch(m, 96, 64) >= pairs * (96 + 64)
    for T in (1, 32, 33):
        padded = -(-T // 32) * 32
        assert kernels.slm_attention_scratch(2, T, 3, 64) == 2 * 3 * 2 * padded * 64 // 2
        assert kernels.slm_attention_backward_scratch(2, T, 6, 64) == 2 * 6 * 2 * padded * 64


def test_no_block_size_stands_in_python():
    """The numbers that the C++ names are looked up in the library, not repeated."""
    sizes = "".join((FOLDER / name).read_text() for name in ("bf16/sizes.h", "whole.h"))
    named = dict(re.findall(r"constexpr long (\w+) = ([\d *A-Z]+);", sizes))
    assert (named.pop("PAIR"), named.pop("SCORES_APART")) == ("2", "NR")  # Python needs neither
    assert set(named) == {"MR", "NR", "LOSS_ROWS", "GRADIENT_ROWS", "NORM_PARTS", "MAX_HEAD_DIM"}
    numbers = {
        str(math.prod(int(each) for each in text.replace("MR", named["MR"]).split("*"))) for text in named.values()
    }
    numbers -= {named["MR"]}
    modules = ("fused", "packed", "workspace", "operations", "head", "forward", "backward", "gradients")
    for module in (f"{name}.py" for name in modules):
        code = re.sub(
            r'""".*?"""|#[^\n]*|torch\.int32|torch\.float32', "", (FOLDER / module).read_text(), flags=re.DOTALL
        )
        assert not numbers & set(re.findall(r"\b\d+\b", code)), module


def test_every_source_is_built_and_every_function_declared():
    built = {name for variant in VARIANTS.values() for name in (*variant.sources, *variant.headers)} | {*SOURCES}
    assert built == {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.suffix in (".cpp", ".h")}
    for variant in VARIANTS.values():
        text = "".join((FOLDER / name).read_text() for name in (*variant.sources, *variant.headers))
        declared = set(re.findall(r"^(?:void|long|int|double) (slm_\w+)\(", text, re.MULTILINE))
        assert declared - {"slm_integer_gain"} == set(SIGNATURES), variant.name


@needs_compiler
def test_memory_that_is_not_there_is_an_exception(compiled):
    arena = compiled(
        '#include "arena.h"\nextern "C" int works(size_t n) { Arena a; return a.reset(n) && a.reset(64); }'
    )
    arena.works.argtypes = [ctypes.c_size_t]
    assert arena.works(1 << 20) == 1
    assert arena.works(1 << 62) == 0
    full = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    full.__name__ = ALLOCATING[0]
    full.errcheck = native._check_memory
    with pytest.raises(MemoryError, match="slm_attention_forward"):
        native._call(full)
