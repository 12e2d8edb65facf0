"""What ``slm --help`` and ``slm COMMAND --help`` print.

Tested in tests/slm/command/test_main.py.
"""

from slm.command.table import COMMANDS
from slm.configuration import print_help

COMPLETION = """usage: slm completion bash|zsh|fish

Prints a script that completes commands, options, presets and file names:

  bash   source <(slm completion bash)                          in ~/.bashrc
  zsh    source <(slm completion zsh)                           in ~/.zshrc, after compinit
  fish   slm completion fish > ~/.config/fish/completions/slm.fish"""


def overview(version: str) -> str:
    """The list of commands."""
    listed = "\n".join(f"  {name:<13} {command.summary}" for name, command in COMMANDS.items())
    return f"""slm {version}: from raw text to a served language model on a CPU

usage: slm COMMAND [key=value ...]

{listed}
  completion    print completion for bash, zsh or fish

Options are key=value words. slm COMMAND --help lists a command's options with examples. Runs are in runs/ of the
current folder, and runs/latest is the newest of them.

  slm train preset=10m name=mine data=local 'data.files=[notes/*.md]'
  slm export run=runs/mine quant=q4_k_m
  slm serve model=runs/mine port=8080"""


def print_command(name: str) -> None:
    """Print a sub-command's usage, its examples and all its options."""
    command = COMMANDS[name]
    print(f"usage: slm {name} [key=value ...]\n\n{command.summary[0].upper()}{command.summary[1:]}.\n\nExamples:")
    for words, about in command.examples:
        print(f"  slm {name} {words}".rstrip())
        print(f"      {about}")
    if command.defaults:
        print(f"\nWithout these words, slm {name} adds: {' '.join(command.defaults)}")
    print()
    print_help(command.config)
