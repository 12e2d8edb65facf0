"""The model card of a published run: what it is, what it was trained on, its figures with their definitions, and how to
run it. Everything in it comes from the run's own files.

Tested in tests/slm/hub/test_publish.py.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slm.data.errors import UserError, one_line
from slm.exported import MODELFILE, RECORD_FILE
from slm.hub.name import cached_name
from slm.report import change_text, perplexity_text, size
from slm.runs import Run, checkpoint_step, saved_config

MARK = "<!-- Written by slm publish. Remove this line to keep your changes: the file is then left as it is. -->"
TAGS = ("slm", "gguf", "llama.cpp")
"""The last two are of GGUF files."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the card says; empty dictionaries where the run does not have the file."""

    repo: str
    """``org/name``."""
    title: str
    model: dict[str, Any]
    """config.json."""
    config: dict[str, Any]
    """config.yaml: the run's resolved configuration."""
    state: dict[str, Any]
    """trainer_state.json."""
    export: dict[str, Any]
    """export.json."""
    n_params: int
    license: str | None
    base: str | None
    """The Hub's name of the model that a tuned run began from, or that the files were made of."""
    chat: bool
    """Whether the tokenizer has a chat template."""
    ggufs: list[str] = field(default_factory=list)
    """Names of the published GGUF files."""
    checkpoint: bool = True
    modelfile: bool = False
    """Whether Ollama's Modelfile is published."""


def read_facts(
    run: Run, checkpoint: Path, repo: str, *, license: str | None, ggufs: list[Path], weights: bool, modelfile: bool
) -> Facts:
    """The facts in the files of a run. ``ggufs``, ``weights``, ``modelfile``: what will be published."""
    from safetensors import safe_open

    def read(path: Path) -> dict[str, Any]:
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({one_line(error)}): bring back the file as it was") from error

    n_params = 0
    for file in sorted(checkpoint.glob("*.safetensors")):
        if file.name.startswith("model"):
            with safe_open(file, framework="np") as tensors:
                shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
                n_params += sum(_product(shape) for shape in shapes)
    settings, export = read(checkpoint / "tokenizer_config.json"), read(run.gguf_dir / RECORD_FILE)
    if ggufs and export.get("checkpoint", checkpoint.name) != checkpoint.name:
        print(
            f"note: the exported files are of {export['checkpoint']}, and this is {checkpoint.name}: the card leaves "
            "their figures out"
        )
        export = {}
    return Facts(
        repo=repo,
        title=repo.partition("/")[2],
        model=read(checkpoint / "config.json"),
        config=saved_config(run.root),
        state=read(checkpoint / "trainer_state.json"),
        export=export,
        n_params=n_params,
        license=license,
        base=cached_name(saved_config(run.root).get("init_from") or checkpoint),
        chat=bool(settings.get("chat_template")) or (checkpoint / "chat_template.jinja").is_file(),
        ggufs=[path.name for path in ggufs],
        checkpoint=weights,
        modelfile=modelfile,
    )


def write_card(facts: Facts) -> str:
    """The card as Markdown with its YAML header."""
    parts = [_header(facts), MARK, f"# {facts.title}", _what(facts), _data(facts), _training(facts), _figures(facts)]
    parts += [_files(facts), _usage(facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(facts: Facts) -> str:
    import yaml

    header: dict[str, Any] = {"license": facts.license} if facts.license else {}
    tags = [*TAGS[:1], *(TAGS[1:] if facts.ggufs else ()), *(["conversational"] if facts.chat else ())]
    header |= {"pipeline_tag": "text-generation", "tags": tags}
    if facts.checkpoint:
        header["library_name"] = "transformers"
    if facts.base:
        header["base_model"] = facts.base
        header["base_model_relation"] = "finetune" if facts.config else "quantized"
    return f"---\n{yaml.safe_dump(header, sort_keys=False).strip()}\n---"


def _what(facts: Facts) -> str:
    m = facts.model
    kind = "A chat model" if facts.chat else "A base model that continues text"
    layers, width, context = (m.get(key) for key in ("num_hidden_layers", "hidden_size", "max_position_embeddings"))
    lines = [
        f"{kind}, trained with slm on a CPU." if facts.config else f"{kind}.",
        "",
        "| | |",
        "|---|---|",
        f"| parameters | {facts.n_params:,} |",
        f"| architecture | {', '.join(m.get('architectures') or [str(m.get('model_type'))])} |",
        f"| layers, width | {layers}, {width} |",
        f"| vocabulary | {m.get('vocab_size', 0):,} token ids |",
        f"| context | {context:,} tokens |" if context else "",
        f"| licence | {facts.license or 'not stated'} |",
    ]
    if facts.base:
        lines.append(f"| {'started from' if facts.config else 'made of'} | {facts.base} |")
    return "\n".join(line for number, line in enumerate(lines) if line or number == 1)


def _data(facts: Facts) -> str:
    data = facts.config.get("data")
    if not data:
        return ""
    lines = ["## Data", ""]
    for source in data.get("sources") or [data]:
        # A card is public: what a person's files are called stays out of it, as out of the exported files.
        files = len(source.get("files") or [])
        origin = source.get("path") or (f"{files} file{'' if files == 1 else 's'} of the author's" if files else "")
        origin = Path(origin).name if str(origin).startswith(("/", "~", ".")) else origin
        subset = f" ({source['subset']})" if source.get("subset") else ""
        name = source.get("name") or source.get("kind")
        lines.append(f"- {name}" + (f": {origin}{subset}" if origin and origin != name else ""))
    share = data.get("val_fraction")
    if share and not all(each.get("val_split") or each.get("val_files") for each in data.get("sources") or [data]):
        of = " of sources without a separate validation text" if data.get("sources") else ""
        lines += ["", f"A share of {share:g} of the documents{of} was held out for validation."]
    return "\n".join(lines)


def _training(facts: Facts) -> str:
    train, optim, state = facts.config.get("train"), facts.config.get("optim", {}), facts.state
    if not train:
        return ""
    bags = any((each.get("bags") or 1) > 1 for each in train.get("phases") or ())
    rows = {
        "optimizer steps": f"{state['step']:,}" if "step" in state else None,
        # A bag of several tokens takes one position.
        "training positions" if bags else "training tokens": (f"{state['tokens']:,}" if "tokens" in state else None),
        "time of training": f"{state['elapsed_s'] / 60:,.1f} minutes" if "elapsed_s" in state else None,
        "tokens per step": f"{train['seq_len'] * train['micro_batch'] * train['grad_accum']:,}",
        "sequence length": f"{train['seq_len']:,} tokens",
        "optimizer": f"{optim.get('name')}, peak learning rate {optim.get('lr')}",
        "seed": train.get("seed"),
        "number format": (state.get("rounding") or {}).get("precision"),
        "low-rank adapter (merged)": (facts.config.get("lora") or {}).get("rank") or None,
        "trained for the quantized type": train.get("qat"),
    }
    lines = ["## Training", "", "| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items() if value is not None)])


def _figures(facts: Facts) -> str:
    validation = facts.state.get("validation") or {}
    lines = ["## Figures", ""]
    preference = (facts.config.get("preference") or {}).get("loss")
    data = facts.config.get("data") or {}
    validated = [each for each in data.get("sources") or [data] if each.get("validated", True)]
    chats = bool(validated) and all(each.get("kind") in ("chat", "story_chat") for each in validated)
    text = "the chosen answers" if preference else "the held-out answers" if chats else "the held-out text"
    if validation.get("val_loss") is not None:
        what = (
            f"the mean {preference.upper()} loss of the held-out pairs of answers, in nats per pair"
            if preference
            else f"the mean of -ln(probability) of each token of {text}, in nats per token"
        )
        lines += [f"- validation loss {validation['val_loss']:.4f}: {what}"]
    if validation.get("val_bits_per_byte") is not None:
        lines += [
            f"- validation {validation['val_bits_per_byte']:.4f} bits per byte: the bits spent on the ordinary tokens "
            f"of {text} over the UTF-8 bytes that they stand for; it does not depend on the tokenizer",
        ]
    rows = [each for each in facts.export.get("files", []) if each["file"] in facts.ggufs]
    if rows:
        n_ctx, tokens = facts.export.get("n_ctx"), facts.export.get("tokens")
        lines += [""] if len(lines) > 2 else []
        lines += ["| file | MB | bits per weight | perplexity | change | KL, nats | same top token |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| checkpoint | | | {perplexity_text(facts.export['checkpoint_perplexity'])} | | | |",
            *(
                f"| {each['file']} | {each['size_mb']:.2f} | {each['bits_per_weight']:.2f} | "
                f"{perplexity_text(each['perplexity'])} | "
                f"{change_text(each['perplexity_change'], each.get('perplexity_change_stderr'))} | {each['kl']:.2g} | "
                f"{each['same_top']:.1%} |"
                for each in rows
            ),
            "",
            f"Perplexity: llama.cpp's definition (the second half of each window of {n_ctx} tokens is scored), "
            f"{tokens:,} tokens of {facts.export.get('text')}. Change: against the checkpoint, with its standard "
            "error. KL: the mean divergence of the file's predictions from the checkpoint's. Same top token: how often "
            "both find the same token likeliest. MB: 1,000,000 bytes.",
        ]
    return "\n".join(lines) if len(lines) > 2 else ""


def _files(facts: Facts) -> str:
    machine = facts.export.get("machine") or {}
    if not machine:
        return ""
    memory = f"{machine['memory_gib']} GiB of memory"
    return f"Measured on {machine['cpu']}, {machine['cores']} cores, {memory}, {machine['system']}."


def _usage(facts: Facts) -> str:
    prompt = "Hello!" if facts.chat else "Once upon a time"
    # A chat model's template is applied to messages only; a plain text would be continued.
    said = json.dumps([{"role": "user", "content": prompt}] if facts.chat else prompt)
    lines = ["## Run it"]
    if facts.ggufs:
        quant = _quants(facts.ggufs)[0]
        file = next(each for each in facts.ggufs if each.removesuffix(".gguf").endswith(quant))
        # Other programs know the usual types alone by their names: a file of chosen types is named whole.
        usual = "-auto" not in file
        which = f"-hf {facts.repo}:{quant}" if usual else f"-hf {facts.repo} --hf-file {file}"
        lines += [
            f"llama.cpp:\n\n    llama-cli {which} -p {json.dumps(prompt)}",
            f"Ollama:\n\n    ollama run hf.co/{facts.repo}:{quant if usual else file}"
            + (f"\n\nor, with the chat template of the `{MODELFILE}`:\n\n{_ollama(facts)}" if facts.modelfile else ""),
            f"slm, in a terminal and as a server with OpenAI's API:\n\n    slm chat model={facts.repo}:{quant}\n"
            f"    slm serve model={facts.repo}:{quant}",
        ]
    if facts.checkpoint:
        lines += [
            "transformers:\n\n    from transformers import pipeline\n\n"
            f'    print(pipeline("text-generation", "{facts.repo}")({said}))',
            f"Train it further with slm:\n\n    slm tune base={facts.repo} data=chat 'data.files=[chats.jsonl]'",
        ]
    return "\n\n".join(lines)


def _ollama(facts: Facts) -> str:
    """The commands that make Ollama's model from the Modelfile."""
    download = f"hf download {facts.repo} --include '*.gguf' {MODELFILE} --local-dir {facts.title}"
    return f"    {download}\n    cd {facts.title} && ollama create {facts.title} -f {MODELFILE}"


def _quants(names: list[str]) -> list[str]:
    """The types in the names of GGUF files, the usual one first."""
    found = [name.removesuffix(".gguf").rpartition("-")[2] for name in names]
    return sorted(found, key=lambda each: (each.lower() != "q4_k_m", each.lower() != "q8_0", found.index(each)))


def _product(shape: list[int]) -> int:
    total = 1
    for each in shape:
        total *= each
    return total


def commit_message(run: Run, checkpoint: Path) -> str:
    """What the commit is called where the person does not say."""
    try:
        return f"{run.name}, step {checkpoint_step(checkpoint):,}"
    except ValueError:
        return run.name


def summary(paths: dict[str, Path]) -> str:
    """How many files, and their size."""
    total = sum(path.stat().st_size for path in paths.values())
    return f"{len(paths)} files, {size(total)}"
