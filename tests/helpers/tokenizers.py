"""Odd text, and what transformers makes of a tokenizer, for the tests of tokenizers."""

import json

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from data.tales.story import story

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
