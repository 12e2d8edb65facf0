"""Tokenizers as GGUF metadata, checked by loading each into llama.cpp and comparing ids."""

import json
import shutil
from pathlib import Path

import gguf
import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.llama.model import Model
from slm.vocabulary.exportable import write_vocabulary
from slm.vocabulary.gguf_vocab import CONTROL, UNUSED, USER_DEFINED, build_vocab
from slm.vocabulary.same_ids import PROBES, token_failures
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.tokenizers import save_gemma_like


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    tiny.tokenizer().save(folder)
    return folder


def differences(directory: Path, tmp_path: Path, vocab_size: int, strings=PROBES, pre=None) -> list[str]:
    """Write a file that holds only the vocabulary and compare llama.cpp's ids with the tokenizer's."""
    vocab = build_vocab(directory, vocab_size, pre)
    path = tmp_path / "vocab.gguf"
    write_vocabulary(path, vocab, name="vocabulary")
    tokenizer = load_tokenizer(directory)
    with Model(path, vocab_only=True) as llama:
        assert llama.n_vocab == vocab_size
        assert llama.add_bos == vocab.special.added["bos"]
        return token_failures(llama, strings, [tokenizer.encode_document(each) for each in strings])


def edited(bpe: Path, folder: Path, change) -> Path:
    """A copy of the BPE directory with its tokenizer changed."""
    shutil.copytree(bpe, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    change(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_trained_bpe(bpe, tmp_path):
    tokenizer = tiny.tokenizer()
    vocab = build_vocab(bpe, tokenizer.vocab_size + 5)
    assert (vocab.model, vocab.pre) == ("gpt2", "gpt-2")
    assert vocab.types[tokenizer.eot_id] == CONTROL
    assert vocab.tokens[-1] == f"[PAD{tokenizer.vocab_size + 4}]".encode()
    assert vocab.types[-5:] == [UNUSED] * 5
    assert vocab.special.ids["bos"] == vocab.special.ids["eos"] == tokenizer.eot_id
    assert vocab.special.added["bos"] is False
    assert differences(bpe, tmp_path, tokenizer.vocab_size + 5, [*PROBES, tiny.text(5_000)]) == []


def test_a_wrong_pre_tokenizer_is_found_out(bpe, tmp_path):
    assert "other ids" in differences(bpe, tmp_path, 400, pre="smollm")[0]


def test_gpt2s_own_vocabulary(shared_data, monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
    from slm.data.config import TokenizerConfig
    from slm.data.tokenizers.make import make_tokenizer

    make_tokenizer(TokenizerConfig(kind="tiktoken", name="gpt2"), lambda: iter([])).save(tmp_path)
    wiki = (shared_data / "wikitext" / "wiki.test.raw").read_text(encoding="utf-8")
    assert build_vocab(tmp_path, 50_257).pre == "gpt-2"
    assert differences(tmp_path, tmp_path, 50_304, [*PROBES, wiki[:300_000]]) == []


@pytest.mark.parametrize(
    ("regex", "pre"),
    [
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+",
            "smaug-bpe",  # Llama 3's split with its merges; "llama-bpe" ignores them where a word is a token
        ),
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+",
            "qwen2",
        ),
    ],
)
def test_other_split_rules(bpe, tmp_path, regex, pre):
    def change(tokenizer):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(regex), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    folder = edited(bpe, tmp_path / "other", change)
    assert build_vocab(folder, 400).pre == pre
    assert differences(folder, tmp_path, 400, [*PROBES, tiny.text(5_000)]) == []


def test_digits_apart(bpe, tmp_path):
    def change(tokenizer):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )

    folder = edited(bpe, tmp_path / "digits", change)
    assert build_vocab(folder, 400).pre == "smollm"
    assert differences(folder, tmp_path, 400, [*PROBES, tiny.text(5_000)]) == []


def test_added_tokens_keep_their_kind(bpe, tmp_path):
    def change(tokenizer):
        tokenizer.add_tokens(["<tool>"])
        tokenizer.add_special_tokens(["<|im_start|>"])

    folder = edited(bpe, tmp_path / "added", change)
    vocab = build_vocab(folder, 400)
    assert vocab.types[vocab.tokens.index(b"<tool>")] == USER_DEFINED
    assert vocab.types[vocab.tokens.index(b"<|im_start|>")] == CONTROL
    assert differences(folder, tmp_path, 400, ["a <tool> b", "<|im_start|>user"]) == []


def test_beginning_of_text_that_the_tokenizer_adds_is_written(bpe, tmp_path):
    from tokenizers.processors import TemplateProcessing

    eot = tiny.tokenizer().eot_id

    def change(tokenizer):
        tokenizer.post_processor = TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", eot)]
        )

    folder = edited(bpe, tmp_path / "bos", change)
    settings = folder / "tokenizer_config.json"
    content = json.loads(settings.read_text())
    del content["add_bos_token"]
    settings.write_text(json.dumps(content))
    assert build_vocab(folder, 400).special.added["bos"] is True
    assert differences(folder, tmp_path, 400) == []


def test_normalizers(bpe, tmp_path):
    def nfc(tokenizer):
        tokenizer.normalizer = normalizers.NFC()

    def lowercase(tokenizer):
        tokenizer.normalizer = normalizers.Lowercase()

    def nothing(tokenizer):
        tokenizer.normalizer = normalizers.Sequence([])

    def several(tokenizer):
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])

    for change in (nfc, several):
        vocab = build_vocab(edited(bpe, tmp_path / change.__name__, change), 400)
        assert vocab.nfc
        assert "NFC" in vocab.warnings[0]
    vocab = build_vocab(edited(bpe, tmp_path / "nothing", nothing), 400)
    assert (vocab.nfc, vocab.warnings) == (False, [])
    with pytest.raises(UserError, match="Lowercase"):
        build_vocab(edited(bpe, tmp_path / "lower", lowercase), 400)


def test_refused(bpe, tmp_path):
    with pytest.raises(UserError, match="belongs to another model"):
        build_vocab(bpe, 100)
    with pytest.raises(UserError, match=r"neither tokenizer.json nor tokenizer.model"):
        build_vocab(tmp_path, 100)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(UserError, match="WordPiece"):
        build_vocab(tmp_path, 100)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        build_vocab(tmp_path, 100)


GEMMA_TEXTS = [
    "a\n\nb\n\n\nc\n\n\n\n\n", "two  three   four    eight        ", "<start_of_turn>user\nhi<end_of_turn>\n",
    "\n    indented\n\n  code", "日本 é 🦙", "1234 56",
]  # fmt: skip


@pytest.mark.parametrize("with_model", [True, False])
def test_gemmas_kind_of_tokenizer(with_model, tmp_path):
    """With tokenizer.model, as published, and with tokenizer.json alone, as transformers saves it."""
    n_pieces = save_gemma_like(tmp_path / "gemma", tiny.text(30_000))
    folder = tmp_path / "gemma"
    if not with_model:
        (folder / "tokenizer.model").unlink()
    vocab = build_vocab(folder, n_pieces, arch="gemma3")
    assert (vocab.model, vocab.add_space_prefix) == ("llama", False)
    assert (vocab.special.ids["bos"], vocab.special.ids["eos"], vocab.special.added["bos"]) == (2, 1, True)
    assert vocab.types[vocab.tokens.index(b"<start_of_turn>")] == CONTROL
    assert vocab.types[vocab.tokens.index(b"    ")] == vocab.types[vocab.tokens.index(b"\n\n")] == USER_DEFINED
    # The mark of an image has an id beyond the rows of a text model.
    assert "no row for <image_soft_token>" in vocab.warnings[-1]
    assert differences(folder, tmp_path, n_pieces, [*PROBES, *GEMMA_TEXTS, tiny.text(5_000)]) == []


SENTENCEPIECE = {
    "user_defined_symbols": ["<|endoftext|>"],
    "byte_fallback": True,
    "character_coverage": 0.9995,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "minloglevel": 3,
}
PLAIN = ["Hello", "the fox saw the river", " two  spaces ", "naïve café", "日本", "a\nb", "12345 67"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece(kind, tmp_path):
    import sentencepiece

    folder = tmp_path / kind
    folder.mkdir()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(tiny.text(30_000), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=320 if kind == "bpe" else 70,
        model_type=kind,
        **SENTENCEPIECE | {"byte_fallback": kind == "bpe"},
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    vocab = build_vocab(folder, 384)
    assert vocab.model == {"bpe": "llama", "unigram": "t5"}[kind]
    path = tmp_path / "vocab.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    vocab.write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    strings = PLAIN if kind == "bpe" else ["the fox saw the river", " two  foxes ", "café 12345"]
    with Model(path, vocab_only=True) as llama:
        assert token_failures(llama, strings, [processor.encode(each) for each in strings]) == []


@pytest.mark.parametrize("bare", [False, True])
def test_unigram_with_byte_fallback_is_refused(bare, tmp_path):
    """llama.cpp's Unigram tokenizer knows none: what the vocabulary lacks would become <unk> there."""
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text(tiny.text(30_000), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=320,
        model_type="unigram",
        **SENTENCEPIECE,
    )
    load_tokenizer(tmp_path / "tokenizer.model").save(tmp_path)
    if bare:
        (tmp_path / "tokenizer.model").unlink()
    with pytest.raises(UserError, match=r"Unigram tokenizer has none: .*train with tokenizer=sentencepiece"):
        build_vocab(tmp_path, 384)


def test_special_tokens_that_gguf_has_no_key_for_or_that_are_none(bpe, tmp_path):
    folder = edited(bpe, tmp_path / "cls", lambda tokenizer: None)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"cls_token": "<|endoftext|>"}))
    (folder / "config.json").write_text(json.dumps({"pad_token_id": -1, "cls_token_id": 3}))
    vocab = build_vocab(folder, 400)
    assert not {"cls", "pad"} & vocab.special.ids.keys()
    assert differences(folder, tmp_path, 400) == []
    settings.write_text("{,")
    with pytest.raises(UserError, match=r"tokenizer.* cannot be read|not valid JSON"):
        build_vocab(folder, 400)


def test_the_template_of_a_file_of_its_own_wins(bpe, tmp_path):
    folder = edited(bpe, tmp_path / "jinja", lambda tokenizer: None)
    settings = folder / "tokenizer_config.json"
    for given in ("old", None):
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": given}))
        (folder / "chat_template.jinja").write_text("new {{ messages[0].content }}")
        assert build_vocab(folder, 400).special.chat_template == "new {{ messages[0].content }}"


def test_tokens_that_are_not_marked_as_special_are_named(bpe, tmp_path):
    def add(tokenizer):
        tokenizer.add_tokens(["<|im_start|>"])

    vocab = build_vocab(edited(bpe, tmp_path / "unmarked", add), 400)
    assert vocab.unmarked == ("<|im_start|>",)
    assert vocab.types[vocab.tokens.index(b"<|im_start|>")] == CONTROL
