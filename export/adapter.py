"""The adapter of a run that trained one: its GGUF file, and the proof that it gives the merged model.

The base is written as f32 for the proof, the adapter is loaded on it in llama.cpp, and the two together must give the
logits and the perplexity of the merged checkpoint, as an f32 export must.

Tested in tests/export/test_adapter.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slm.export.gguf.adapter import write_adapter
from slm.export.gguf.writer import write_gguf
from slm.export.proof import Comparison, Proof
from slm.export.source import Source, open_model
from slm.export.staging import Staging
from slm.model import lora
from slm.model.fingerprint import fingerprint
from slm.model.layers.held import Values
from slm.model.lora import Adapter
from slm.model.transformer import LanguageModel

BASE_FOLDER = "base"
"""The folder of a run that holds its adapter's base, where no other directory does."""


@dataclass(frozen=True, kw_only=True)
class AdapterSource:
    """An adapter and its base: the directory, and the model in it."""

    adapter: Adapter
    base: Path
    model: LanguageModel


def open_adapter(source: Source, log: Callable[[str], None]) -> AdapterSource | None:
    """The adapter of the checkpoint; None where it has none, or (with a warning) where its base is not there, or has
    changed."""
    folder = source.checkpoint / lora.FOLDER
    if not lora.is_adapter(folder):
        return None
    adapter = lora.read(folder)
    own = source.run.root / BASE_FOLDER
    base = own if own.is_dir() else Path(adapter.base)
    if not (base / "config.json").is_file():
        log(f"warning: the adapter's base {adapter.base} is not there: no adapter file, only the merged model")
        return None
    model = open_model(base, as_stored=True)
    if adapter.base_fingerprint not in ("", found := fingerprint(Values(model))):
        log(
            f"warning: {base} holds another model than the adapter was trained on (fingerprint {found}, not "
            f"{adapter.base_fingerprint}): no adapter file, only the merged model; restore what it held"
        )
        return None
    return AdapterSource(adapter=adapter, base=base, model=model)


def write_proven(
    source: Source, found: AdapterSource, staging: Staging, proof: Proof, log: Callable[[str], None]
) -> tuple[Path, Comparison]:
    """Write the adapter's file, and compare base and adapter together with the checkpoint."""
    path = staging.path(source.identity.adapter_name("f32"))
    log(f"writing the adapter (rank {found.adapter.rank}); comparing it on its base {found.base}")
    write_adapter(
        path, model=source.model.config, adapter=found.adapter, identity=source.identity, record=source.record
    )
    base_path = staging.path("base-of-the-adapter.gguf")
    write_gguf(
        base_path,
        "f32",
        model=found.model.config,
        weights=Values(found.model),
        vocab=source.vocab,
        identity=source.identity,
        record=source.record,
    )
    compared = proof.compare(base_path, "f32", adapter=path)
    base_path.unlink()
    return path, compared
