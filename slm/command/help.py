"""What ``slm --help`` and ``slm COMMAND --help`` print.

Tested in tests/slm/command/test_main.py.
"""

import textwrap

from slm.command.table import COMMANDS
from slm.options import help_width, show

WORDS = {
    "preset": "PRESET",
    "model": "MODEL",
    "local": "TEXT ...",
    "chat": "CONVERSATIONS ...",
    "questions": "QUESTIONS ...",
    "text": "TEXT",
    "quant": "TYPE ...",
    "type": "TYPE",
    "repository": "ORG/NAME",
    "prompt": "'PROMPT'",
    "out": "FOLDER",
}
"""How a usage line names the kinds of ``Command.bare``."""
COMPLETION = """usage: slm completion bash|zsh|fish

Prints a script that completes commands, options, presets and file names:

  bash   source <(slm completion bash)              in ~/.bashrc
  zsh    source <(slm completion zsh)               in ~/.zshrc, after compinit
  fish   slm completion fish > ~/.config/fish/completions/slm.fish"""


def overview(version: str) -> str:
    """The list of commands."""
    listed = [_entry(name, command.summary) for name, command in COMMANDS.items()]
    listed.append(_entry("completion", "print completion for bash, zsh or fish"))
    about = (
        "Words are what one means: text, a model, a preset, a type. Options are key=value words. slm COMMAND --help "
        "lists a command's options with examples. Runs are in runs/ of the current folder, a run's name is enough to "
        "name one, and latest is the newest of them."
    )
    return "\n".join(
        [
            f"slm {version}: from raw text to a served language model on a CPU",
            "\nusage: slm COMMAND [WORD ...] [key=value ...]\n",
            *listed,
            "",
            *textwrap.wrap(about, help_width()),
            "",
            "  slm train notes/ name=mine budget=1h",
            "  slm tune mine chats.csv",
            "  slm export mine-chat q4_k_m",
            "  slm serve mine-chat port=8080",
        ]
    )


def _entry(name: str, summary: str) -> str:
    """A command's line; what does not fit goes below."""
    lines = textwrap.wrap(summary, help_width() - 16, break_on_hyphens=False)
    return f"  {name:<13} " + f"\n{' ' * 16}".join(lines)


def print_command(name: str, wanted: str = "") -> None:
    """Print a sub-command's usage, its examples and all its options; with ``wanted`` the options that have it in their
    name or description."""
    command = COMMANDS[name]
    # In training `model` is a group, too, the shape of a new model, and keeps its line.
    renamed = {command.model_key: "model"} if command.model_key in ("run", "runs", "base") else {}
    if wanted:
        print(show(command.config, wanted=wanted, renamed=renamed))
        return
    bare = "".join(f" [{WORDS[kind]}]" for kind in command.bare)
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    print(f"usage: slm {name}{bare} [key=value ...]\n\n{textwrap.fill(summary, help_width())}\n\nExamples:")
    for words, about in command.examples:
        print(f"  slm {name} {words}".rstrip())
        print(textwrap.fill(about, help_width(), initial_indent=" " * 6, subsequent_indent=" " * 6))
    if command.defaults:
        print(f"\nWithout these words, slm {name} adds: {' '.join(command.defaults)}")
    print(f"\nOptions of configs/{command.config}.yaml (slm {name} help=WORD: some of them)\n")
    print(show(command.config, renamed=renamed))
