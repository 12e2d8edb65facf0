"""``python -m serve.bench``."""

from serve.bench.bench import main
from slm import cli

if __name__ == "__main__":
    cli.run(main)
