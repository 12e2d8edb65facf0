"""``python -m slm.evaluate.exam``."""

from slm import cli
from slm.evaluate.exam.command import main
from slm.llama.verdict import crash_advice
from slm.machine.crash_guard import guarded

if __name__ == "__main__":
    cli.run(lambda argv: guarded(lambda: main(argv), advice=crash_advice))
