"""``python -m slm``: the command ``slm`` from a checkout."""

from slm import cli
from slm.command.main import main

if __name__ == "__main__":
    cli.run(main)
