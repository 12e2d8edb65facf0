"""``data=path/to/mix.yaml``: a description of text in one's own file, in the form of those in ``configs/data/``.

Hydra takes choices of a group from its folder. A file from elsewhere is added to its store under its own name, on
top of ``configs/data_options.yaml``, as each file of the group is.
"""

import os
from pathlib import Path
from typing import Any

from slm.data.errors import UserError, one_line
from slm.data.storage import fingerprint

OPTIONS = "/data_options@_here_"
"""What every file of the group begins with. A person's file may leave it out."""
ENDINGS = (".yaml", ".yml")


def is_description(value: str) -> bool:
    """Whether the value of ``data=`` names a file that describes text."""
    path = _plain(value)
    return path.lower().endswith(ENDINGS) and os.path.isfile(os.path.expanduser(path))


def choose(word: str) -> str:
    """The word for Hydra: ``data=path/to/mix.yaml`` becomes a choice that is known to it; any other word stays.

    Raises UserError where the file is not there, is no YAML, or is not of this form.
    """
    key, sign, value = word.partition("=")
    path = _plain(value)
    if not sign or key != "data" or not path.lower().endswith(ENDINGS):
        return word
    from hydra.core.config_store import ConfigStore

    options = _read(Path(os.path.expanduser(path)), path)
    name = f"own_{fingerprint(options)}"
    ConfigStore.instance().store(group="data", name=name, node={"defaults": [OPTIONS, "_self_"], **options})
    return f"data={name}"


def _plain(value: str) -> str:
    """The value without the quotes of Hydra's grammar."""
    value = value.strip()
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1].replace(f"\\{value[0]}", value[0]) if quoted else value


def _read(path: Path, shown: str) -> dict[str, Any]:
    import yaml

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"there is no file {shown}: data= takes a YAML file, text, or a name (--help)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{shown} cannot be read: {one_line(error)}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{shown}:{mark.line + 1}" if mark else shown
        raise UserError(f"{where}: not valid YAML ({getattr(error, 'problem', None) or one_line(error)})") from error
    form = "it must have kind and what belongs to it, as the files in configs/data/"
    if not isinstance(tree, dict):
        raise UserError(f"{shown} does not describe text: {form}")
    if unusual := [each for each in tree.pop("defaults", None) or [] if each not in (OPTIONS, "_self_")]:
        raise UserError(f"{shown}: defaults may be [{OPTIONS}, _self_] or left out, and not {unusual[0]!r}")
    if "sources" in tree:
        tree.setdefault("kind", "mixture")
    if "kind" not in tree:
        raise UserError(f"{shown} does not describe text: {form}; a mixture has sources")
    return tree
