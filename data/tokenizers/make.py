"""From a configuration or a path to a tokenizer: every kind is first converted to the same files."""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from slm.data.config import TokenizerConfig
from slm.data.errors import UnreachableError, UserError, say_once
from slm.data.tokenizers.tokenizer import EOT, Tokenizer, token_first, tokenizer_config

# Files of a model directory next to tokenizer.json. They are kept and saved unchanged.
COMPANIONS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)

_DROPOUT = re.compile(rb'"dropout"\s*:\s*(0?\.[0-9]+(?:[eE][-+]?[0-9]+)?)')
"""BPE dropout (Provilkov et al. 2020, arXiv 1910.13267), which ``tokenizers`` applies outside training, too. An
integer behind the word is its id in a vocabulary."""


def load_tokenizer(path: str | Path, *, eot_token: str = "") -> Tokenizer:
    """The tokenizer in a Hugging Face directory, a ``tokenizer.json``, or a SentencePiece ``.model``."""
    path = Path(path)
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            names = ["tokenizer.json", *COMPANIONS]
            files = {name: _read(path / name) for name in names if (path / name).is_file()}
            return _with_config(files, name=path.name, eot_token=eot_token)
        if (path / "tokenizer.model").is_file():
            return _of_sentencepiece_model(path, eot_token=eot_token)
        raise no_tokenizer(path)
    if not path.is_file():
        raise UserError(f"there is no tokenizer at {path}: give a directory, a tokenizer.json or a .model file")
    if path.suffix == ".model":
        from slm.data.tokenizers.from_sentencepiece import convert

        files, eot = convert(path.read_bytes(), name=str(path), eot_token=eot_token)
        return Tokenizer(files, name=path.stem, eot_token=eot)
    return _with_config({"tokenizer.json": _read(path)}, name=path.stem, eot_token=eot_token)


def no_tokenizer(directory: Path) -> UserError:
    """What is said of a directory without the files of a tokenizer that is read here."""
    if (directory / "vocab.json").is_file():
        return UserError(
            f"{directory} holds a tokenizer as vocab.json and merges.txt, which do not say how text is split: write "
            f"tokenizer.json with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    return UserError(
        f"{directory} holds neither tokenizer.json nor tokenizer.model: copy the model's tokenizer files there"
    )


def _read(path: Path) -> bytes:
    """A file without the byte order mark that editors put before its text, and a BPE without dropout."""
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    drops = _DROPOUT.search(content) if path.suffix == ".json" else None
    if drops is None or not float(drops[1]):
        return content
    say_once(
        f"note: {path} leaves out merges at random (dropout={drops[1].decode()}), so that a text has other ids each "
        "time: it is read without that"
    )
    return content[: drops.start(1)] + b"null" + content[drops.end(1) :]


def _of_sentencepiece_model(directory: Path, *, eot_token: str) -> Tokenizer:
    """The tokenizer of a model's directory with ``tokenizer.model`` alone, as Llama 2's first release.

    As transformers and llama.cpp assume, it writes its beginning-of-text token before each text, unless
    ``tokenizer_config.json`` says otherwise. The chat template there is the model's.
    """
    from slm.data.tokenizers.from_sentencepiece import convert

    path, settings_path = directory / "tokenizer.model", directory / "tokenizer_config.json"
    files, eot = convert(path.read_bytes(), name=str(path), eot_token=eot_token)
    made, said = json.loads(files["tokenizer_config.json"]), dict[str, Any]()
    if settings_path.is_file():
        files["tokenizer_config.json"] = settings_path.read_bytes()
        said = Tokenizer(files, name=directory.name, eot_token=eot).settings
    spec, bos = json.loads(files["tokenizer.json"]), made["bos_token"]
    if said.get("add_bos_token", True) and bos != eot:
        made["add_bos_token"] = True
        spec["post_processor"] = token_first(bos, spec["model"]["vocab"])
        files["tokenizer.json"] = json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode()
    made |= {name: said[name] for name in ("chat_template",) if name in said}
    files["tokenizer_config.json"] = (json.dumps(made, indent=2, ensure_ascii=False) + "\n").encode()
    if (directory / "chat_template.jinja").is_file():
        files["chat_template.jinja"] = (directory / "chat_template.jinja").read_bytes()
    return Tokenizer(files, name=directory.name, eot_token=eot)


def make_tokenizer(
    config: TokenizerConfig, documents: Callable[[], Iterator[str]], warn: Callable[[str], None] = print
) -> Tokenizer:
    """The tokenizer that ``config`` describes. ``documents()`` is called only where a tokenizer is trained.

    ``warn`` receives one line where ``config.fallback`` is used.
    """
    if config.kind == "tiktoken":
        from slm.data.tokenizers.from_tiktoken import convert

        try:
            return Tokenizer(convert(config.name), name=config.name, eot_token=EOT)
        except UnreachableError as error:
            if config.fallback == "none":
                raise
            warn(
                f"warning: {error}. Training a byte-level BPE of up to {config.vocab_size:,} ids on your text instead "
                "(tokenizer.fallback=none stops here)"
            )
            return make_tokenizer(replace(config, kind="bpe"), documents)
    if config.trained:
        if config.kind == "bpe":
            from slm.data.tokenizers.train_bpe import train
        elif config.kind == "unigram":
            from slm.data.tokenizers.train_unigram import train
        else:
            from slm.data.tokenizers.train_characters import train

        files = train(
            documents(),
            vocab_size=config.vocab_size,
            min_frequency=config.min_frequency,
            sample_bytes=config.sample_bytes,
            split=config.split,
        )
        kind = config.kind if config.split == "gpt2" else f"{config.kind}-{config.split}"
        return Tokenizer(files, name=f"{kind}-{config.vocab_size}", eot_token=EOT)
    return load_tokenizer(config.path, eot_token=config.eot_token)


def _with_config(files: dict[str, bytes], *, name: str, eot_token: str) -> Tokenizer:
    """A tokenizer from disk, with the ``tokenizer_config.json`` that it lacks, or that names another end of text."""
    tokenizer = Tokenizer(files, name=name, eot_token=eot_token)
    if "tokenizer_config.json" not in files:
        tokenizer.files["tokenizer_config.json"] = tokenizer_config(eot=tokenizer.eot_token)
    elif eot_token:  # kept with the tokenizer, so that whoever loads it later takes the same token
        settings = json.loads(files["tokenizer_config.json"])
        declared = settings.get("eos_token")
        if (declared.get("content") if isinstance(declared, dict) else declared) != eot_token:
            changed = json.dumps(settings | {"eos_token": eot_token}, ensure_ascii=False, indent=2)
            tokenizer.files["tokenizer_config.json"] = changed.encode()
    return tokenizer
