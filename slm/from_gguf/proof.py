"""A checkpoint made from a GGUF file does what the file does: the ids of texts and chats, and the logits.

llama.cpp reads the file itself. It runs in its own process, since it may end one.

Shape suffixes: T positions, V vocabulary.

Tested in tests/slm/from_gguf/test_convert.py, tests/slm/from_gguf/test_tokenizer.py.
"""

import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import numpy as np

from slm.data.errors import UserError, excerpt, one_line
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.from_gguf.contents import open_contents
from slm.from_gguf.tokenizer import save, tokenizer_files
from slm.machine.crashes import ended_by, run_trial
from slm.vocabulary.same_ids import PROBES, chat_failures, token_failures

TEXTS = 500
POSITIONS = 128
"""Positions of one text at which logits are compared."""
UNQUANTIZED = ("f32", "f16", "bf16")
MOST_KL = {False: 1e-3, True: 2e-2}
"""Mean KL divergence in nats of the file's predictions from the checkpoint's, at most. ``True``: of a quantized file.
llama.cpp rounds the inputs of its products to 8 bits, too."""
_SECONDS = 1800


def made_texts(tokenizer: Tokenizer, count: int = TEXTS) -> list[str]:
    """``PROBES``, pieces of them, and texts of the vocabulary's own tokens: every kind of token and merge has its turn.
    The same for the same tokenizer."""
    rng = random.Random(7)
    ids = [id for id in range(tokenizer.vocab_size) if id not in tokenizer.special_ids]
    pieces = [word for probe in PROBES for word in (*probe.split(" "), " ", "\n") if word]
    found = list(PROBES)
    for number in itertools.count():
        if len(found) >= count:
            return found[:count]
        if number % 2:
            found.append("".join(rng.choices(pieces, k=rng.randint(1, 12))))
        else:
            text = tokenizer.decode(rng.choices(ids, k=rng.randint(2, 24)))
            found.append(text.replace("\ufffd", ""))
    raise AssertionError


def write_tokenizer(path: Path, directory: Path) -> list[str]:
    """Write the tokenizer of the file ``path`` into ``directory``; lines on what was left out. UserError where it
    cannot be made, or gives other ids than llama.cpp."""
    answer = _ask("tokenizer", path, directory)
    if answer["failures"]:
        raise UserError(
            f"the tokenizer of {path.name} cannot be read back as llama.cpp has it: {answer['failures'][0]}; the file "
            "can be served, and not trained further"
        )
    return list(answer["lines"])


def compare_logits(path: Path, directory: Path) -> dict[str, Any]:
    """``kl``, ``max_abs``, ``same_top`` and ``tokens``: the checkpoint's logits and the file's, of one text. UserError
    where they differ by more than the file's rounding."""
    found = _ask("logits", path, directory)
    if not found["kl"] <= found["most_kl"]:
        raise UserError(
            f"the checkpoint made of {path.name} does not predict what llama.cpp predicts with the file (KL divergence "
            f"{found['kl']:.3g} nats, at most {found['most_kl']:g}): the file is of a variant that is not known here"
        )
    return found


def _ask(what: str, path: Path, directory: Path) -> dict[str, Any]:
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONIOENCODING": "utf-8"}
    try:
        done = run_trial(
            "slm.from_gguf.proof",
            what,
            str(path.absolute()),
            str(directory.absolute()),
            environment=environment,
            seconds=_SECONDS,
        )
    except (SubprocessError, OSError) as error:
        raise UserError(f"{path.name} could not be compared with llama.cpp ({excerpt(error)}): try again") from error
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        name = ended_by(done.returncode)
        reason = f"llama.cpp dies with {name}" if name else last or f"exit status {done.returncode}"
        raise UserError(f"{path.name} cannot be read back: {excerpt(reason)}")
    answer = json.loads(done.stdout.decode().splitlines()[-1])
    if "error" in answer:
        raise UserError(answer["error"])
    return dict(answer)


# The child's side.


def _tokenizer(path: Path, directory: Path) -> dict[str, Any]:
    from slm.llama.model import Model

    contents = open_contents(path)
    with Model(contents.path, vocab_only=True) as llama:
        files, lines = tokenizer_files(llama, contents)
        tokenizer = Tokenizer(files, name=path.name)
        texts = made_texts(tokenizer)
        failures = token_failures(llama, texts, [tokenizer.encode_document(each) for each in texts])
        failures = failures or chat_failures(llama, tokenizer)
    save(tokenizer.files, directory)
    return {"lines": lines, "failures": failures, "texts": len(texts)}


def _logits(path: Path, directory: Path) -> dict[str, Any]:
    import torch

    from slm.llama.context import Batch, Context
    from slm.llama.model import Model
    from slm.model.held.held_model import load_as_stored

    contents = open_contents(path)
    tokenizer, model = load_tokenizer(directory), load_as_stored(directory)
    ids = tokenizer.encode_document("\n".join(PROBES[3:6] + PROBES[7:15]))
    ids = ids[: min(POSITIONS, model.config.seq_len)]
    # Keys and values in f32, and no flash attention: only the products' own rounding is left.
    exact: dict[str, Any] = {"n_ctx": len(ids), "n_batch": len(ids), "flash_attn": False, "kv_type": "f32"}
    with Model(contents.path) as llama, Context(llama, **exact) as context:
        batch = Batch(len(ids))
        batch.extend(ids, 0, 0, True, every=True)
        context.decode(batch)
        theirs_TV = torch.from_numpy(context.logits_all(len(ids)))
    with torch.inference_mode():
        x_TD = model.hidden_states(torch.tensor([ids]))[0]
        ours_TV = model.logits(x_TD)
        p_TV, q_TV = ours_TV.double().log_softmax(1), theirs_TV.double().log_softmax(1)
        kl = (p_TV.exp() * (p_TV - q_TV)).sum(1).mean()
    quantized = any(each.type not in UNQUANTIZED for _, each in contents.tensors.values())
    return {
        "kl": max(float(kl), 0.0) if np.isfinite(float(kl)) else float("nan"),
        "max_abs": float((ours_TV - theirs_TV).abs().max()),
        "same_top": float((ours_TV.argmax(1) == theirs_TV.argmax(1)).double().mean()),
        "tokens": len(ids),
        "most_kl": MOST_KL[quantized],
    }


_TASKS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {"tokenizer": _tokenizer, "logits": _logits}


def main(what: str, path: str, directory: str) -> None:
    """Print the answer as JSON on the last line."""
    from slm.llama.errors import LlamaError

    try:
        answer = _TASKS[what](Path(path), Path(directory))
    except (UserError, LlamaError) as error:
        answer = {"error": one_line(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
