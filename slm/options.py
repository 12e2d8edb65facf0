"""Every option of a command with its default and its comment, read from the lines of ``configs/``.

``--help`` prints them, and hints name the nearest. The files are read as text: their comments are the description, and
neither YAML nor Hydra need be loaded. What is read is mappings of ``key: value  # comment``, one to a line, as all of
our files are (tests/slm/test_options.py compares with what YAML reads).
"""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from slm.data.errors import nearest

_PACKAGED = Path(__file__).resolve().parent / "configs"
CONFIG_DIR = _PACKAGED if _PACKAGED.is_dir() else _PACKAGED.parents[1] / "configs"
"""Inside this package where slm is installed, next to it in a checkout (see setup.py)."""
INTERNAL = ("facts",)
"""Groups of options that presets set and no person."""
OFTEN = (
    *("preset", "data", "data.files", "budget", "name", "model", "init_from", "runs", "quant", "to"),
    *("train.max_steps", "train.max_minutes", "train.seq_len", "optim.lr", "tokenizer.vocab_size", "resume"),
    *("lora.rank", "tune.lora", "tune.replay", "preference.loss", "train.qat", "eval.text", "tasks", "questions"),
    *("port", "host", "serve.context", "serve.slots", "serve.api_keys", "prompt", "system", "temperature"),
    *("max_tokens", "out"),
)
"""What is asked for most, in this order; a command shows first what it has of them."""
SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learning_rate", "rate", "peak_lr"), ("optim.lr", "tune.lr_scale")),
    **dict.fromkeys(("epochs", "epoch", "num_epochs", "num_train_epochs", "n_epochs", "passes"), ("data.max_epochs",)),
    **dict.fromkeys(
        ("batch_size", "batch", "bs", "per_device_train_batch_size", "train_batch_size", "device_batch_size"),
        ("train.micro_batch", "serve.batch"),
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "gradient_accumulation", "accumulate", "grad_acc", "accum"),
        ("train.grad_accum",),
    ),
    **dict.fromkeys(("steps", "n_steps", "num_steps", "max_iters", "iters", "iterations"), ("train.max_steps",)),
    **dict.fromkeys(("minutes", "max_minutes"), ("minutes", "train.max_minutes")),
    **dict.fromkeys(("time", "hours", "duration", "max_time", "BUDGET"), ("budget",)),
    **dict.fromkeys(("lora", "lora_r", "lora_rank", "adapter", "use_lora", "qlora", "r"), ("tune.lora", "lora.rank")),
    **dict.fromkeys(("target_modules", "lora_targets"), ("lora.targets",)),
    **dict.fromkeys(
        ("seq_length", "sequence_length", "max_seq_length", "max_seq_len", "max_length", "block_size", "cutoff_len"),
        ("train.seq_len", "serve.context", "context"),
    ),
    **dict.fromkeys(
        ("ctx", "n_ctx", "ctx_size", "context_length", "context_size", "num_ctx", "max_model_len"),
        ("serve.context", "context", "train.seq_len"),
    ),
    **dict.fromkeys(("CONFIG", "config", "size", "model_size"), ("preset",)),
    **dict.fromkeys(
        ("QUANT", "quantize", "quantization", "quants", "types", "outtype", "ftype"), ("quant", "train.qat")
    ),
    **dict.fromkeys(("DATA", "dataset", "dataset_name", "train_data", "corpus"), ("data",)),
    **dict.fromkeys(("train_file", "train_files", "files", "file", "data_path", "data_dir"), ("data.files", "data")),
    **dict.fromkeys(
        ("val_file", "validation_file", "val_files", "eval_file", "val_data", "validation"),
        ("data.val_files", "eval.text"),
    ),
    **dict.fromkeys(("text", "text_file"), ("eval.text", "data.files", "data")),
    **dict.fromkeys(("val_split", "val_size", "test_size", "validation_split"), ("data.val_fraction",)),
    **dict.fromkeys(("warmup", "warmup_ratio", "num_warmup_steps"), ("optim.warmup_steps",)),
    **dict.fromkeys(("wd", "decay"), ("optim.weight_decay",)),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"), ("optim.schedule",)),
    **dict.fromkeys(("clip", "max_grad_norm", "gradient_clip"), ("optim.grad_clip",)),
    **dict.fromkeys(("optimizer", "optimiser"), ("optim",)),
    **dict.fromkeys(("save_steps", "save_every", "save_interval"), ("train.checkpoint_every",)),
    **dict.fromkeys(("eval_steps", "eval_interval", "val_every"), ("train.eval_every",)),
    **dict.fromkeys(("save_total_limit",), ("train.keep_last",)),
    **dict.fromkeys(("early_stopping", "early_stopping_patience"), ("train.patience",)),
    **dict.fromkeys(("resume_from_checkpoint", "resume_from"), ("resume",)),
    **dict.fromkeys(("seed", "random_seed"), ("seed", "train.seed", "bench.seed")),
    **dict.fromkeys(("threads", "n_threads", "num_threads"), ("threads", "train.threads", "serve.threads")),
    **dict.fromkeys(("dtype", "fp16", "bf16", "fp32", "mixed_precision", "amp"), ("train.precision",)),
    **dict.fromkeys(("layers", "n_layer", "num_layers", "num_hidden_layers", "depth"), ("model.n_layers",)),
    **dict.fromkeys(("hidden_size", "dim", "n_embd", "width", "d_model", "embed_dim"), ("model.d_model",)),
    **dict.fromkeys(("heads", "n_head", "num_heads", "num_attention_heads"), ("model.n_heads",)),
    **dict.fromkeys(("intermediate_size", "d_ff", "mlp_dim"), ("model.ffn_dim",)),
    **dict.fromkeys(("arch", "architecture", "model_type"), ("model.arch",)),
    **dict.fromkeys(("vocab", "vocab_size", "n_vocab", "vocabulary"), ("tokenizer.vocab_size",)),
    **dict.fromkeys(("output", "output_dir", "out_dir", "output_path"), ("out", "name")),
    **dict.fromkeys(("run_name", "run_id"), ("name",)),
    **dict.fromkeys(("teacher", "distillation"), ("distill.teacher",)),
    **dict.fromkeys(("dpo", "orpo", "loss", "pref_loss"), ("preference.loss",)),
    **dict.fromkeys(("beta",), ("preference.beta",)),
    **dict.fromkeys(("max_new_tokens", "n_predict", "num_predict", "max_tokens"), ("max_tokens", "eval.max_tokens")),
    **dict.fromkeys(("temp",), ("temperature",)),
    **dict.fromkeys(("system_prompt",), ("system",)),
    **dict.fromkeys(("PORT",), ("port",)),
    **dict.fromkeys(("TO", "repo", "repo_id", "hub_model_id"), ("to",)),
    **dict.fromkeys(("NPROC", "nproc_per_node"), ("nproc",)),
    **dict.fromkeys(("TASKS",), ("tasks",)),
    **dict.fromkeys(("RUNS", "runs"), ("runs",)),
    **dict.fromkeys(("api_key", "key", "keys", "api_keys", "token"), ("serve.api_keys",)),
    **dict.fromkeys(("cors", "allow_origins"), ("serve.cors_origins",)),
    **dict.fromkeys(("parallel", "max_num_seqs", "np", "n_parallel"), ("serve.slots",)),
    **dict.fromkeys(("cache_type", "kv_cache_dtype", "cache_type_k", "ctk"), ("serve.kv_type",)),
    **dict.fromkeys(("cache_type_v", "ctv"), ("serve.kv_type_v",)),
    **dict.fromkeys(("gpu_layers", "ngl"), ("serve.n_gpu_layers", "n_gpu_layers")),
    **dict.fromkeys(("draft", "speculative"), ("serve.draft_model",)),
    **dict.fromkeys(("limit", "num_fewshot", "fewshot"), ("harness.num_fewshot",)),
}
"""What other programs, and make's variables, call our options: the first that the command has is offered."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a command."""

    key: str
    """As it is typed: ``train.max_steps``."""
    default: str
    """As the file has it."""
    about: str
    """The comment."""
    choices: tuple[str, ...] = ()
    """Names of the group's files that have this option, if not all have it."""


JSON_OPTION = Option(key="json", default="null", about="true: results as JSON, too; null: where output is no terminal")
"""Every command has it (slm.cli)."""


@dataclass
class _File:
    """One file of ``configs/``."""

    includes: list[str] = field(default_factory=list)
    """Names of files with further options that it has."""
    groups: dict[str, str] = field(default_factory=dict)
    """The choice of each group."""
    options: dict[str, Option] = field(default_factory=dict)


def choices(group: str) -> list[str]:
    """The names a configuration group offers, sorted."""
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def listed(config_name: str) -> list[Option]:
    """Every option of ``configs/<config_name>.yaml``, of the files that it includes and of every file of its groups,
    each once, its own first."""
    found: dict[str, Option] = {}
    for name in _with_included(config_name):
        file = _read(name)
        for key, option in file.options.items():
            if key.split(".")[0] not in INTERNAL:
                found.setdefault(key, option)
        for group, choice in file.groups.items():
            found.setdefault(group, Option(key=group, default=choice, about=_about_group(group)))
            if group != "preset":  # its keys are everybody's
                for option in _of_group(group, choice):
                    found.setdefault(option.key, option)
    return list(found.values())


def _about_group(group: str) -> str:
    """What a group's own word takes."""
    more = {
        "model": "shape of a new model; any other word is a model to start from (init_from)",
        "preset": "or auto, which chooses for a budget",
        "data": "or text: files and folders, with commas",
    }
    return f"one of: {', '.join(choices(group))}" + (f"; {more[group]}" if group in more else "")


def _of_group(group: str, choice: str) -> Iterator[Option]:
    """The options of all files of a group; the default's files first."""
    names = [choice, *(name for name in choices(group) if name != choice)]
    having: dict[str, list[str]] = {}
    first: dict[str, Option] = {}
    for name in names:
        for part in _with_included(f"{group}/{name}"):
            for key, option in _read(part).options.items():
                if key not in having:
                    first[key] = option
                if not first[key].about and option.default == first[key].default:
                    first[key] = option
                if name not in having.setdefault(key, []):
                    having[key].append(name)
    for key, option in first.items():
        only = tuple(having[key]) if len(having[key]) < len(names) else ()
        yield Option(key=f"{group}.{key}", default=option.default, about=option.about, choices=only)


def _with_included(name: str) -> list[str]:
    """The file and those that it includes, theirs last."""
    folder = name.rpartition("/")[0]
    found = [name]
    for each in _read(name).includes:
        found += _with_included(each[1:] if each.startswith("/") else f"{folder}/{each}".lstrip("/"))
    return found


def _read(name: str) -> _File:
    path = CONFIG_DIR / f"{name}.yaml"
    file = _File()
    above: list[str] = []
    stack: list[tuple[int, str]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    head = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    inside = False
    for line in lines[head:]:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not text or text.startswith("#"):
            above = [*above, text.lstrip("# ")] if text else []
        elif text == "defaults:":
            inside = True
        elif inside and text.startswith("- "):
            word = re.split(r"\s+#", text[2:])[0].strip()
            group, sign, choice = (part.strip() for part in word.partition(":"))
            if sign and not group.startswith("override "):
                file.groups[group] = choice
            elif not sign and group != "_self_":
                file.includes.append(group.partition("@")[0])
        elif not text.startswith("- "):
            inside = False
            while stack and stack[-1][0] >= indent:
                stack.pop()
            key, _, rest = text.partition(":")
            value, comment = [*re.split(r"(?:^|\s+)#\s*", rest.strip(), maxsplit=1), ""][:2]
            whole = ".".join([*(name for _, name in stack), key])
            if value:
                about = " ".join([*above, comment]).strip()
                file.options[whole] = Option(key=whole, default=value.strip(), about=about)
            stack.append((indent, key))
            above = []
    return file


def names(config_name: str) -> list[str]:
    """The keys of ``listed``."""
    return [option.key for option in listed(config_name)]


def option_hint(key: str, known: Iterable[str]) -> str:
    """What a person who typed ``key`` may have meant among ``known``: ``did you mean 'optim.lr'?``, or ``""``.

    A synonym comes first; options that presets set alone are never offered.
    """
    offered = [each for each in known if each.split(".")[0] not in INTERNAL]
    group, _, last = key.rpartition(".")
    for word in (key, last):
        meant = [each for each in SYNONYMS.get(word, SYNONYMS.get(word.lower(), ())) if each in offered]
        inside = [each for each in meant if group and each.startswith(f"{group}.")]
        if meant:
            return f"did you mean {(inside or meant)[0]!r}?"
    by_last: dict[str, str] = {}
    for each in offered:
        by_last.setdefault(each.rpartition(".")[2], each)
    if last in by_last:
        return f"did you mean {by_last[last]!r}?"
    # Half the letters in common is chance: dropout would become optim.
    return nearest(key, offered, at_least=0.6) or nearest(last, by_last, at_least=0.6)


def help_width() -> int:
    """Columns of a help text: the terminal's, from 60 to 120."""
    return max(60, min(shutil.get_terminal_size((80, 24)).columns, 120))


def show(config_name: str, *, wanted: str = "", renamed: dict[str, str] | None = None) -> str:
    """The options as text, in the terminal's width: those asked for most first, the others by their groups.

    ``wanted``: only those with this in their name or description. ``renamed``: keys that the command calls otherwise,
    which then hide an option that has this name.
    """
    options = [
        replace(each, key=renamed[each.key]) if renamed and each.key in renamed else each
        for each in listed(config_name)
        if not renamed or each.key not in renamed.values()
    ]
    if wanted:
        options = [each for each in options if wanted.lower() in f"{each.key} {each.about}".lower()]
        if not options:
            near = option_hint(wanted, names(config_name))
            return f"no option has {wanted!r} in its name or description; {near or 'slm COMMAND --help lists all'}"
    often = sorted((each for each in options if each.key in OFTEN), key=lambda each: OFTEN.index(each.key))
    often = [] if wanted else often
    sections: dict[str, list[Option]] = {"Most used": often} if often else {}
    for each in options:
        if each not in often:
            group = each.key.partition(".")[0] if "." in each.key else ""
            sections.setdefault(group, []).append(each)
    width = help_width()
    if not wanted:
        sections[""] = [*sections.get("", []), JSON_OPTION]
    lines = []
    for title, members in sections.items():
        if not members:
            continue
        lines += ["", f"{title or ('More' if often else 'Options')}:"]
        for each in members:
            lines += _lines(each, width)
    return "\n".join(lines[1:])


def _lines(option: Option, width: int) -> list[str]:
    """``  key=default    description``, wrapped; the description below where the first part is long."""
    column = 32
    left = f"  {option.key}={option.default}"
    about = option.about
    if option.choices:
        group = option.key.partition(".")[0]
        about = f"{about} " if about else ""
        about += f"({group}={'|'.join(option.choices)})"
    if len(left) > width:
        left = f"  {option.key}=..."
    wrapped = textwrap.wrap(about, width - column, break_on_hyphens=False) if about else []
    if len(left) < column and wrapped:
        return [f"{left:<{column}}{wrapped[0]}", *(" " * column + line for line in wrapped[1:])]
    return [left, *(" " * column + line for line in wrapped)]
