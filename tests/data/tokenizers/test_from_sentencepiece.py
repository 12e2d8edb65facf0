"""SentencePiece models: the same ids as the library, through our files and through transformers."""

import io
import json

import pytest
import sentencepiece
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slm.data.errors import UserError
from slm.data.tales.story import story
from slm.data.tokenizers import from_sentencepiece as ours
from slm.data.tokenizers.make import load_tokenizer
from tests.helpers.tokenizers import auto

PIECES = [
    *(
        "the cat",
        " sat",
        "I'm",
        "don't",
        "  ",
        "    ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\x00",
        "\x1f",
        "\x7f",
        "\xa0",
        "\u200b",
    ),
    *("é", "e\u0301", "ß", "0", "7", "12", "3456", "3.14", "你好", "日本語", "한국어", "हिन्दी", "🦙", "👩‍👩‍👧", "👍🏽"),
    *("<s>", "</s>", "<unk>", "<0x41>", "▁", "...", "\U0010ffff", "once upon a time", "Lily"),
]
any_text = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.text("ab 1\n", max_size=8))).map("".join)
many = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def train(model_type, **options):
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for i in range(400) for line in story(0, i).split("\n") if line),
        model_writer=writer,
        model_type=model_type,
        vocab_size=800,
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return writer.getvalue()


# As Llama's: the text as it is, a space put before it.
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.fixture(scope="session", params=["bpe", "unigram"])
def plain(request, tmp_path_factory):
    content = train(request.param, **PLAIN)
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "tokenizer.model").write_bytes(content)
    tokenizer = load_tokenizer(folder / "tokenizer.model")
    tokenizer.save(folder / "saved")
    (folder / "saved" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(folder / "saved")
    return sentencepiece.SentencePieceProcessor(model_proto=content), tokenizer, hf, folder


@many
@given(text=any_text)
def test_transformers_gives_the_same_ids(plain, text):
    _, tokenizer, hf, _ = plain
    ids = tokenizer.encode(text)
    assert ids == hf.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(ids) == hf.decode(ids, skip_special_tokens=True)


@many
@given(text=any_text)
def test_the_library_gives_the_same_ids(plain, text):
    processor, tokenizer, _, _ = plain
    # A Unigram tokenizer.json cannot tell such text from the piece: see convert().
    assume(tokenizer.kind != "Unigram" or not any(piece in text for piece in ("<s>", "</s>", "<unk>", "<0x41>")))
    ids = tokenizer.encode(text)
    assert ids == processor.encode(text)
    if "▁" not in text:  # it stands for a space, and comes back as one
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.token_bytes(i) for i in ids) == ((" " + text) if text else "").encode()


def test_the_model_goes_along(plain):
    _, tokenizer, hf, folder = plain
    assert (folder / "saved" / "tokenizer.model").read_bytes() == (folder / "tokenizer.model").read_bytes()
    assert (tokenizer.eot_id, hf.eos_token_id, hf.bos_token_id) == (2, 2, 1)
    assert len(hf) == tokenizer.vocab_size == 800
    assert load_tokenizer(folder / "saved").encode("Once upon") == tokenizer.encode("Once upon")
    bare = folder / "bare"
    bare.mkdir(exist_ok=True)
    (bare / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    assert load_tokenizer(bare).encode("Once upon") == tokenizer.encode("Once upon")
    assert hf("hi")["input_ids"] == tokenizer.encode("hi")  # no BOS is added


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("add_dummy_prefix", [True, False])
def test_sentencepiece_own_defaults(model_type, add_dummy_prefix, tmp_path):
    content = train(model_type, add_dummy_prefix=add_dummy_prefix)  # NFKC, extra spaces removed
    (tmp_path / "t.model").write_bytes(content)
    tokenizer = load_tokenizer(tmp_path / "t.model")
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    texts = [
        *(story(9, i) for i in range(20)),
        "  two   spaces  ",
        "ﬁ ½ Ａ",
        "tab\there",
        "a\nb",
        "",
        " ",
        "🦙 é 你好",
    ]
    for text in texts:
        assert tokenizer.encode(text) == processor.encode(text), text


def test_user_defined_symbols(tmp_path):
    content = train("bpe", user_defined_symbols=["<sep>", ""], **PLAIN)
    (tmp_path / "t.model").write_bytes(content)
    tokenizer = load_tokenizer(tmp_path / "t.model")
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    for text in ["a cat<sep>the dog", "<sep>", "xy  z"]:
        assert tokenizer.encode(text) == processor.encode(text), text
    assert tokenizer.token_bytes(processor.piece_to_id("<sep>")) == b"<sep>"


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x0a\xff\xff\xff\xff", b"\x00" * 50, bytes(range(256))])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "t.model").write_bytes(content)
    with pytest.raises(UserError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "t.model")


def test_tiktokens_list_of_tokens_is_named(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\r\nIg== 1\r\n")
    with pytest.raises(UserError, match="is a list of tokens of tiktoken, which does not say how text is split"):
        load_tokenizer(tmp_path)


def test_a_model_without_an_end_needs_one_named(tmp_path):
    content = train("bpe", eos_id=-1, control_symbols=["<stop>"], **PLAIN)
    assert ours.parse(content, "t").eos_id == -1
    (tmp_path / "t.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.eot_token"):
        load_tokenizer(tmp_path / "t.model")
    tokenizer = load_tokenizer(tmp_path / "t.model", eot_token="<stop>")
    assert tokenizer.decode([tokenizer.eot_id]) == ""


def test_gemmas_kind_of_tokenizer(tmp_path):
    """Runs of spaces and line breaks are added tokens, spaces have their own letter, nothing is put before."""
    from tests.helpers.tokenizers import auto, ids_of, save_gemma_like, stories

    save_gemma_like(tmp_path, "\n".join(stories(100)))
    tokenizer, hf = load_tokenizer(tmp_path), auto(tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert (tokenizer.eot_token, tokenizer.eot_id) == ("<eos>", 1)
    for text in ("Once upon a time", " a  b   c    d       e", "x\n\ny\n\n\n\n\nz", "日本 é 🦙", "1234 56", "a ", ""):
        ids = tokenizer.encode(text)
        assert ids == ids_of(hf, text) == pieces.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.token_bytes(id) for id in ids) == text.encode()


@pytest.mark.parametrize(("said", "begins"), [({}, (1,)), ({"add_bos_token": False}, ())], ids=["", "told not to"])
def test_a_models_directory_with_tokenizer_model_alone_keeps_its_beginning_and_its_template(tmp_path, said, begins):
    """As transformers and llama.cpp have it: <s> before each text, unless tokenizer_config.json says otherwise."""
    source, saved = tmp_path / "model", tmp_path / "saved"
    source.mkdir()
    (source / "corpus.txt").write_text("the cat sat on the mat\n" * 200)
    sentencepiece.SentencePieceTrainer.train(
        input=str(source / "corpus.txt"), model_prefix=str(source / "tokenizer"), vocab_size=290, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, remove_extra_whitespaces=False, minloglevel=3,
    )  # fmt: skip
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ bos_token }}", **said}))
    tokenizer = load_tokenizer(source)
    assert tokenizer.begins == begins
    assert tokenizer.settings["chat_template"] == "{{ bos_token }}"
    tokenizer.save(saved)
    assert auto(saved)("the cat")["input_ids"] == tokenizer.encode_document("the cat")
    assert load_tokenizer(source / "tokenizer.model").begins == ()  # the vocabulary of a new model
