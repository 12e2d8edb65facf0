"""What the words of a command line mean: bare words, and the names that one option has.

``slm tune mine chats.csv`` becomes ``base=mine data=chat data.files=['chats.csv']``: the words that the command's
module takes. A bare word is a preset, a model, text or a type, by what there is on this machine and by what the command
can use (``Command.bare``); one that means nothing is refused. A model is ``model=`` in every command, and ``run=``,
``base=`` and ``init_from=`` mean the same.

It reads no file and loads no library: ``slm`` calls it before anything else.
"""

import glob
import os
import re
from pathlib import Path

from slm import runs
from slm.command.table import COMMANDS, Command
from slm.configuration import items, quoted
from slm.data.errors import UserError, nearest
from slm.from_gguf import stores
from slm.hub.name import hub_name, valid_repo
from slm.options import choices
from slm.own_data import is_description

MODEL_NAMES = ("model", "run", "base", "init_from", "MODEL", "RUN")
"""Keys that name a model."""
WIKITEXT = "wikitext"
"""In place of a text file: WikiText-2's raw test set."""
_OF_FILES = ("local", "chat", "questions", "text")
"""Kinds of words that name files."""
_KEY = re.compile(r"[+]*[A-Za-z_][\w.@-]*")
_TYPE = re.compile(r"(?:bf16|f16|f32|i?q\d\w*|tq\d\w*|mxfp4\w*|auto(?::\S+)?)", re.IGNORECASE)
_TIME = re.compile(r"\d+(?:\.\d+)?[smhd]")
_WHAT = {
    "preset": "preset",
    "model": "run, model",
    "local": "file, folder, data set",
    "chat": "file, folder, data set",
    "questions": "file",
    "text": "text file",
    "quant": "quantization type",
    "type": "quantization type",
    "repository": "repository",
    "prompt": "prompt in quotes",
    "out": "folder to write",
}


def read(name: str, words: list[str]) -> list[str]:
    """The ``key=value`` words of a sub-command's module. ``UserError`` for a word that means nothing to it."""
    reader = _Reader(name)
    for word in words:
        reader.add(word)
    return reader.words()


class _Reader:
    """The words of one command line, sorted by what they mean."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.command: Command = COMMANDS[name]
        self.given: list[str] = []
        self.models: list[str] = []
        self.named: list[str] = []
        self.files: list[str] = []
        self.types: list[str] = []

    def add(self, word: str) -> None:
        """Take one word."""
        key, sign, value = word.partition("=")
        if not sign or not _KEY.fullmatch(key):
            self._add_bare(word)
        elif key in MODEL_NAMES and self._names_a_model(key, value):
            self.named = items(value) if self.command.several_models else [value]  # the last word wins, as in Hydra
        elif key == "data" and is_description(value) and self._takes("local", "chat"):
            self.given.append(f"data={quoted(value)}")
        elif key == "data" and self._takes("local", "chat") and not _all_in(value, choices("data")):
            self._add_files(items(value))
        else:
            self.given.append(word)

    def words(self) -> list[str]:
        """All words, as the module takes them."""
        return [*self._model_words(), *self._data_words(), *self._type_words(), *self.given]

    def _takes(self, *kinds: str) -> bool:
        return any(kind in self.command.bare for kind in kinds)

    def _names_a_model(self, key: str, value: str) -> bool:
        """Whether ``key=value`` is the model. In training ``model=10m`` is a shape, as ``model.n_layers=8`` is a part
        of one; everything else is what training starts from."""
        if self.command.model_key is None:
            return False
        return not (key == "model" and self.command.model_key == "init_from" and _all_in(value, choices("model")))

    def _add_bare(self, word: str) -> None:
        if word.startswith("-"):
            option = word.lstrip("-")
            shown = option if "=" in option else f"{option}=VALUE"
            raise UserError(f"cannot read {word!r}: options are written without dashes, as {shown}; --help lists them")
        if word.startswith("~") and not word.startswith("~/"):
            self.given.append(word)  # Hydra's way to take an option away: the command says that there is none
            return
        kind = self._kind(word)
        if kind == "preset":
            self.given.append(f"preset={word}")
        elif kind == "model":
            self.models.append(word)
        elif kind == "set":
            self.given.append(f"data={word}")
            self._warn_of_folder(word)
        elif kind == "description":
            self.given.append(f"data={quoted(word)}")
        elif kind in ("local", "chat", "questions"):
            self._add_files(_parts(word))
        elif kind == "text":
            self.given.append(f"eval.text={word if word == WIKITEXT else quoted(word)}")
        elif kind in ("quant", "type"):
            self.types += word.split(",")
        elif kind == "repository":
            self.given.append(f"to={word}")
        elif kind == "prompt":
            self.given.append(f"prompt={word}")
        elif kind == "out":
            self.given.append(f"out={word}")
        else:
            raise UserError(self._refusal(word))

    def _kind(self, word: str) -> str | None:
        """Which of the command's kinds of words this is; ``set``: the name of a data set; ``description``: a YAML
        file that describes text; None: none of them."""
        takes = self._takes
        if takes("out") and self.models:
            return "out"
        if takes("model") and stores.is_named(word):
            return "model"
        if takes("preset") and word in [*choices("preset"), "auto"]:
            return "preset"
        if takes("quant", "type") and all(_TYPE.fullmatch(each) for each in word.split(",")):
            return "quant" if takes("quant") else "type"
        if takes("local", "chat") and word in choices("data"):
            return "set"
        if takes("local", "chat") and is_description(word):
            return "description"
        if takes("text") and word == WIKITEXT:
            return "text"
        found = runs.place(word)
        data = next((kind for kind in self.command.bare if kind in _OF_FILES), None)
        if found.exists() and takes("model"):
            is_model = runs.holds_model(found) or (data == "text" and found.is_dir())
            return "model" if is_model or data is None else data
        if takes("prompt") and re.search(r"\s", word):
            return "prompt"
        if data and data != "text" and all(_matches(each) for each in _parts(word)):
            return data
        on_hub = hub_name(word) is not None
        if takes("repository") and on_hub and valid_repo(word):
            return "repository"
        if takes("model") and on_hub:
            return "model"
        # A path that is not there: the command says what is there instead.
        return "model" if takes("model") and data is None and "/" in word else None

    def _refusal(self, word: str) -> str:
        what = f"{word!r} means nothing to slm {self.name}"
        if not self.command.bare:
            return f"{what}: options are written key=value; --help lists them"
        if self._takes("preset") and _TIME.fullmatch(word):
            return f"{what}: write budget={word} for a run that takes this time"
        known: list[str] = []
        for kind in self.command.bare:
            known += choices("preset") if kind == "preset" else []
            known += choices("data") if kind in ("local", "chat") else []
            known += _names(runs.RUNS) if kind == "model" else []
        known += [each for each in _beside(word) if self._takes(*_OF_FILES) or runs.holds_model(Path(each))]
        kind = "runs" if self._takes("model") else "files and folders"
        there = _names(runs.RUNS) if kind == "runs" else _names(Path(), files=True)
        hint = _near(word, known) or f"{kind} here: {', '.join(there[:5]) or 'none'}"
        kinds = ", ".join(dict.fromkeys(_WHAT[kind] for kind in self.command.bare))
        last = " or ".join(kinds.rsplit(", ", 1))
        return f"{what}: there is no such {last} here; {hint}"

    def _warn_of_folder(self, word: str) -> None:
        if Path(word).exists():
            print(f"note: {word} is the built-in data set of that name; what is here is ./{word}", flush=True)

    def _add_files(self, files: list[str]) -> None:
        if not self._takes("questions"):
            for each in files:
                if not _matches(each):
                    raise UserError(_missing_file(each))
        self.files += files

    def _model_words(self) -> list[str]:
        key, models = self.command.model_key, [*self.named, *self.models]
        if self.command.needs_model and not any(models):
            raise UserError(self._no_model())
        if not models or key is None:
            return []
        if len(models) > 1 and not self.command.several_models:
            raise UserError(
                f"slm {self.name} takes one model, and the words name {len(models)}: {' and '.join(models[:3])}"
            )
        if self.command.several_models == key:
            return [f"{key}=[{','.join(map(quoted, models))}]"]
        first, *more = models
        words = [f"{key}={quoted(first) if key == 'init_from' else first}"]
        return [*words, f"{self.command.several_models}=[{','.join(map(quoted, more))}]"] if more else words

    def _no_model(self) -> str:
        taken = f", and these words are taken as text: {', '.join(self.files[:3])}" if self.files else ""
        there = ", ".join(_names(runs.RUNS)[:5])
        here = f"runs here: {there}" if there else "train one first: slm train, or name a downloaded model"
        return f"slm {self.name} needs a model to begin with, as in slm {self.name} RUN TEXT{taken}; {here}"

    def _data_words(self) -> list[str]:
        if not self.files:
            return []
        keys = [word.partition("=")[0] for word in self.given]
        files = f"[{','.join(map(quoted, self.files))}]"
        if self._takes("questions"):
            return [f"data={files}"]
        if "data.files" in keys:
            raise UserError(f"the text is named twice: {self.files[0]}, and data.files=; name all of it in one place")
        kind = "chat" if self._takes("chat") else "local"
        return [*([] if "data" in keys else [f"data={kind}"]), f"data.files={files}"]

    def _type_words(self) -> list[str]:
        if not self.types:
            return []
        if self._takes("type"):
            if len(self.types) > 1:
                raise UserError(f"slm {self.name} trains for one type, not {len(self.types)}: {', '.join(self.types)}")
            return [f"train.qat={self.types[0].lower()}"]
        return [f"quant={','.join(self.types)}"]


def _all_in(value: str, names: list[str]) -> bool:
    """Whether the value is one of the names, or several with commas (an axis of a sweep)."""
    return all(each.strip() in names for each in value.strip("[]").split(","))


def _parts(word: str) -> list[str]:
    """The paths of a bare word: one that there is may hold commas, otherwise commas part them."""
    return [word] if os.path.exists(os.path.expanduser(word)) else items(word)


def _matches(path: str) -> bool:
    """Whether there is such a file or folder, or any that fits the pattern."""
    shown = os.path.expanduser(path)
    return os.path.exists(shown) or any(True for _ in glob.iglob(shown, recursive=True))


def _missing_file(path: str) -> str:
    hint = _near(path, [*_beside(path), *choices("data")])
    many = "no file fits" if glob.has_magic(path) else "there is no file or folder"
    return f"{many} {path}; {hint or 'data= takes files, folders, patterns, or one of: ' + ', '.join(choices('data'))}"


def _near(word: str, known: list[str]) -> str:
    """A hint by the last part of a path: what two names share before it says nothing."""
    last = Path(word).name
    by_name = {Path(each).name: each for each in reversed(known)}
    hint = nearest(last, by_name, n=1)
    match = re.search(r"'(.*)'", hint)
    return f"did you mean {by_name[match[1]]!r}?" if match else ""


def _beside(path: str) -> list[str]:
    """What is in the folder of ``path``, as ``path`` spells it."""
    folder = Path(os.path.expanduser(path)).parent
    return [str(folder / name) for name in _names(folder, files=True)]


def _names(folder: Path, *, files: bool = False) -> list[str]:
    """Names in a folder, hidden ones left out; empty where it cannot be read."""
    try:
        return sorted(each.name for each in os.scandir(folder) if each.name[0] != "." and (files or each.is_dir()))
    except OSError:
        return []
