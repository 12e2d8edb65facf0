"""Whether export will take a tokenizer and its chat template, asked before a run that would be refused after it.

The tokenizer is converted as export does it, alone in a GGUF file; llama.cpp reads that, and the file passes the same
comparison of ids as an export. It takes seconds, in its own process, since llama.cpp may end one. A tokenizer that
passed is remembered in the cache folder.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from slm.data.chat.tokens import template_fault
from slm.data.errors import UserError, excerpt, one_line
from slm.data.storage import atomic_write_text, cache_home, fingerprint
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.llama.verdict import build_stamp
from slm.machine.crashes import ended_by, run_trial
from slm.setup.llama import wait as wait_for_build
from slm.vocabulary.gguf_vocab import Vocab, build_vocab

_FORMAT = 2
"""Version of the questions. A higher number asks again."""


def require_exportable(
    tokenizer: Tokenizer, *, rows: int, ids: Mapping[str, int | None], name: str, otherwise: str
) -> None:
    """``UserError`` where export would refuse the tokenizer or its template, with the reason. Takes seconds, once.

    ``rows``: of the model's embedding. ``ids``: ``bos_token_id`` and others of the model's ``config.json``. ``name``:
    the model's, by which llama.cpp knows some of a tokenizer's habits. ``otherwise``: what to do to train all the same.
    """
    if fault := template_fault(tokenizer):
        print(f"warning: exported files will hold a chat template with which no chat works: {fault}", flush=True)
    wait_for_build()
    facts = (_FORMAT, rows, sorted(ids.items(), key=str), "phi" in name.lower() and name, build_stamp())
    passed = cache_home() / "exportable" / fingerprint((facts, sorted(tokenizer.files.items())))
    if passed.is_file():
        return
    with tempfile.TemporaryDirectory(prefix="slm-exportable-", ignore_cleanup_errors=True) as folder:
        tokenizer.save(folder)
        (Path(folder) / "config.json").write_text(json.dumps(dict(ids)), encoding="utf-8")
        # When llama.cpp aborts, it starts a debugger where there is one.
        environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONIOENCODING": "utf-8"}
        try:
            done = run_trial("slm.vocabulary.exportable", folder, str(rows), name, environment=environment)
        except (SubprocessError, OSError) as error:
            print(f"warning: whether export takes this tokenizer could not be tried ({excerpt(error)})", flush=True)
            return
    reason = _reason(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    if reason:
        raise UserError(f"export would refuse this model after its training: {reason}. {otherwise}")
    with contextlib.suppress(OSError):  # it is asked again the next time
        passed.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(passed, tokenizer.name + "\n")


def failures(directory: Path, rows: int, name: str, path: Path) -> list[str]:
    """What differs between the tokenizer in ``directory`` and its conversion, which is written to ``path``. UserError
    where it cannot be converted."""
    from slm.llama.errors import LlamaError
    from slm.llama.model import Model
    from slm.vocabulary.same_ids import chat_failures, plain_strings, token_failures

    tokenizer, vocab = load_tokenizer(directory), build_vocab(directory, rows)
    write_vocabulary(path, vocab, name=name)
    strings = plain_strings(nfc=vocab.nfc, unlike=vocab.unmarked)
    try:
        with Model(path, vocab_only=True) as llama:
            found = token_failures(llama, strings, [tokenizer.encode_document(each) for each in strings])
            return found or chat_failures(llama, tokenizer, nfc=vocab.nfc, unlike=vocab.unmarked)
    except LlamaError as error:
        return [one_line(error)]


def write_vocabulary(path: Path, vocab: Vocab, *, name: str) -> None:
    """A GGUF file that holds a vocabulary alone."""
    import gguf

    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
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


def _reason(status: int, output: str, errors: str) -> str | None:
    """Why the tokenizer is refused; None where it is not."""
    if status == 0:
        found = json.loads(output.splitlines()[-1])
        return found[0] if found else None
    last = (errors.strip().splitlines() or [f"exit code {status}"])[-1]
    return f"llama.cpp dies with {ended_by(status)} where it reads the tokenizer" if ended_by(status) else last


def main(folder: str, rows: str, name: str) -> None:
    """What differs, as JSON on the last line: the child's side."""
    directory = Path(folder)
    try:
        found = failures(directory, int(rows), name, directory / "vocabulary.gguf")
    except UserError as error:
        found = [one_line(error).replace(folder, name)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
