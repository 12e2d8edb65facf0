"""``slm demo-chat [key=value ...]``: the demo's model is tuned, so that it answers, and is asked questions.

The words go to the tuning.
"""

from pathlib import Path

from slm import cli
from slm.command.demo import own_words, run_all, unquoted
from slm.data.chat.story_chat import exam
from slm.data.errors import UserError
from slm.hub.name import hub_name
from slm.runs import place

BASE = "runs/demo"
OUR_WORDS = (f"base={BASE}", "name=demo-chat", "train.max_minutes=5", "train.max_steps=4000", "train.micro_batch=2")
QUESTIONS = 60


def main(argv: list[str]) -> int:
    """Run the stages one after the other. Returns the status of the first that fails, or 0."""
    words, root = own_words(OUR_WORDS, argv)
    base = unquoted([word.removeprefix("base=") for word in words if word.startswith("base=")][-1])
    if hub_name(base) is None and not place(base).exists():
        raise UserError(f"{base} does not exist: run `{cli.spelled('demo')}` first, or give model=")
    if status := run_all(steps(words, root), _show_question):
        return status
    print(f"\nThe model answers and stops by itself. Next: {cli.spelled('chat', model=root)}")
    return 0


def _show_question(command: list[str]) -> None:
    if command[0] == "chat":
        print(f"\n{command[2].removeprefix('prompt=')}\n", flush=True)


def steps(words: list[str], root: Path) -> list[list[str]]:
    """The command lines, without ``slm``."""
    question = exam(1, seed=7)[0].messages[0]["content"]
    return [
        ["tune", *words],
        ["export", f"run={root}", "quant=q4_k_m"],
        ["exam", f"run={root}", f"questions={QUESTIONS}", "checkpoint=false"],
        ["chat", f"model={root}", f"prompt={question}", "max_tokens=64", "temperature=0"],
    ]


if __name__ == "__main__":
    cli.run(main)
