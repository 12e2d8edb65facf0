"""A run with an untrained chat model of ChatML, as checkpoint and f32 GGUF."""

import json
from functools import cache
from pathlib import Path

from slm.data.chat.story_chat import conversation
from slm.data.chat.tokens import with_chatml
from slm.data.tokenizers.tokenizer import Tokenizer, special_token
from slm.data.tokenizers.train_bpe import train
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from tests.helpers import programs
from tests.helpers import tiny_checkpoint as tiny


@cache
def base_tokenizer(vocab_size: int = 700) -> Tokenizer:
    """A small BPE of the embedded conversations, without a chat template."""
    texts = [each["content"] for index in range(100) for each in conversation(1, index)["messages"]]
    files = train(iter(texts), vocab_size=vocab_size, min_frequency=2, sample_bytes=10**6)
    return Tokenizer(files, name="base")


def with_template(tokenizer: Tokenizer, template: str, marks: tuple[str, ...], *, bos: str, eos: str) -> Tokenizer:
    """The tokenizer with these special tokens and this template, as a downloaded chat model has them."""
    spec, settings = (json.loads(tokenizer.files[f"{name}.json"]) for name in ("tokenizer", "tokenizer_config"))
    first = tokenizer.vocab_size
    spec["added_tokens"] += [special_token(first + number, mark) for number, mark in enumerate(marks)]
    settings |= {"bos_token": bos, "eos_token": eos, "chat_template": template}
    files = {"tokenizer.json": json.dumps(spec).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    return Tokenizer(tokenizer.files | files, name="chat")


def write_chat_gguf(folder: Path, tokenizer: Tokenizer) -> Path:
    """A model of one small layer with this tokenizer, as a Hugging Face directory and as a GGUF file in it."""
    from slm.export.config import Naming
    from slm.export.gguf.writer import identify_model, write_gguf
    from slm.runs import Run
    from slm.vocabulary.gguf_vocab import build_vocab

    shape = tiny.config(vocab_size=-(-tokenizer.vocab_size // 64) * 64, n_layers=1, eos_id=tokenizer.eot_id)
    model = LanguageModel(shape)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    tokenizer.save(folder)
    path = folder / "model.gguf"
    write_gguf(
        path,
        "f32",
        model=shape,
        weights=model.state_dict(),
        vocab=build_vocab(folder, shape.vocab_size),
        identity=identify_model(Naming(), Run(root=folder), folder, shape.n_params),
        record="{}",
    )
    return path


def make_chat_run(root: Path, quant: str = "f32") -> Path:
    """A run directory with one checkpoint and its export."""
    tokenizer = with_chatml(base_tokenizer())
    shape = tiny.config(
        vocab_size=-(-tokenizer.vocab_size // 64) * 64,
        seq_len=1024,
        tie_embeddings=True,
        bos_id=0,
        eos_id=tokenizer.eot_id,
    )
    model = LanguageModel(shape)
    tiny.randomize(model)
    directory = root / "checkpoints" / "step-00000001"
    directory.mkdir(parents=True)
    save_model(directory, model)
    tokenizer.save(directory)
    text = "\n\n".join(each["content"] for index in range(60) for each in conversation(2, index)["messages"])
    (root / "validation.txt").write_text(text)
    (root / "calibration.txt").write_text(text)
    (root / "config.yaml").write_text("name: chat\n")
    programs.run("slm.export", [f"run={root}", "threads=1", f"quant={quant}"], root)
    return root
