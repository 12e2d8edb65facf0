"""``python -m slm.evaluate.exam run=RUN``: how many held-out questions about embedded stories a model answers rightly.

Every question has one right answer, a few words of the story, so no judge is needed (``data.chat.story_chat``). Replies
are greedy. A model without a chat template is given the story and the question as plain text to continue. The last line
printed is a JSON list of rows.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.chat.story_chat import ExamQuestion, exam
from data.errors import UserError
from slm import cli, report, runs
from slm.configuration import load
from slm.evaluate.evaluate import check_is_model
from slm.evaluate.progress import progress_bar
from slm.hub import models
from slm.llama.verdict import crash_advice, require_working_build
from slm.machine.crash_guard import doing, guarded
from slm.machine.hardware import compute_threads, share_cores


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """The command's configuration."""

    run: Path = Path("runs/latest")
    """A run, one of its checkpoints, or a Hugging Face model directory."""
    questions: int = 500
    files: list[Path] | None = None
    """GGUF files to ask instead of all the run's."""
    checkpoint: bool = True
    """Ask the checkpoint, too."""
    max_tokens: int = 64
    """A reply that is longer is cut off: it did not stop by itself."""
    show: int = 3
    """Wrong replies that are printed."""
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads={self.threads} must be at least 1")
        if self.questions < 1 or self.max_tokens < 1 or self.show < 0:
            raise UserError("questions and max_tokens must be at least 1, and show not negative")


@dataclass(frozen=True)
class Reply:
    """What a model says."""

    text: str
    stopped: bool
    """Whether it ended its turn by itself."""


Answer = Callable[[list[dict[str, Any]]], Reply]


def main(argv: list[str]) -> int:
    """Ask every model, print the table and the JSON line."""
    config = load(ExamConfig, "exam", argv, literal=("run",))
    share_cores()
    run = models.resolve(config.run)
    files = [Path(path) for path in config.files] if config.files is not None else run.ggufs()
    if not files and not config.checkpoint:
        raise UserError(f"{run.root} holds no GGUF file; export one first: `{cli.spelled('export', run=run.root)}`")
    for path in files:
        check_is_model(path)
    questions = exam(config.questions)
    threads = config.threads or compute_threads()
    if files:
        require_working_build()
    rows = []
    if config.checkpoint:
        path = run.checkpoint()
        if line := run.choice_line():
            print(line, flush=True)
        rows.append(
            ask(path.name, "torch", checkpoint_answers(path, config.max_tokens, threads), questions, config.show)
        )
    for path in files:
        doing(f"loading {path.name}")
        with GGUFAnswers(path, config.max_tokens, threads) as answers:
            doing(f"asking {path.name}")
            rows.append(ask(path.name, "llama.cpp", answers, questions, config.show))
    show(run, rows)
    report.final_json(rows)
    return 0


def ask(name: str, engine: str, answer: Answer, questions: list[ExamQuestion], n_shown: int = 0) -> dict[str, Any]:
    """The model's row: shares of right answers by kind and family, and of replies that stopped by themselves."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    stopped = 0
    with progress_bar(name, len(questions), unit="questions") as progress:
        for each in questions:
            reply = answer(each.messages)
            stopped += reply.stopped
            for group in ("all", each.question.kind, each.family):
                asked[group] += 1
                right[group] += each.is_right(reply.text)
            if n_shown and not each.is_right(reply.text):
                n_shown -= 1
                question = each.question
                print(f"  wrong: {question.text!r} expects {question.expected!r}, got {reply.text.strip()[:100]!r}")
            if progress:
                progress(1)
    return {
        "file": name,
        "engine": engine,
        "questions": len(questions),
        "right": right["all"],
        "stopped": stopped,
        "by_kind": {kind: round(right[kind] / asked[kind], 4) for kind in ("who", "where", "what") if asked[kind]},
        "by_family": {
            family: round(right[family] / asked[family], 4)
            for family in ("stories", "names", "wordings")
            if asked[family]
        },
    }


def checkpoint_answers(directory: Path, max_tokens: int, threads: int) -> Answer:
    """The model of a checkpoint directory, in torch."""
    import torch

    from data.chat.tokens import ChatEncoder, own_template
    from data.tokenizers.make import load_tokenizer
    from slm.model.checkpoint import load_model
    from slm.model.generate import generate

    torch.set_num_threads(threads)
    model, tokenizer = load_model(directory), load_tokenizer(directory)
    chat = ChatEncoder(tokenizer) if own_template(tokenizer) else None
    stop = {tokenizer.eot_id, chat.end_of_turn if chat else None} - {None}

    def answer(messages: list[dict[str, Any]]) -> Reply:
        ids = chat.prompt(messages) if chat else [tokenizer.eot_id, *tokenizer.encode(plain(messages))]
        new = generate(
            model, ids, max_tokens=max_tokens, temperature=0, stop_ids=tuple(each for each in stop if each is not None)
        )
        full = len(new) == max_tokens or len(ids) + len(new) >= model.config.seq_len
        return Reply(tokenizer.decode(new), not full)

    return answer


class GGUFAnswers:
    """A GGUF file in llama.cpp, with the chat template inside it. Close it, or use ``with``."""

    def __init__(self, path: Path, max_tokens: int, threads: int) -> None:
        from data.chat.template import ChatTemplate
        from slm.llama.context import Batch, Context
        from slm.llama.errors import LlamaError
        from slm.llama.model import Model

        try:
            self._llama = Model(path)
        except LlamaError as error:
            raise UserError(str(error)) from error
        self._max_tokens = max_tokens
        n_ctx = min(self._llama.n_ctx_train, 2048)
        self._n_ctx = n_ctx
        self._context = Context(self._llama, n_ctx=n_ctx, n_batch=n_ctx, n_seq_max=1, n_threads=threads)
        self._batch = Batch(n_ctx, 1)
        self._bos, eos = (self._llama.token_name(token) for token in (self._llama.bos, self._llama.eos))
        text = self._llama.chat_template()
        self._template = (
            ChatTemplate(text, bos=self._bos, eos=eos, control_tokens=self._llama.control_names(), name=path.name)
            if text
            else None
        )

    def __call__(self, messages: list[dict[str, Any]]) -> Reply:
        if self._template:
            text = self._template.text(messages, prompt=True)
            add_special = not (self._bos and text.startswith(self._bos))
            ids = self._llama.tokenize(text, add_special=add_special, parse_special=True)
        else:
            ids = self._llama.tokenize(plain(messages), add_special=True, parse_special=False)
        if len(ids) >= self._n_ctx:
            raise UserError(
                f"a question takes {len(ids)} tokens, and the model's context has {self._n_ctx}: it is too short for "
                "this exam"
            )
        self._context.clear()
        pieces: list[bytes] = []
        position, new = 0, ids
        while len(pieces) < self._max_tokens and position + len(new) <= self._n_ctx:
            self._batch.clear()
            self._batch.extend(new, position, 0, True)
            self._context.decode(self._batch)
            chosen = self._context.likeliest(len(new) - 1)
            position += len(new)
            if self._llama.is_eog(chosen):
                return Reply(b"".join(pieces).decode("utf-8", "replace"), True)
            pieces.append(self._llama.token_to_piece(chosen))
            new = [chosen]
        return Reply(b"".join(pieces).decode("utf-8", "replace"), False)

    def __enter__(self) -> "GGUFAnswers":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        self._llama.close()


def plain(messages: list[dict[str, Any]]) -> str:
    """The messages as text for a model without a chat template to continue."""
    return "\n\n".join(each["content"] for each in messages) + "\n\n"


def show(run: runs.Run, rows: list[dict[str, Any]]) -> None:
    """The table."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.1%}"

    report.table(
        f"Held-out questions about stories, {run.name}",
        ["file", "engine", "right", "who", "where", "what", "new stories", "new names", "new wordings", "stopped"],
        [
            [
                row["file"],
                row["engine"],
                f"{row['right']} of {row['questions']} ({row['right'] / row['questions']:.1%})",
                *(percent(row["by_kind"].get(kind)) for kind in ("who", "where", "what")),
                *(percent(row["by_family"].get(family)) for family in ("stories", "names", "wordings")),
                f"{row['stopped']} of {row['questions']}",
            ]
            for row in rows
        ],
        caption=(
            "right: the reply has the expected words of the story and those of no other possible answer (greedy)\n"
            "new names: tuning never speaks of anyone of that name; new wordings: nor asks in these words\n"
            "stopped: replies that the model ended by itself, within max_tokens"
        ),
    )


if __name__ == "__main__":
    cli.run(lambda argv: guarded(lambda: main(argv), advice=crash_advice))
