"""Odd text, and what transformers makes of a tokenizer, for the tests of tokenizers."""

import json

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from slm.data.tales.story import story

# Everything that pre-tokenizers disagree about, and arbitrary Unicode besides.
PIECES = [
    *(
        "the cat",
        " sat",
        "I'm",
        "we'LL",
        "don't",
        "  ",
        "    ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\x00",
        "\x0b",
        "\x1f",
        "\x7f",
    ),
    *(
        "\x85",
        "\xa0",
        "\u2009",
        "\u200b",
        "\u200d",
        "\u2028",
        "\u3000",
        "\ufeff",
        "\u180e",
        "é",
        "e\u0301",
        "ﬁ",
        "ß",
        "İ",
    ),
    *(
        "0",
        "7",
        "12",
        "345",
        "6789",
        "3.14",
        "1,000",
        "²",
        "½",
        "٣٤",
        "Ⅷ",
        "你好",
        "日本語",
        "한국어",
        "हिन्दी",
        "ไทย",
        "العربية",
    ),
    *(
        "🦙",
        "👩‍👩‍👧",
        "🇫🇷",
        "👍🏽",
        "_",
        "__init__",
        "#!",
        "...",
        "———",
        "“",
        "”",
        "<|endoftext|>",
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
    ),
    *("▁", "\ufffd", "\U0010ffff", "𝔘", "a\u0308\u0304", "Ω", "ǅ", "'", "''", "'s", "’s"),
]


any_text = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.text("ab 1\n", max_size=8))).map("".join)


many = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def auto(directory):
    """What transformers makes of a checkpoint directory, config.json included (it looks at the model type)."""
    from transformers import AutoTokenizer

    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return AutoTokenizer.from_pretrained(directory)


def ids_of(hf, text):
    # Like ours, and unlike transformers' default, text that spells a special token is text.
    return hf.encode(text, add_special_tokens=False, split_special_tokens=True)


def stories(count=1500):
    return (story(0, index) for index in range(count))


GEMMA_SYMBOLS = ("<start_of_turn>", "<end_of_turn>", "\n\n", "\n\n\n", *("▁" * n for n in range(2, 9)))


def save_gemma_like(folder, text, vocab_size=400):
    """A tokenizer built as Gemma 3's: SentencePiece BPE with bytes, no space before the text, <bos> added.

    ``tokenizer.model`` as sentencepiece trains it, and ``tokenizer.json`` as transformers' class writes it, which adds
    one special token beyond the pieces. Returns the number of pieces.
    """
    import sentencepiece
    from tokenizers import AddedToken
    from transformers import GemmaTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.txt"
    corpus.write_text(text, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), vocab_size=vocab_size, model_type="bpe",
        byte_fallback=True, split_digits=True, add_dummy_prefix=False, remove_extra_whitespaces=False,
        normalization_rule_name="identity", pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>",
        eos_piece="<eos>", bos_piece="<bos>", user_defined_symbols=list(GEMMA_SYMBOLS), minloglevel=3,
    )  # fmt: skip
    corpus.unlink()
    (folder / "tokenizer.vocab").unlink()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    vocab = {pieces.id_to_piece(id): id for id in range(pieces.get_piece_size())}
    whole = [each for each in vocab if vocab[each] > 3 and not pieces.is_byte(vocab[each])]
    merges = [(each[:cut], each[cut:]) for each in whole for cut in range(1, len(each))]
    merges = [pair for pair in merges if all(half in vocab for half in pair)]
    tokenizer = GemmaTokenizer(vocab=vocab, merges=merges, mask_token="<pad>", add_bos_token=True)
    tokenizer.add_tokens(
        [AddedToken(each, normalized=False, special=each.startswith("<")) for each in GEMMA_SYMBOLS],
        special_tokens=False,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    # As transformers 4 wrote it, and published files have it: llama.cpp's converter knows added tokens from here.
    settings["added_tokens_decoder"] = {str(each.pop("id")): each for each in added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocab)
