"""``python -m slm.train.bench_recipe``: equal wall clock for everybody, from the start of a process."""

from slm import cli
from slm.train.bench_recipe.bench import main

if __name__ == "__main__":
    cli.run(main)
