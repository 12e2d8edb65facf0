"""``slm checkpoint FILE FOLDER``: a GGUF file as a Hugging Face model directory.

Tested in tests/slm/command/test_checkpoint.py.
"""

from dataclasses import dataclass
from pathlib import Path

from slm import cli
from slm.configuration import load
from slm.data.errors import UserError
from slm.hub import models
from slm.report import final_json


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """configs/checkpoint.yaml."""

    model: str | None = None
    """A GGUF file, by its path or by its name in a store or on the Hub."""
    out: Path | None = None
    """The folder to write."""


def main(argv: list[str]) -> int:
    """Write the folder. Returns the exit status."""
    config = load(CheckpointConfig, "checkpoint", argv, literal=("model", "out"))
    if config.model is None or config.out is None:
        raise UserError("name a GGUF file and a folder to write: `slm checkpoint model.gguf folder`")
    file = models.gguf_file(config.model)
    if file is None:
        raise UserError(
            f"{config.model} is no GGUF file: give the path of one, ollama:NAME, lmstudio:NAME or org/name:TYPE"
        )
    from slm.from_gguf.convert import convert

    record = convert(file.path, config.out)
    print(f"wrote {config.out}\nnext: {cli.spelled('tune', model=config.out)}")
    final_json({"out": str(config.out), **record})
    return 0


if __name__ == "__main__":
    cli.run(main)
