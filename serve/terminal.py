"""``python -m slm.serve.terminal model=PATH [prompt='Once upon a time' ...]``: a model in the terminal, without HTTP.

The engine runs in this process, which another one watches (``slm.machine.crash_guard``): a crash is one line. With a
chat template there is a conversation; without one, the model continues text.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slm.cli import run
from slm.data.errors import UserError
from slm.exported import stale_lines
from slm.llama.verdict import crash_advice, require_working_build
from slm.machine.crash_guard import doing, guarded
from slm.report import plain
from slm.serve.config import TerminalConfig, load
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, ModelInfo, PrefillDone
from slm.serve.history import HistoryWindow, prompt_limit
from slm.serve.pool.model_files import resolve_model

if TYPE_CHECKING:
    from slm.serve.chat_template import RenderedChat
    from slm.serve.tools.channels import Begins

_COMMANDS = ("/help", "/reset", "/retry", "/system", "/save", "/exit", "/quit")
_OF_A_CONVERSATION = ("/reset", "/retry", "/system", "/save")
_WITH_TEXT = ("/system", "/save")
"""Commands that take something after them."""
_HELP = """/help         this text
/reset        forget the conversation
/retry        another reply to the last message
/system TEXT  the system message from now on (without TEXT: show it)
/save FILE    add the conversation to a file, as a line of JSON that make tune reads
/exit         leave (or Ctrl-D)
A message goes on in the next line where a line ends in \\. Ctrl-C stops a reply.
A message that begins with a slash and a word is written with a space before it."""
_HELP_OF_A_BASE_MODEL = """/help         this text
/exit         leave (or Ctrl-D)
A text goes on in the next line where a line ends in \\. Ctrl-C stops the model.
A text that begins with a slash and a word is written with a space before it."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One finished reply."""

    text: str
    reasoning: str = ""
    """What a separate channel holds (gpt-oss); other models write theirs into the text."""
    n_tokens: int
    seconds: float
    """Seconds of decoding, without the prefill."""
    finish: str
    stopped_by: str | None = None
    """What cut it off: see ``slm.serve.engine.protocol.StoppedBy``."""
    n_forgotten: int = 0
    """Messages that were dropped before it, because the context was full."""

    @property
    def tokens_per_s(self) -> float:
        """The decode rate; 0 where there is none."""
        # The first token comes from the prefill.
        return (self.n_tokens - 1) / self.seconds if self.n_tokens > 1 and self.seconds > 0 else 0.0


class Conversation:
    """A conversation with an engine in this process. Raises ``UserError`` when the model cannot be loaded."""

    def __init__(self, config: TerminalConfig) -> None:
        from slm.llama.errors import LlamaError
        from slm.serve.chat_template import ChatPrompt
        from slm.serve.engine.engine import Engine

        path, note = resolve_model(config.model)
        self.notes = [*([note] if note else []), *stale_lines([path])]
        engine = EngineConfig(
            model_path=path,
            slots=1,
            context=config.context,
            threads=config.threads,
            n_gpu_layers=config.n_gpu_layers,
        )
        try:
            self._engine = Engine(engine)
        except LlamaError as error:
            raise UserError(str(error)) from None
        self._config = config
        self.name = path.name
        self.info: ModelInfo = self._engine.info
        self.chat = ChatPrompt(self.info)
        self._n_replies = 0
        self._n_retries = 0
        """Retries of the last message."""
        self.system = config.system
        """The system message; "" for none."""
        self._messages: list[dict[str, Any]] = []

    def reset(self) -> None:
        """Forgets the conversation."""
        self._messages = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in OpenAI's form, the system message included."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self._messages]

    def retry(self, show: Callable[[str], None]) -> Reply:
        """Another reply in place of the last one. Raises ``UserError`` where there is none."""
        if len(self._messages) < 2:
            raise UserError("there is no reply yet; send a message first")
        before = self._messages
        self._messages = before[:-2]
        self._n_retries += 1
        reply = None
        try:
            reply = self._send(before[-2]["content"], show)
            return reply
        finally:
            if reply is None or not reply.text.strip():
                self._messages = before

    def save(self, path: Path) -> None:
        """Adds the conversation to a file as a line of JSON. Raises ``UserError``."""
        if not self._messages:
            raise UserError("there is nothing to save yet; send a message first")
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None

    def send(self, text: str, show: Callable[[str], None]) -> Reply:
        """Sends a message (or, for a base model, text to continue); ``show`` gets the reply's text as it comes.

        When the context is full, the oldest messages are forgotten, the system message excepted. Ctrl-C ends the reply
        early. Without a reply the conversation stays as it was. Raises ``UserError`` when the text does not fit the
        context.
        """
        self._n_retries = 0
        return self._send(text, show)

    def _send(self, text: str, show: Callable[[str], None]) -> Reply:
        from slm.serve.chat_template import ChatTemplateError, RenderedChat

        if not self.chat.own:
            return self._generate(RenderedChat(text=text, add_special=True, parse_special=False), show)
        before = list(self._messages)
        self._messages.append({"role": "user", "content": text})
        reply = None
        try:
            prompt, n_forgotten = self._fitting_prompt()
            reply = replace(self._generate(prompt, show), n_forgotten=n_forgotten)
        except ChatTemplateError as error:
            raise UserError(str(error)) from None
        finally:
            if reply is None or not reply.text.strip():
                self._messages = before
        if reply.text.strip():
            thought = {"reasoning_content": reply.reasoning} if reply.reasoning else {}
            self._messages.append({"role": "assistant", "content": reply.text, **thought})
        return reply

    def _fitting_prompt(self) -> tuple[RenderedChat, int]:
        """The conversation as a prompt, and how many of its oldest messages were dropped to make room for a reply."""
        parse_content = self._config.parse_special_in_content
        window = HistoryWindow(self.messages, prompt_limit(self.info.context, self._config.max_tokens))
        while True:
            prompt = self.chat.render(window.messages, parse_special_in_content=parse_content)
            if window.counted(self._engine.count_tokens(self._request(prompt))):
                break
        if window.n_dropped:
            prompt = self.chat.render(window.messages, parse_special_in_content=parse_content)
        self._messages = window.messages[1 if self.system else 0 :]
        return prompt, window.n_dropped

    def _generate(self, prompt: RenderedChat, show: Callable[[str], None]) -> Reply:
        self._n_replies += 1
        request = self._request(prompt)
        key = request.id
        said = _Said(prompt.begins)
        n_tokens, finish, stopped_by, began = 0, "stopped", None, time.perf_counter()
        with _interrupts() as interrupted:
            events = self._engine.handle(request)
            while True:
                for event in events:
                    if isinstance(event, Failure):
                        hint = " (/reset forgets the conversation)" if self.chat.own else ""
                        raise UserError(f"{event.message}{hint}")
                    if isinstance(event, PrefillDone):
                        began = time.perf_counter()
                    elif isinstance(event, Delta):
                        show(said.take(event.text, last=event.finish is not None))
                        n_tokens, finish = event.completion_tokens, event.finish or finish
                        stopped_by = event.stopped_by
                if interrupted and self._engine.busy:
                    self._engine.handle(Cancel(id=key))
                    finish, stopped_by = "stopped", None
                if not self._engine.busy:
                    break
                events = self._engine.step()
        seconds = time.perf_counter() - began
        return Reply(
            text=said.text,
            reasoning=said.reasoning,
            n_tokens=n_tokens,
            seconds=seconds,
            finish=finish,
            stopped_by=stopped_by,
        )

    def _request(self, prompt: RenderedChat) -> Generate:
        from slm.serve.tools.call_form import CHANNELS

        config = self._config
        return Generate(
            id=str(self._n_replies),
            prompt=prompt.text,
            add_special=prompt.add_special,
            parse_special=prompt.parse_special,
            literal_spans=prompt.literal_spans,
            shown=CHANNELS.controls if prompt.begins else (),
            max_tokens=config.max_tokens,
            sampling=self.info.sampling.params(
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                min_p=config.min_p,
                repeat_penalty=config.repeat_penalty,
                seed=secrets.randbits(32) if config.seed is None else config.seed + self._n_retries,
            ),
        )

    def close(self) -> None:
        """Frees the model."""
        self._engine.close()


class _Said:
    """What a reply has said. Reasoning in a channel is shown between the marks that other models write themselves."""

    def __init__(self, begins: Begins) -> None:
        from slm.serve.tools.channels import ChannelReader

        self._reader = ChannelReader(begins, calls=False) if begins else None
        self._thinks = False
        self.text = self.reasoning = ""

    def take(self, text: str, *, last: bool) -> str:
        """The next text as it is shown. ``last``: no more comes."""
        from slm.serve.tools.call_form import END_OF_THINK, THINK

        if self._reader is None:
            self.text += text
            return text
        shown = ""
        for piece in self._reader.push(text, last=last):
            if piece.kind == "reasoning":
                shown += "" if self._thinks else ("\n\n" if self.text else "") + f"{THINK}\n"
                self.reasoning += piece.text
            else:
                shown += f"\n{END_OF_THINK}\n\n" if self._thinks else ""
                self.text += piece.text
            self._thinks = piece.kind == "reasoning"
            shown += piece.text
        return shown


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C is added to the list and raises nothing.

    An exception could come in the middle of a step, or in a callback of llama.cpp, where Python would lose it.
    """
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _show(text: str) -> None:
    # A model's text must not move the cursor. A file or a pipe gets it unchanged.
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _figures(reply: Reply) -> str:
    why = {
        "max_tokens": ", stopped by max_tokens",
        "context": ", stopped because the context is full",
        "stopped": ", stopped by you",
    }
    ended = why.get(reply.stopped_by or reply.finish, "")
    if not reply.text.strip():
        ended += "; no text"
    figures = f"[{reply.n_tokens} tokens, {reply.tokens_per_s:.1f} tokens/s{ended}]"
    if reply.n_forgotten:
        figures += f"\n(the context is full: the oldest {reply.n_forgotten} messages are forgotten)"
    return figures


def _command(line: str) -> tuple[str, str] | None:
    """The command that a line gives, and what stands after it; None for a message. Raises ``UserError`` where there is
    no such command."""
    # A path is a message, and so is what stands behind a space.
    if not re.match(r"/\w*(\s|$)", line):
        return None
    word, _, rest = line.strip().partition(" ")
    if word not in _COMMANDS:
        raise UserError(f"there is no command {word}; there are {', '.join(_COMMANDS)}")
    if rest.strip() and word not in _WITH_TEXT:
        raise UserError(f"{word} takes nothing after it")
    return word, rest.strip()


def _obey(conversation: Conversation, word: str, text: str) -> bool:
    """Carries out a command; whether the conversation goes on. Raises ``UserError``."""
    if not conversation.chat.own and word in _OF_A_CONVERSATION:
        raise UserError(f"{word}: a base model has no conversation; it continues each text that you type")
    match word:
        case "/exit" | "/quit":
            return False
        case "/help":
            print(_HELP if conversation.chat.own else _HELP_OF_A_BASE_MODEL)
        case "/reset":
            conversation.reset()
            print("(forgotten)")
        case "/system" if text:
            conversation.system = text
            print("(from now on)")
        case "/system":
            print(f"system message: {conversation.system or '(none)'}")
        case "/save":
            if not text:
                raise UserError("/save needs the name of a file after it, such as /save chats.jsonl")
            conversation.save(Path(os.path.expanduser(text)))
            print(f"(added to {text})")
        case "/retry":
            reply = conversation.retry(_show)
            print(f"\n{_figures(reply)}", flush=True)
    return True


def _once(conversation: Conversation, prompt: str) -> None:
    """One prompt, one reply. A base model continues the prompt, so the prompt is printed first."""
    if not conversation.chat.own:
        _show(prompt)
    reply = conversation.send(prompt, _show)
    print(f"\n{_figures(reply)}", flush=True)


def _converse(conversation: Conversation) -> None:
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() the arrow keys and the lines before, and takes long ones
    info = conversation.info
    facts = f"{info.n_params / 1e6:.1f}M parameters, context {info.context}, {info.threads} threads"
    print(f"{plain(conversation.name)}: {facts}")
    for note in conversation.notes:
        print(note)
    if conversation.chat.problem:
        print(plain(conversation.chat.problem))
    if conversation.chat.own:
        print("Chat. /help lists commands, Ctrl-D leaves.")
    else:
        print("A base model: it continues the text you type. /help lists commands, Ctrl-D leaves.")
    while True:
        try:
            line = _typed()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)")
            continue
        if not line.strip():
            continue
        try:
            command = _command(line)
            if command is not None:
                if not _obey(conversation, *command):
                    return
                continue
            if not conversation.chat.own:
                _show(line)
            reply = conversation.send(line, _show)
            print(f"\n{_figures(reply)}", flush=True)
        except UserError as error:
            print(f"error: {plain(str(error))}")
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)")


def _typed() -> str:
    """A line; with those after it where it ends in a backslash. Raises ``EOFError`` at the end of the input."""
    lines = [input("\n> ")]
    while sys.stdin.isatty() and lines[-1].endswith("\\") and not lines[-1].endswith("\\\\"):
        try:
            lines.append(input(". "))
        except EOFError:
            break
    return "\n".join([*(line[:-1] for line in lines[:-1]), lines[-1]])


def main(argv: list[str]) -> int:
    """Runs until the person leaves. Raises ``UserError`` for what they can mend."""
    config = load(TerminalConfig, "terminal", argv, literal=("model", "prompt", "system"))
    require_working_build()
    for stream in (sys.stdin, sys.stdout):
        # A pipe in a C locale is ASCII; a model's text is not. What is typed or piped in may be anything.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    doing(f"running {config.model}")
    conversation = Conversation(config)
    try:
        if config.system and not conversation.chat.own:
            raise UserError("system= is for models with a chat template; this is a base model, which continues a text")
        if config.prompt is None:
            _converse(conversation)
        else:
            for note in conversation.notes:
                print(note, file=sys.stderr)
            _once(conversation, config.prompt)
    finally:
        conversation.close()
    return 0


if __name__ == "__main__":
    run(lambda argv: guarded(lambda: main(argv), advice=lambda: crash_advice("only what /save has written is kept")))
