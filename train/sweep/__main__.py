"""``python -m slm.train.sweep``: a grid of small runs, the losers stopped early, the best settings as a command."""

from slm import cli
from slm.train.sweep.sweep import main

if __name__ == "__main__":
    cli.run(main)
