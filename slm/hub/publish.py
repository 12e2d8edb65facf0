"""``python -m slm.hub.publish run=runs/mine to=org/name [dry_run=false]``: a run to the Hugging Face Hub.

Checkpoint, GGUF files and a model card. Without ``dry_run=false`` nothing is uploaded: what would go up is shown, and
the card is written to the run, where it can be read and changed first.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm import cli, runs
from slm.configuration import load
from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.exported import MODELFILE, damage, recorded_sums, shown, stale_lines
from slm.hub import card, models
from slm.hub.errors import host, hub_errors
from slm.hub.name import hub_name, valid_repo
from slm.llama.gguf_check import read_header
from slm.report import final_json, size, table

CARD = "README.md"
_CHECKPOINT = (
    *("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "qat.json"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "chat_template.jinja"),
    *("vocab.json", "merges.txt", "added_tokens.json"),
)
"""What of a checkpoint goes up: not the optimizer's state."""


@dataclass(frozen=True, kw_only=True)
class PublishConfig:
    """configs/publish.yaml."""

    run: Path = Path("runs/latest")
    """A run, or one of its checkpoints."""
    to: str | None = None
    """``org/name`` on the Hub."""
    dry_run: bool = True
    """Upload nothing."""
    private: bool = False
    """A repository that is made is private."""
    revision: str | None = None
    """The branch to commit to; None: main."""
    license: str | None = None
    """SPDX name for the card; None: what the exported files say."""
    checkpoint: bool = True
    """Upload the checkpoint."""
    gguf: bool = True
    """Upload the exported files."""
    message: str | None = None
    """Message of the commit; None: the run and its step."""

    def __post_init__(self) -> None:
        if not self.checkpoint and not self.gguf:
            raise UserError("checkpoint=false gguf=false leaves nothing to publish: leave one of them true")
        if self.to is not None and not valid_repo(self.to):
            raise UserError(f"to={self.to} is no name on the Hub: write org/name (letters, digits and . _ -)")


def main(argv: list[str]) -> int:
    """Show what would go up and write the card; upload with ``dry_run=false``. Returns the exit status."""
    config = load(PublishConfig, "publish", argv, literal=("run", "to"))
    if config.to is None:
        if hub_name(config.run) is None:
            models.resolve(config.run)  # what is wrong with it is said first
        raise UserError(f"to= is missing: `{cli.spelled('publish', run=config.run, to='org/name')}`")
    run = models.resolve(config.run)
    if not run.is_hf and not run.checkpoints() and run.ggufs():
        raise UserError(
            f"{shown(run.root)} holds exported files only, and the model card needs their model: name the run, or the "
            "model on the Hub that they were made of (run=org/name)"
        )
    checkpoint = run.checkpoint()
    if line := run.choice_line():
        print(line)
    files, ggufs = collect(config, run, checkpoint)
    for line in stale_lines(ggufs):
        print(line)
    card_path = write_card(config, run, checkpoint, ggufs, for_ollama=MODELFILE in files)
    files = {CARD: card_path, **files}
    rows = [[name, size(path.stat().st_size), shown(path)] for name, path in files.items()]
    table(f"{shown(run.root)} to {config.to} on {host()}", ["file", "size", "from"], rows, caption=card.summary(files))
    record: dict[str, Any] = {"to": config.to, "dry_run": config.dry_run, "card": str(card_path)}
    record |= {"files": {name: path.stat().st_size for name, path in files.items()}}
    if config.dry_run:
        more = cli.spelled("publish", run=config.run, to=config.to, dry_run="false")
        print(f"nothing was uploaded; read {shown(card_path)}\nnext: {more}")
    else:
        record["url"] = upload(config, files, card.commit_message(run, checkpoint))
        print(f"published: {record['url']}\nnext: {cli.spelled('serve', model=config.to)}")
    final_json(record)
    return 0


def collect(config: PublishConfig, run: runs.Run, checkpoint: Path) -> tuple[dict[str, Path], list[Path]]:
    """What goes up, by its name in the repository, and the GGUF files of it. ``UserError`` for a damaged file."""
    files: dict[str, Path] = {}
    if config.checkpoint:
        names = [*_CHECKPOINT, *(path.name for path in sorted(checkpoint.glob("model-*-of-*.safetensors")))]
        files |= {name: checkpoint / name for name in names if (checkpoint / name).is_file()}
        if not any(name.endswith(".safetensors") for name in files):
            raise UserError(
                f"{checkpoint} holds no model.safetensors: name a run with a checkpoint, or checkpoint=false"
            )
    ggufs: list[Path] = []
    if config.gguf:
        ggufs = [*run.ggufs(), *run.adapters()]
        sums = recorded_sums(run.gguf_dir)
        for path in ggufs:
            if path.name in sums and (fault := damage(path, sums[path.name])):
                raise UserError(fault)
        files |= {path.name: path for path in ggufs} | modelfile(run, ggufs)
        if not ggufs:
            advice = cli.spelled("export", run=config.run if run.is_hf else shown(run.root))
            if not config.checkpoint:
                raise UserError(f"{shown(run.root)} has no exported model yet; run `{advice}` first")
            print(f"note: there is no GGUF file to publish; `{advice}` makes one")
    return files, ggufs


def modelfile(run: runs.Run, ggufs: list[Path]) -> dict[str, Path]:
    """Ollama's Modelfile of the run, by its name, where the file that it is made from goes up, too."""
    path = run.gguf_dir / MODELFILE
    if not path.is_file():
        return {}
    source = re.search(r"^FROM\s+(?:\./)?(.+?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if source is None or source[1] not in {each.name for each in ggufs}:
        print(f"note: {shown(path)} stays here: it is not made FROM one of the files that go up")
        return {}
    return {MODELFILE: path}


def write_card(config: PublishConfig, run: runs.Run, checkpoint: Path, ggufs: list[Path], *, for_ollama: bool) -> Path:
    """The card's path, in the run's folder. A card that a person has taken over is left as it is."""
    assert config.to is not None
    path = run.root / CARD
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and card.MARK not in path.read_text(encoding="utf-8", errors="replace"):
        print(f"note: {shown(path)} is yours and goes up as it is (a new one is written where there is none)")
        return path
    whole = [each for each in ggufs if not runs.is_adapter(each)]
    facts = card.read_facts(
        run,
        checkpoint,
        config.to,
        license=config.license or licence_of(whole),
        ggufs=whole,
        weights=config.checkpoint,
        modelfile=for_ollama,
    )
    atomic_write_text(path, card.write_card(facts))
    return path


def licence_of(ggufs: list[Path]) -> str | None:
    """The licence that the exported files name."""
    for path in ggufs:
        if found := read_header(path).metadata.get("general.license"):
            return str(found)
    return None


def upload(config: PublishConfig, files: dict[str, Path], message: str) -> str:
    """Make the repository where there is none, and commit the files in one go; returns the repository's address."""
    from huggingface_hub import HfApi, constants

    assert config.to is not None
    api = HfApi()
    with (
        tempfile.TemporaryDirectory(prefix="slm-publish-") as folder,
        hub_errors(config.to, config.revision, upload=True),
    ):
        for name, path in files.items():
            (Path(folder) / name).symlink_to(path.resolve())
        api.create_repo(config.to, private=config.private, exist_ok=True)
        if config.revision:
            api.create_branch(config.to, branch=config.revision, exist_ok=True)
        api.upload_folder(
            repo_id=config.to,
            folder_path=folder,
            revision=config.revision,
            commit_message=config.message or message,
        )
    return f"{constants.ENDPOINT}/{config.to}"


if __name__ == "__main__":
    cli.run(main)
