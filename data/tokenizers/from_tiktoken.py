"""tiktoken's encodings as Hugging Face tokenizers with the same ids."""

import json
import re
from typing import Any

from slm.data.errors import UnreachableError, UserError, nearest
from slm.data.tokenizers.tokenizer import EOT, byte_alphabet, special_token, tokenizer_config

HOST = "openaipublic.blob.core.windows.net"
TIMEOUT = 15  # seconds to reach the host; tiktoken itself would wait for minutes
POSSESSIVE = re.compile(r"(?<!\\)([?*+]|\{\d+(?:,\d*)?\})\+")
GPT2_PATTERN = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}"


def convert(name: str) -> dict[str, bytes]:
    """Tokenizer files of the encoding ``name``.

    Raises UserError for an unknown name, UnreachableError if its vocabulary is neither cached nor can be downloaded.
    """
    return convert_encoding(_load(name))


def cached(name: str) -> Any:
    """The ``tiktoken.Encoding`` of this name; None where its vocabulary is not in tiktoken's cache."""
    try:
        return _load(name, download=False)
    except UnreachableError:
        return None


def convert_encoding(encoding: Any) -> dict[str, bytes]:
    """Tokenizer files of a ``tiktoken.Encoding`` (its ranks, pattern and special tokens)."""
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    special: dict[str, int] = dict(encoding._special_tokens)
    if EOT not in special:
        special[EOT] = max([*ranks.values(), *special.values()]) + 1
    alphabet = byte_alphabet()

    def spell(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    vocab = {spell(token): rank for token, rank in ranks.items()}
    # Ids that the encoding leaves out still have a row in the embedding, so they get a name.
    used = set(ranks.values()) | set(special.values())
    special |= {f"<|unused_{id}|>": id for id in range(max(used) + 1) if id not in used}
    special = dict(sorted(special.items(), key=lambda item: item[1]))
    vocab |= special
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    is_gpt2 = encoding._pat_str.startswith(GPT2_PATTERN)
    pattern = None if is_gpt2 else plain_pattern(encoding._pat_str)
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special_token(id, token) for token, id in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"use_regex": True}
        if pattern is None
        else {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                byte_level | {"use_regex": False},
            ],
        },
        "post_processor": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # tiktoken looks up the whole word before it merges. With GPT-2's vocabulary this makes no difference.
            "ignore_merges": pattern is not None,
            "vocab": dict(sorted(vocab.items(), key=lambda item: item[1])),
            "merges": [[spell(left), spell(right)] for left, right in merges(ranks)],
        },
    }
    return {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode(),
        "tokenizer_config.json": tokenizer_config(eot=EOT),
    }


def merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merge rules that ``ranks`` imply, in order: a token's pair is what merging by lower ranks leaves of it."""
    found = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            found.append((parts[0], parts[1]))
    return found


def plain_pattern(pattern: str) -> str:
    """A tiktoken pattern in the regular expressions of ``tokenizers`` (Oniguruma).

    Possessive quantifiers are written greedy, which matches the same here because no alternative of these
    patterns can gain from giving characters back; after ``{1,3}`` Oniguruma would read ``+`` as "once or more".
    ``$`` means the end of a line there, so the end of the text is written ``\\z``.
    """
    return POSSESSIVE.sub(r"\1", pattern).replace("$", "\\z")


def _load(name: str, *, download: bool = True) -> Any:
    import requests
    import tiktoken
    import tiktoken.load
    import tiktoken.registry

    try:
        known = tiktoken.list_encoding_names()
    except ValueError:
        known = ["gpt2"]
    if name not in known:
        hint = nearest(name, known) or f"it is one of: {', '.join(known)}"
        raise UserError(f"tiktoken has no encoding {name!r}; {hint}")
    usual = tiktoken.load.read_file
    tiktoken.load.read_file = _fetch if download else _none
    try:
        return tiktoken.get_encoding(name)
    except (requests.RequestException, OSError, ValueError) as error:  # ValueError: what came is something else
        raise UnreachableError(
            f"the vocabulary of {name!r} is not cached and did not come from {HOST} ({type(error).__name__}): set "
            "TIKTOKEN_CACHE_DIR to a folder that holds it, or run with tokenizer=bpe"
        ) from error
    finally:
        tiktoken.load.read_file = usual


def _none(blobpath: str) -> bytes:
    raise OSError(f"{blobpath} is not in the cache")


def _fetch(blobpath: str) -> bytes:
    """Download a vocabulary as tiktoken does, but with a time limit."""
    import requests

    response = requests.get(blobpath, timeout=TIMEOUT)
    response.raise_for_status()
    return response.content
