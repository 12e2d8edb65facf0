"""Ollama's ``Modelfile`` next to the exported files of a chat model: ``ollama create NAME -f Modelfile``.

Ollama renders chats by its own kind of template, and reads a GGUF's only where it recognises it. So the pieces of the
model's template (what stands before and after each role's words) are read off rendered conversations, written in
Ollama's kind, and put together again to see that the text is the same. See Ollama's documentation on Modelfiles.

Tested in tests/export/test_modelfile.py.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm.data.chat.template import ChatTemplate, TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder, own_template
from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.exported import MODELFILE
from slm.llama.gguf_check import read_header

MARK = "# Written by slm export. Remove this line to keep your changes: the file is then left as it is."
PREFERRED = ("q4_k_m", "q8_0")
"""Order of preference among several files; without one of these, the first file."""
_WORDS = {"system": "Sys7em", "user": "Us3r", "assistant": "4nswer"}


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A chat template taken apart."""

    head: str
    """What a chat without a system message begins with."""
    system: tuple[str, str] | None
    """What a chat with one begins with, up to the message and from there; None where the template refuses one."""
    user: tuple[str, str]
    assistant: tuple[str, str]
    prompt: str
    """What the assistant goes on from."""

    def text(self, messages: Sequence[dict[str, Any]]) -> str:
        """The messages, the first of which may be a system message, up to where the assistant goes on."""
        parts = [self.head]
        for message in messages:
            before, after = getattr(self, message["role"])
            if message["role"] == "system":
                parts = []
            parts += [before, message["content"], after]
        return "".join([*parts, self.prompt])

    def for_ollama(self) -> str:
        """The same as a template of Ollama's (Go's text/template)."""

        def role(name: str) -> str:
            before, after = getattr(self, name)
            return f'{{{{ if eq .Role "{name}" }}}}{before}{{{{ .Content }}}}{after}{{{{ end }}}}'

        begin = self.head
        if self.system is not None:
            before, after = self.system
            begin = f"{{{{ if .System }}}}{before}{{{{ .System }}}}{after}"
            begin += f"{{{{ else }}}}{self.head}{{{{ end }}}}" if self.head else "{{ end }}"
        return f"{begin}{{{{ range .Messages }}}}{role('user')}{role('assistant')}{{{{ end }}}}{self.prompt}"


def write(out: Path, tokenizer: Tokenizer, files: Sequence[Path]) -> Path | None:
    """Write ``out/Modelfile`` for one of ``files``, which are in ``out``; None for a model without a chat template.

    A file that a person has taken over is left as it is.
    """
    path = out / MODELFILE
    if not files or own_template(tokenizer) is None:
        return None
    if path.is_file() and MARK not in path.read_text(encoding="utf-8"):
        return None
    preferred = (each for kind in PREFERRED for each in files if each.stem.lower().endswith(f"-{kind}"))
    chosen = next(preferred, files[0])
    adds_bos = bool(read_header(chosen).metadata.get("tokenizer.ggml.add_bos_token"))
    try:
        encoder = ChatEncoder(tokenizer)
    except UserError:
        return None  # a template that does not render is passed on in the GGUF as it is
    atomic_write_text(path, text(encoder, tokenizer, chosen.name, adds_bos=adds_bos))
    return path


def text(encoder: ChatEncoder, tokenizer: Tokenizer, file: str, *, adds_bos: bool) -> str:
    """The Modelfile for the GGUF ``file``. ``adds_bos``: llama.cpp puts that token before each text by itself."""
    lines = [
        MARK,
        f"# Usage: ollama create {file.rpartition('-')[0].lower() or 'mine'} -f {MODELFILE}",
        f"FROM ./{file}",
    ]
    bos = encoder.template.bos if adds_bos else ""
    pieces = take_apart(encoder.template, bos)
    if pieces is not None:
        lines.append(f'TEMPLATE """{pieces.for_ollama()}"""')
    else:
        lines.append("# TEMPLATE is left to Ollama, which knows the templates of common models.")
    if (turn := encoder.end_of_turn) is not None:
        names = {token["id"]: token["content"] for token in tokenizer.spec.get("added_tokens") or []}
        lines.append(f"PARAMETER stop {json.dumps(names[turn], ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def take_apart(template: ChatTemplate, bos: str = "") -> Pieces | None:
    """The template's pieces, ``bos`` left out at the beginning. None where it does more than put pieces around messages
    (tools aside), and where Ollama's kind cannot hold the pieces."""

    def said(*roles: str) -> list[dict[str, Any]]:
        return [{"role": role, "content": _WORDS[role]} for role in roles]

    def rendered(*roles: str, prompt: bool = False) -> str:
        return template.text(said(*roles), prompt=prompt).removeprefix(bos)

    try:
        one, two, three = (
            rendered(*roles) for roles in (("user",), ("user", "assistant"), ("user", "assistant", "user"))
        )
        user = _around(three.removeprefix(two), "user")
        head = one.removesuffix(f"{user[0]}{_WORDS['user']}{user[1]}")
        assistant = _around(two.removeprefix(one), "assistant")
        prompt = rendered("user", prompt=True).removeprefix(one)
        try:
            with_system = rendered("system", "user")
            system = _around(with_system.removesuffix(f"{user[0]}{_WORDS['user']}{user[1]}"), "system")
        except TemplateRefusesError:
            system = None
        pieces = Pieces(head=head, system=system, user=user, assistant=assistant, prompt=prompt)
        for roles in (("user",), ("user", "assistant", "user"), ("system", "user", "assistant", "user")):
            if ("system" not in roles or system is not None) and pieces.text(said(*roles)) != rendered(
                *roles, prompt=True
            ):
                return None
    except (TemplateRefusesError, ValueError):
        return None
    parts = (head, prompt, *user, *assistant, *(system or ()))
    return None if any(mark in part for part in parts for mark in ("{{", "}}", '"""')) else pieces


def _around(text: str, role: str) -> tuple[str, str]:
    """What stands before and after a role's words; ValueError where they are not there once."""
    before, after = text.split(_WORDS[role])
    return before, after
