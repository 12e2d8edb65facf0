"""A run with an untrained chat model of ChatML, as checkpoint and f32 GGUF."""

import subprocess
import sys
from pathlib import Path

from data.chat.story_chat import conversation
from data.chat.tokens import with_chatml
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train_bpe import train
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from tests.helpers import REPOSITORY
from tests.helpers import tiny_checkpoint as tiny


def chat_tokenizer(vocab_size: int = 700) -> Tokenizer:
    """A small BPE of the embedded conversations, with ChatML."""
    texts = [each["content"] for index in range(100) for each in conversation(1, index)["messages"]]
    files = train(iter(texts), vocab_size=vocab_size, min_frequency=2, sample_bytes=10**6)
    return with_chatml(Tokenizer(files, name="chat"))


def make_chat_run(root: Path, quant: str = "f32") -> Path:
    """A run directory with one checkpoint and its export."""
    tokenizer = chat_tokenizer()
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
    words = [f"run={root}", "threads=1", f"quant={quant}"]
    done = subprocess.run(
        [sys.executable, "-m", "export", *words], capture_output=True, text=True, timeout=300, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    return root
