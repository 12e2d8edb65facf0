"""From the command line to typed configuration: Hydra composes, dataclasses check.

Every stage has one YAML file under ``configs/`` (and groups next to it) and one keyword-only dataclass, and gets its
configuration by one call::

    config = load(ExportConfig, "export", argv)

Hydra merges the file with the overrides that a person typed (``load_config``), and the result becomes the dataclass,
which refuses what it does not know (``build``). A dataclass may hold others for groups of options; a stage that adds
options to another stage's inherits from its dataclass. What has to be checked or computed from several options is the
business of ``__post_init__``. ``to_dict`` goes back to plain values, for a file or for another process. Every mistake
is one line that names the nearest right option.

Where defaults stand: the YAML file lists every option, since ``--help`` prints it. A dataclass may have a default, too,
for callers in Python; ``tests/test_configs.py`` requires that it is the same.
"""

import dataclasses
import functools
import os
import re
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from slm import own_data
from slm.cli import spelled
from slm.data.errors import UserError, nearest, one_line
from slm.options import CONFIG_DIR, INTERNAL, choices, option_hint, show
from slm.removed_options import REMOVED, REMOVED_VALUES

T = TypeVar("T")


def load(cls: type[T], config_name: str, argv: list[str], *, literal: Collection[str] = ()) -> T:
    """The stage's configuration: ``configs/<config_name>.yaml`` with the words of the command line, as a ``cls``.

    ``literal`` names options (``model``, ``serve.models``) with text that is taken as it was typed, without Hydra's
    grammar: paths and prompts may hold any character, and ``model=...`` would choose a file of that group. Where the
    file has a list, the text ``a,b`` or ``[a,'b']`` is one.

    ``--help`` prints the options and exits 0. Raises ``UserError`` for every mistake that a person can make.
    """
    return build(cls, load_config(config_name, argv, literal=literal))


def load_config(config_name: str, overrides: list[str], *, literal: Collection[str] = ()) -> dict[str, Any]:
    """Compose ``configs/<config_name>.yaml`` with Hydra ``overrides`` and resolve it to plain Python values.

    ``literal`` and ``--help``: as ``load`` has them. A value ``a,b`` for a key that the file declares as a list becomes
    ``[a,b]`` (Hydra would read it as a sweep). Raises ``UserError`` for anything that Hydra refuses.
    """
    if any(word in ("-h", "--help") for word in overrides):
        print_help(config_name)
        raise SystemExit(0)
    typed = [word.partition("=") for word in overrides]
    taken = {name: text for name, sign, text in typed if sign and name in literal}
    values = _compose(config_name, [word for word in overrides if word.partition("=")[0] not in taken])
    for name, text in taken.items():
        *groups, key = name.split(".")
        place = values
        for group in groups:
            place = place[group]
        is_list = isinstance(place[key], list)
        place[key] = text if not is_list else [] if text == "null" else items(text)
    return values


def assigned(key: str, path: Path) -> str:
    """The word ``key='path'`` for a command line, whatever characters the path has."""
    return f"{key}={quoted(str(path))}"


def quoted(text: str) -> str:
    """A text in the quotes of Hydra's grammar."""
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


def items(text: str) -> list[str]:
    """``[a,'b, c']`` or ``a,b`` as a list of texts. A quote ends an item where a comma or the end follows it."""
    rest, found = text.strip(), []
    if rest.startswith("[") and rest.endswith("]"):
        rest = rest[1:-1].strip()
    while rest:
        quote = rest[0]
        end = re.search(rf"{quote}\s*(,|$)", rest[1:]) if quote in ("'", '"') else None
        if end:
            item, rest = rest[1 : 1 + end.start()], rest[1 + end.end() :]
        else:
            item, _, rest = rest.partition(",")
        if end or item.strip():  # an empty one only in quotes
            found.append(item if end else item.strip())
        rest = rest.strip()
    return found


def _compose(config_name: str, overrides: list[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = [_quote_choice(own_data.choose(word)) for word in overrides]
    for word in overrides:
        if "=" not in word and not word.startswith("~"):
            raise UserError(
                f"cannot read {word!r}: options are written key=value (for example name=my-run); --help lists them"
            )
        _check_grammar(word)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        try:
            base = _declared(config_name, tuple(_group_choices(overrides)))
            lists = _list_keys(base)
            overrides = [_bracket(word, lists) for word in overrides]
            config = compose(config_name, overrides=overrides)
            values = typing.cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(_explain(error, config_name, overrides)) from error
        except Exception as error:  # Hydra's own code, on words that it did not expect
            words = " ".join(map(repr, overrides))
            raise UserError(f"cannot read the options {words} ({one_line(error)}); --help lists them") from error
    _check_groups(base, values)
    return values


@functools.cache
def _declared(config_name: str, chosen: tuple[str, ...]) -> Any:
    """What the files declare, with these choices of groups: unresolved, read once in a process, never to be changed."""
    from hydra import compose
    from omegaconf import OmegaConf

    return OmegaConf.to_container(compose(config_name, overrides=list(chosen)), resolve=False)


def _check_groups(base: Any, values: dict[str, Any], prefix: str = "") -> None:
    """Refuse a value in place of a group of options (``train=5``)."""
    for key, options in base.items():
        if not isinstance(options, dict) or not options or key not in values:
            continue
        name, value = f"{prefix}{key}", values[key]
        if not isinstance(value, dict):
            first = next(iter(options))
            raise UserError(f"{name} is a group of options, not {value!r}: give one of them, as in {name}.{first}=...")
        _check_groups(options, value, f"{name}.")


def print_help(config_name: str, wanted: str = "") -> None:
    """Print the stage's options, all or those that have ``wanted`` in their name or description."""
    print(f"Options of configs/{config_name}.yaml, given as key=value (Hydra's override syntax):\n")
    print(show(config_name, wanted=wanted))


def _list_keys(tree: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, list):
            found.add(name)
        elif isinstance(value, dict):
            found |= _list_keys(value, f"{name}.")
    return found


def _check_grammar(word: str) -> None:
    """Refuse a word that Hydra's grammar cannot read, naming it (Hydra's own message does not).

    So is a word that it can read and no command can use: an option taken away, or no name where a group needs one.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        key, _, value = word.partition("=")
        inner = value.strip("[]'")
        quoted = f"['{inner}']" if value.startswith("[") else f"'{inner}'"
        raise UserError(
            f"cannot read {word!r}: put quotes around values with characters such as ( ) = ~ : or unclosed brackets, "
            f'as in "{key}={quoted}"'
        ) from None
    key = override.key_or_group
    if override.is_delete():
        raise UserError(f"{word!r}: no option can be taken away; leave this word out, or give {key} another value")
    if override.package is not None or key.split(".")[0].split("/")[0] in ("", "hydra"):
        raise UserError(f"cannot read {word!r}: options are written key=value; --help lists them")
    if (CONFIG_DIR / key).is_dir() and not (isinstance(override.value(), str) and override.value()):
        given = word.partition("=")[2]
        raise UserError(f"{key} takes one name, not {given or 'nothing'!r}: {key} is one of: {', '.join(choices(key))}")


def _quote_choice(word: str) -> str:
    """``preset=125`` names a file, though Hydra reads a number and refuses it without saying which."""
    key, _, value = word.partition("=")
    return f"{key}='{value}'" if value.isdigit() and (CONFIG_DIR / key).is_dir() else word


def _bracket(word: str, lists: set[str]) -> str:
    key, sign, value = word.partition("=")
    if sign and key.lstrip("+") in lists and not value.startswith("["):
        return f"{key}=[{value}]"
    return word


def _explain(error: Exception, config_name: str, overrides: list[str]) -> str:
    """Hydra's error in plain words: which option, what is near it."""
    text = one_line(error)
    message = text.split(" Set the environment variable")[0].split(" To append to your config")[0]
    # Could not find 'preset/1250m' ... / Could not override 'train.max_stps'.
    missing_choice = re.search(r"(?:Could not find|In '[^']*': Could not find) '([\w./-]+)'", text)
    if missing_choice and "/" in missing_choice.group(1):
        group, _, choice = missing_choice.group(1).partition("/")
        if gone := REMOVED_VALUES.get(f"{group}={choice}"):
            return f"there is no {group} {choice!r} any more: {gone}"
        options = choices(group)
        hint = nearest(choice, options)
        return f"there is no {group} {choice!r}; {hint or ''} ({group} is one of: {', '.join(options)})".replace(
            ";  (", " ("
        )
    key = _refused_key(text, overrides)
    if key in REMOVED:
        return f"there is no option {key!r} any more: {REMOVED[key]}"
    if key:
        from hydra import compose
        from omegaconf import OmegaConf

        group, _, rest = key.partition(".")
        having = [choice for choice in choices(group) if _has_key(CONFIG_DIR / group / f"{choice}.yaml", rest)]
        if having and rest:
            given = [f"{group}={choice}" for choice in having]
            add = given[0] if len(given) == 1 else "one of them"
            named = " and ".join(", ".join(given).rsplit(", ", 1))
            return f"{key} is an option of {named}: add {add} to the command"
        known = _known_keys(config_name, overrides, compose, OmegaConf)
        return f"there is no option {key!r}; {option_hint(key, known) or 'see --help for the list'}"
    if many := re.search(r"Ambiguous value for argument '([^=']+)=", text):
        name = many.group(1)
        values = next((word.partition("=")[2] for word in overrides if word.startswith(f"{name}=")), "")
        return (
            f"{name} takes one value, not {values}: put a text with a comma into quotes, a list into brackets, or "
            f"compare values with {spelled('sweep')}"
        )
    merged = re.search(r"Error merging override ([\w.]+)=", text)
    if merged:
        return f"{merged.group(1)} is a group of options: give one of them, as in {merged.group(1)}.NAME=VALUE"
    missing = re.search(r"Missing mandatory value: ([\w.]+)", text)
    if missing:
        return f"{missing.group(1)} must be given: add {missing.group(1)}=VALUE"
    return message


def _has_key(path: Path, key: str) -> bool:
    """Whether a file of a group has its own option with this name."""
    from omegaconf import OmegaConf

    return key in OmegaConf.load(path)


def _group_choices(overrides: list[str]) -> list[str]:
    """The overrides that pick a file of a group (``data=local``): they decide which keys there are."""
    groups = {path.name for path in CONFIG_DIR.iterdir() if path.is_dir()}
    return [word for word in overrides if word.split("=", 1)[0] in groups]


def _refused_key(text: str, overrides: list[str]) -> str | None:
    match = re.search(r"Could not override '([\w.@/-]+)'", text) or re.search(r"Key '([\w.]+)' is not in struct", text)
    if not match:
        return None
    name = match.group(1)
    # Hydra names only the last part in some messages: prefer what the person typed.
    typed = [word.split("=", 1)[0].lstrip("+~") for word in overrides]
    return next((key for key in typed if key == name or key.endswith(f".{name}")), name)


def _known_keys(config_name: str, overrides: list[str], compose: Any, omegaconf: Any) -> list[str]:
    """Keys of the configuration with the group choices a person made that Hydra accepts, and the groups."""
    try:
        tree = compose(config_name, overrides=_group_choices(overrides))
    except Exception:
        tree = compose(config_name)

    def walk(node: Any, prefix: str = "") -> list[str]:
        names = []
        for key, value in node.items():
            names.append(f"{prefix}{key}")
            if isinstance(value, dict):
                names.extend(walk(value, f"{prefix}{key}."))
        return names

    return walk(omegaconf.to_container(tree, resolve=False))


def build(cls: type[T], mapping: Any, where: str = "") -> T:
    """An instance of the dataclass ``cls`` from ``mapping``, every field checked against its annotation.

    Nested dataclasses, lists of them, Optional, Literal, Path and scalars are understood. Unknown keys, missing
    ones and wrong types are UserErrors that name the key under ``where``.
    """
    assert dataclasses.is_dataclass(cls)
    if not isinstance(mapping, dict):
        raise UserError(f"{where or cls.__name__} must be a group of options, not {mapping!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    prefix = f"{where}." if where else ""
    for key in mapping:
        if key not in fields and (gone := REMOVED.get(f"{prefix}{key}")):
            raise UserError(f"there is no option {prefix}{key} any more: {gone}")
        if key not in fields:
            offered = [each for each in fields if each not in INTERNAL]
            hint = nearest(key, offered) or f"it is one of: {', '.join(offered)}"
            raise UserError(f"there is no option {prefix}{key}; {hint}")
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], f"{prefix}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{prefix}{name} must be given: add {prefix}{name}=VALUE")
    try:
        return cls(**values)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where + ': ' if where else ''}{error}") from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Literal:
        options = get_args(hint)
        if value in options:
            return value
        if gone := REMOVED_VALUES.get(f"{where}={value}"):
            raise UserError(f"{where}={value} is not known any more: {gone}")
        hint_text = nearest(str(value), [str(option) for option in options])
        near = f"; {hint_text}" if hint_text else ""
        raise UserError(f"{where}={value} is not known{near} (one of: {', '.join(map(str, options))})")
    if origin in (typing.Union, types.UnionType):
        return _convert_union(get_args(hint), value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, where)
    if origin in (list, tuple):
        if isinstance(value, str) or not isinstance(value, list | tuple):
            value = [value]
        item = (get_args(hint) or (Any,))[0]
        return origin(_convert(item, each, f"{where}[{index}]") for index, each in enumerate(value))
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise UserError(f"{where} must be a group of options, not {value!r}")
        return value
    return _convert_scalar(hint, value, where)


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in (each for each in options if each is not type(None)):
        try:
            return _convert(option, value, where)
        except UserError as error:
            errors.append(error)
    raise errors[0]


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Path and isinstance(value, str | Path):
        return Path(os.path.expanduser(value))  # which leaves "~nobody" as it is
    if hint is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)  # name=125 is a name
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e6 is how people write a million steps
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, bool):
        raise UserError(f"{where} takes a text, not {str(value).lower()}; help={where} says which")
    kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    raise UserError(f"{where} must be {kind.get(hint, hint)}, not {value!r}")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values, as JSON and YAML take them, of which ``build`` makes an equal configuration again."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config) if field.init}


def to_yaml(config: Any) -> str:
    """The configuration as YAML, every default included."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(to_dict(config)))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
