"""``slm demo-chat [key=value ...]``: the demo's model is tuned, so that it answers, and is asked questions.

The words go to the tuning.
"""

from pathlib import Path

from data.chat.story_chat import exam
from data.errors import UserError
from slm import cli
from slm.command.demo import run

BASE = "runs/demo"
OUR_WORDS = (f"base={BASE}", "name=demo-chat", "train.max_minutes=5", "train.max_steps=4000", "train.micro_batch=2")
QUESTIONS = 60


def main(argv: list[str]) -> int:
    """Run the stages one after the other. Returns the status of the first that fails, or 0."""
    given = {word.partition("=")[0] for word in argv}
    words = [word for word in OUR_WORDS if word.partition("=")[0] not in given] + argv
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if not Path(values["base"]).exists():
        raise UserError(f"{values['base']} does not exist: run `{cli.spelled('demo')}` first, or give base=")
    root = Path(values.get("runs_dir", "runs")) / values["name"]
    for step in steps(words, root):
        if step[0] == "chat":
            print(f"\n{step[2].removeprefix('prompt=')}\n", flush=True)
        status = run(step)
        if status:
            return status
    print(f"\nThe model answers and stops by itself. Next: {cli.spelled('chat', model=root)}")
    return 0


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
