"""``python -m export.bench``."""

from export.bench.sweep import main
from slm import cli

if __name__ == "__main__":
    cli.run(main)
