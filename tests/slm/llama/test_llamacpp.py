import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from data.errors import UserError
from slm.llama.context import Batch, Context
from slm.llama.errors import KvCacheFull, LlamaError
from slm.llama.gguf_check import GGML_TYPES, read_header
from slm.llama.model import Model
from slm.llama.quantize import quant_types, quantize
from slm.llama.sampler import Sampler
from slm.llama.utf8 import unfinished_character
from tests.helpers import tiny_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path):
    with Model(path) as model:
        yield model


@pytest.fixture
def context(model):
    with Context(model, n_ctx=256, n_batch=64, n_seq_max=3, n_threads=1) as context:
        yield context


def test_model_facts(model):
    assert model.n_ctx_train == 512
    assert model.n_embd == 256
    assert model.bos == model.eos == model.n_vocab - 1
    assert not model.add_bos
    assert model.chat_template() is None
    assert model.metadata()["general.architecture"] == "llama"
    assert model.is_eog(model.eos)
    assert not model.is_eog(0)


@pytest.mark.parametrize("text", ["", "hello the bird", "naïve 東京 🙂\x00\t  x", "a" * 5000, "\ud800!"])
def test_tokenize_round_trip(model, text):
    ids = model.tokenize(text, add_special=False, parse_special=False)
    back = b"".join(model.token_to_piece(i) for i in ids).decode()
    assert back == text.replace("\ud800", "\ufffd")


def test_special_tokens_are_text_unless_parsed(model):
    text = "<|endoftext|>"
    assert model.tokenize(text, add_special=False, parse_special=True) == [model.eos]
    ids = model.tokenize(text, add_special=False, parse_special=False)
    assert model.eos not in ids
    assert len(ids) > 1
    assert model.token_to_piece(model.eos) == b""
    assert model.token_to_piece(model.eos, special=True) == text.encode()


def test_token_out_of_range_is_an_error_not_an_abort(model, context):
    for bad in (-1, model.n_vocab, 2**31 - 1):
        with pytest.raises(LlamaError, match="vocabulary"):
            model.token_to_piece(bad)
        with pytest.raises(LlamaError, match="vocabulary"):
            model.is_eog(bad)
    batch = Batch(4)
    batch.add(model.n_vocab, 0, 0, True)
    with pytest.raises(LlamaError, match="vocabulary"):
        context.decode(batch)


def test_decode_in_chunks_equals_decode_at_once(model, context):
    ids = model.tokenize("once upon a time the bird said hello", add_special=False, parse_special=False)
    batch = Batch(64, 3)
    batch.extend(ids, 0, 0, True, every=True)
    context.decode(batch)
    at_once = context.logits_all(len(ids))
    assert at_once.shape == (len(ids), model.n_vocab)
    assert at_once.dtype == np.float32
    for pos, token in enumerate(ids):
        batch.clear()
        i = batch.add(token, pos, 1, True)
        context.decode(batch)
        np.testing.assert_allclose(context.logits(i), at_once[pos], atol=1e-2)
    assert context.seq_pos_max(1) == len(ids) - 1


def test_sequences_do_not_see_each_other_and_seq_cp_shares(model, context):
    ids = model.tokenize("the little bird", add_special=False, parse_special=False)
    other = model.tokenize("red boat", add_special=False, parse_special=False)
    batch = Batch(64, 3)
    alone = batch.extend(ids, 0, 0, True)
    context.decode(batch)
    expected = context.logits(alone)
    context.clear()
    batch.clear()
    mixed = batch.extend(ids, 0, 0, True)
    batch.extend(other, 0, 1, True)
    context.decode(batch)
    np.testing.assert_allclose(context.logits(mixed), expected, atol=1e-2)

    context.seq_cp(0, 2, 0, len(ids) - 1)
    batch.clear()
    i = batch.add(ids[-1], len(ids) - 1, 2, True)
    context.decode(batch)
    np.testing.assert_allclose(context.logits(i), expected, atol=1e-2)
    assert context.seq_rm(2, 0, -1)
    assert context.seq_pos_max(2) == -1


def test_full_cache_is_recoverable(model, context):
    batch = Batch(64, 3)
    for chunk in range(4):
        batch.clear()
        batch.extend([5] * 64, 64 * chunk, 0, True)
        context.decode(batch)
    batch.clear()
    batch.add(5, 0, 1, True)
    with pytest.raises(KvCacheFull):
        context.decode(batch)
    context.seq_rm(0)
    context.decode(batch)


def test_batch_over_n_batch_and_bad_positions(model, context):
    batch = Batch(128)
    batch.extend([1] * 65, 0, 0, True)
    with pytest.raises(LlamaError, match="65 tokens"):
        context.decode(batch)
    batch.clear()
    batch.add(1, 40, 0, True)
    batch.add(1, 3, 0, True)
    with pytest.raises(LlamaError, match="llama_decode returned -1"):
        context.decode(batch)
    with pytest.raises(AssertionError):
        context.seq_rm(-1)


def _generate(model, context, sampler, n=12):
    context.clear()
    ids = model.tokenize("once upon a time", add_special=False, parse_special=False)
    batch = Batch(64)
    i = batch.extend(ids, 0, 0, True)
    out = []
    for step in range(n):
        context.decode(batch)
        out.append(sampler.sample(context, i))
        batch.clear()
        i = batch.add(out[-1], len(ids) + step, 0, True)
    sampler.close()
    return out


def test_greedy_is_argmax_and_seeds_repeat(model, context):
    greedy = _generate(model, context, Sampler(model).greedy())
    top1 = _generate(model, context, Sampler(model).top_k(1).dist(3))
    assert greedy == top1

    def warm(seed):
        return _generate(model, context, Sampler(model).top_k(50).temperature(1.5).dist(seed))

    assert warm(1) == warm(1)
    assert warm(1) != warm(2)


def test_logit_bias_forces_and_bans(model, context):
    greedy = _generate(model, context, Sampler(model).greedy(), 1)[0]
    assert _generate(model, context, Sampler(model).logit_bias({65: 1e6}).greedy(), 4) == [65] * 4
    banned = _generate(model, context, Sampler(model).logit_bias({greedy: -float("inf")}).greedy(), 1)
    assert banned != [greedy]


def test_penalties_stop_a_repetition(model, context):
    chain = Sampler(model).logit_bias({65: 20.0, 66: 18.0})
    chain.penalties(last_n=64, repeat=1.0, frequency=0.0, presence=50.0).greedy()
    assert _generate(model, context, chain, 2) == [65, 66]


def test_grammar_constrains_and_bad_ones_are_refused(model, context):
    chain = Sampler(model).grammar('root ::= "yes" | "no"').greedy()
    out = _generate(model, context, chain, 1)
    assert model.token_to_piece(out[0])[:1] in (b"y", b"n")
    for bad in ("root ::= (", "nonsense", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, ""):
        chain = Sampler(model)
        with pytest.raises(LlamaError):
            chain.grammar(bad)
        chain.close()


def test_a_grammar_applies_first_whatever_the_order_and_ends_the_text(model, context):
    for chain in (Sampler(model).grammar('root ::= "xy" "z"?'), Sampler(model)):
        chain.logit_bias({65: 50.0}).top_k(3).temperature(1.0)
        if chain._grammar is None:
            chain.grammar('root ::= "xy" "z"?')
        out = _generate(model, context, chain.dist(1), 3)
        text = b"".join(model.token_to_piece(token) for token in out)
        assert text in (b"xyz", b"xy")
        assert model.is_eog(out[2]) or text == b"xyz"


def test_what_a_grammar_must_not_pick(model):
    with tempfile.TemporaryDirectory() as folder:
        chatty = tiny_gguf.write(Path(folder) / "chatty.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE)
        with Model(chatty) as chat:
            names = {chat.spellings[token] for token in chat.unspeakable}
    assert names == {b"\0", b"<|im_start|>"}  # the other two end a text
    assert [model.spellings[token] for token in model.unspeakable] == [b"\0"]
    # Byte tokens: those that may begin a character, and no others.
    begins = {token for token in range(256) if model.begins_text[token]}
    assert begins == {byte for byte in range(256) if byte < 0x80 or 0xC2 <= byte <= 0xF4}


def test_utf8_rest_goes_on_exactly_where_text_can():
    assert unfinished_character(b"", "é🙂".encode()) == b""
    assert unfinished_character(b"\xf0\x9f", b"\x99") == b"\xf0\x9f\x99"
    for pending, piece in (
        (b"", b"\x80"), (b"", b"\xc0"), (b"\xc3", b"a"), (b"\xe0", b"\x80"), (b"\xed", b"\xa0"), (b"\xf4", b"\x90"),
        (b"", b"\xff"),
    ):  # fmt: skip
        assert unfinished_character(pending, piece) is None
    # Whatever is left over can be completed.
    for first in range(0xC2, 0xF5):
        todo = [bytes([first])]
        while todo:
            rest = todo.pop()
            following = [unfinished_character(rest, bytes([byte])) for byte in range(0x80, 0xC0)]
            assert any(each is not None for each in following), rest
            todo += [each for each in following if each]


def test_embeddings_are_there_when_asked_for(model):
    ids = model.tokenize("the old fox", add_special=False, parse_special=False)
    with Context(model, n_ctx=256, n_threads=1, embeddings=True) as context:
        batch = Batch(64)
        batch.extend(ids, 0, 0, True, every=True)
        context.decode(batch)
        rows = context.embeddings_all(len(ids))
    assert rows.shape == (len(ids), model.n_embd)
    # The output norm's weight is 1 here: every row has a mean square of 1.
    np.testing.assert_allclose(np.square(rows).mean(axis=1), 1, rtol=1e-3)


@pytest.mark.parametrize("value", [float("nan"), -1.0, 2.0, float("inf")])
def test_sampler_numbers_are_checked(model, value):
    chain = Sampler(model)
    for link in (chain.top_p, chain.min_p, chain.typical):
        with pytest.raises(LlamaError):
            link(value)
    with pytest.raises(LlamaError):
        chain.temperature(float("nan"))
    with pytest.raises(LlamaError):
        chain.logit_bias({model.n_vocab: 1.0})
    chain.close()


def test_type_table_is_ggufs_own():
    constants = pytest.importorskip("gguf.constants")
    for kind, (block, size) in constants.GGML_QUANT_SIZES.items():
        name = kind.name.lower()
        if name != "q8_1":  # never stored in a file; gguf-py's figure is an old layout's
            assert GGML_TYPES[name] == (kind.value, block, size)


def test_header_of_the_fixture(path, model):
    header = read_header(path)
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens[]"] == model.n_vocab
    assert sum(t.n_bytes for t in header.tensors) == model.size_bytes
    assert header.tensors[0].name == "token_embd.weight"
    assert header.tensors[0].shape == (256, model.n_vocab)


def test_quant_types_are_the_tools_own():
    types = quant_types()
    tool = """q1_0 q2_0 q4_0 q4_1 mxfp4_moe q5_0 q5_1 iq2_xxs iq2_xs iq2_s iq2_m iq1_s iq1_m tq1_0 tq2_0 q2_k
    q2_k_s iq3_xxs iq3_s iq3_m q3_k iq3_xs q3_k_s q3_k_m q3_k_l iq4_nl iq4_xs q4_k q4_k_s q4_k_m q5_k q5_k_s
    q5_k_m q6_k q8_0 f16 bf16 f32"""
    assert set(types) == set(tool.split())
    assert types["q4_k"] == types["q4_k_m"] == 15


def test_quantize_with_imatrix_and_overrides(path, tmp_path):
    matrix = {f"blk.{i}.ffn_down.weight": np.full(512, 2.0) for i in range(2)}
    log = quantize(
        path, tmp_path / "q.gguf", "Q4_K_M", imatrix=matrix, tensor_types={r"blk\.0\.attn_q": "q8_0"}, n_threads=1
    )
    assert any("2 entries" in line for line in log)
    types = {t.name: t.type for t in read_header(tmp_path / "q.gguf").tensors}
    assert types["blk.0.attn_q.weight"] == "q8_0"
    assert types["blk.1.attn_q.weight"] == "q4_k"
    assert types["output.weight"] == "q6_k"
    with Model(tmp_path / "q.gguf") as small, Model(path) as big:
        assert small.size_bytes < big.size_bytes / 5


def test_quantize_refuses(path, tmp_path):
    with pytest.raises(UserError, match="q4_k_m"):
        quantize(path, tmp_path / "x.gguf", "q4_k_n")
    with pytest.raises(UserError, match="another output path"):
        quantize(path, path, "q8_0")
    with pytest.raises(LlamaError, match="importance matrix"):
        quantize(path, tmp_path / "x.gguf", "iq1_s", n_threads=1)
    assert not (tmp_path / "x.gguf").exists()
    with pytest.raises(LlamaError, match=r"ffn_down.*not finite"):
        quantize(path, tmp_path / "x.gguf", "q4_0", imatrix={"blk.0.ffn_down.weight": np.full(512, np.nan)})


def test_missing_and_damaged_files(path, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        Model(tmp_path / "none.gguf")
    with pytest.raises(UserError, match="directory"):
        Model(tmp_path)
    raw = path.read_bytes()
    bad = tmp_path / "bad.gguf"

    def refused(content, match):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=match):
            Model(bad)

    refused(b"", "0 bytes")
    refused(b"PK\x03\x04" + raw[4:], "starts with")
    refused(raw[: len(raw) // 2], "ends at byte")
    refused(raw[:300], "left|past the end")
    refused(raw[:8] + struct.pack("<Q", 2**62) + raw[16:], "left")
    refused(raw[:16] + struct.pack("<Q", 2**63) + raw[24:], "left")
    # A string array that claims 2^63 elements.
    key = b"tokenizer.ggml.tokens"
    at = raw.index(key) + len(key) + 8
    refused(raw[:at] + struct.pack("<Q", 2**63) + raw[at + 8 :], "tokens")
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4
    refused(raw[:at] + struct.pack("<q", 2**40) + raw[at + 8 :], "token_embd")
    refused(raw[:at] + struct.pack("<q", -256) + raw[at + 8 :], "shape")


def test_llama_cpps_own_reason_is_told(path, tmp_path):
    raw = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    (tmp_path / "renamed.gguf").write_bytes(raw)
    with pytest.raises(LlamaError, match=r"blk\.1\.ffn_up"):
        Model(tmp_path / "renamed.gguf")


def test_importing_is_light_and_quiet(path):
    code = (
        "import sys; from slm.llama.model import Model; m = Model(sys.argv[1]); m.close(); "
        "print([n for n in ('torch', 'transformers', 'datasets') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr == ""
