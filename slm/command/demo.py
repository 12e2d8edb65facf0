"""``slm demo [key=value ...]``: train, export, evaluate and run a small model, each as its own command.

The words go to the training.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from slm import cli
from slm.configuration import assigned

OUR_WORDS = ("preset=tiny", "name=demo", "train.max_minutes=7")
OUR_EVALUATION = ("eval.max_tokens=30000", "eval.coherence_stories=64")


def main(argv: list[str]) -> int:
    """Run the stages one after the other. Returns the status of the first that fails, or 0."""
    words, root = own_words(OUR_WORDS, argv)
    if status := run_all(steps(words, root)):
        return status
    own_text = cli.spelled("train", preset="10m", name="mine", data="my/")
    print("\nThat was raw text to a quantized model on this machine. Next:")
    for command, about in (
        (cli.spelled("serve", model=root), "an OpenAI-compatible server"),
        (cli.spelled("chat", model=root), "the model in this terminal"),
        (own_text, "your own text"),
    ):
        print(f"  {command:<42}  {about}")
    return 0


def own_words(ours: Sequence[str], argv: list[str]) -> tuple[list[str], Path]:
    """The training's words, those of ``argv`` in place of ``ours``, and the run's directory."""
    given = {word.partition("=")[0] for word in argv}
    words = [word for word in ours if word.partition("=")[0] not in given] + argv
    values = {key: unquoted(value) for key, _, value in (word.partition("=") for word in words)}
    return words, Path(os.path.expanduser(values.get("runs_dir", "runs"))) / values["name"]


def unquoted(value: str) -> str:
    """A value without the quotes that Hydra wants around some characters."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1].replace("\\" + value[0], value[0]) if quoted else value


def steps(words: list[str], root: Path) -> list[list[str]]:
    """The command lines, without ``slm``."""
    return [
        ["train", *words],
        ["export", f"run={root}", "quant=q4_k_m"],
        ["eval", f"run={root}", assigned("eval.text", root / "validation.txt"), *OUR_EVALUATION],
        ["chat", f"model={root}", "prompt=Once upon a time", "max_tokens=300", "temperature=0.6"],
    ]


def run_all(commands: list[list[str]], before: Callable[[list[str]], None] = lambda command: None) -> int:
    """Run the commands one after the other. Returns the status of the first that fails, or 0.

    ``before`` is called with each one before it starts.
    """
    for command in commands:
        before(command)
        if status := run(command):
            return status
    return 0


def run(step: list[str]) -> int:
    """Run one command to its end. Returns its status as a shell would report it."""
    process = subprocess.Popen([sys.executable, "-m", "slm", *step])

    def forward(number: int, _frame: FrameType | None) -> None:
        # A terminal's Ctrl-C or its end reach the stage as well: it saves and ends, and this process waits for that.
        if number == signal.SIGTERM:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    cli.run(main)
