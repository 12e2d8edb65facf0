"""``python -m slm.evaluate``."""

from slm import cli
from slm.evaluate.evaluate import main

if __name__ == "__main__":
    cli.run(main)
