import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama.errors import LlamaError
from slm.llama.gguf_check import read_header
from slm.llama.model import Model
from slm.llama.quantize import quant_types, quantize


def test_quant_types_are_the_tools_own():
    types = quant_types()
    tool = """q1_0 q2_0 q4_0 q4_1 mxfp4_moe q5_0 q5_1 iq2_xxs iq2_xs iq2_s iq2_m iq1_s iq1_m tq1_0 tq2_0 q2_k
    q2_k_s iq3_xxs iq3_s iq3_m q3_k iq3_xs q3_k_s q3_k_m q3_k_l iq4_nl iq4_xs q4_k q4_k_s q4_k_m q5_k q5_k_s
    q5_k_m q6_k q8_0 f16 bf16 f32"""
    assert set(types) == set(tool.split())
    assert types["q4_k"] == types["q4_k_m"] == 15


def test_quantize_with_imatrix_and_overrides(tiny_path, tmp_path):
    matrix = {f"blk.{i}.ffn_down.weight": np.full(512, 2.0) for i in range(2)}
    log = quantize(
        tiny_path, tmp_path / "q.gguf", "Q4_K_M", imatrix=matrix, tensor_types={r"blk\.0\.attn_q": "q8_0"}, n_threads=1
    )
    assert any("2 entries" in line for line in log)
    types = {t.name: t.type for t in read_header(tmp_path / "q.gguf").tensors}
    assert types["blk.0.attn_q.weight"] == "q8_0"
    assert types["blk.1.attn_q.weight"] == "q4_k"
    assert types["output.weight"] == "q6_k"
    with Model(tmp_path / "q.gguf") as small, Model(tiny_path) as big:
        assert small.size_bytes < big.size_bytes / 5


def test_quantize_refuses(tiny_path, tmp_path):
    with pytest.raises(UserError, match="q4_k_m"):
        quantize(tiny_path, tmp_path / "x.gguf", "q4_k_n")
    with pytest.raises(UserError, match="another output path"):
        quantize(tiny_path, tiny_path, "q8_0")
    with pytest.raises(LlamaError, match="importance matrix"):
        quantize(tiny_path, tmp_path / "x.gguf", "iq1_s", n_threads=1)
    assert not (tmp_path / "x.gguf").exists()
    with pytest.raises(LlamaError, match=r"ffn_down.*not finite"):
        quantize(tiny_path, tmp_path / "x.gguf", "q4_0", imatrix={"blk.0.ffn_down.weight": np.full(512, np.nan)})
