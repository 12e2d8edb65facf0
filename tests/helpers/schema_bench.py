"""What becomes of many schemas: enforced, relaxed or refused, and whether random texts of their grammars are valid.

``python -m tests.helpers.schema_bench FOLDER [N]`` prints a table for ``maskbench/data`` of a copy of JSONSchemaBench
(github.com/guidance-ai/jsonschemabench), where each file holds a schema and values that are valid and invalid under it;
interrupted, of those that it has looked at.
"""

import contextlib
import json
import multiprocessing
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
from referencing.jsonschema import EMPTY_REGISTRY

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import of_json
from tests.helpers.fits import fits, written

KINDS = ("enforced", "notes", "relaxed", "refused")
"""``notes``: words that JSON Schema does not know are ignored, as it says; the rest is enforced."""


@dataclass
class Outcome:
    """One schema's."""

    kind: str
    said: tuple[str, ...] = ()
    n_texts: int = 0
    wrong: list[str] = field(default_factory=list)
    """Texts of an enforced grammar that are not valid, each with the reason."""


def look(schema, seed, n_texts=4, most=4000):
    """Make the grammar of a schema; where all of it is enforced, also random texts."""
    try:
        grammar = of_json(schema)
    except GrammarError as error:
        return Outcome("refused", (str(error),))
    relaxed = [each for each in grammar.warnings if not _is_note(each)]
    if relaxed:
        return Outcome("relaxed", grammar.warnings)
    made = Outcome("notes" if grammar.warnings else "enforced", grammar.warnings)
    checker, chance = validator(schema), random.Random(seed)
    for _ in range(n_texts):
        text = written(grammar.text, chance, most)
        if text is not None:
            made.n_texts += 1
            try:
                checker.validate(json.loads(text))
            except (ValueError, jsonschema.ValidationError) as error:
                made.wrong.append(f"{text[:200]}: {str(error)[:200]}")
    return made


def _is_note(warning):
    return warning.endswith(("a keyword of JSON Schema and is ignored", "one of JSON Schema's and is ignored"))


def validator(schema):
    """A validator of the draft that the schema names. A list in ``items`` is a tuple of older drafts."""
    newest = jsonschema.Draft7Validator if '"items": [' in json.dumps(schema) else jsonschema.Draft202012Validator
    draft = jsonschema.validators.validator_for(schema, newest)
    return draft(schema, format_checker=draft.FORMAT_CHECKER, registry=EMPTY_REGISTRY)


def _look_at(path):
    held = json.loads(path.read_text())
    made, counts = look(held["schema"], path.name), Counter()
    if made.kind in ("enforced", "notes"):
        text = of_json(held["schema"]).text
        for each in held["tests"]:
            wanted = "valid" if each["valid"] else "invalid"
            accepted = fits(text, json.dumps(each["data"], ensure_ascii=False))
            counts[wanted] += 1
            counts[f"{wanted} accepted"] += accepted
            if accepted and not each["valid"]:
                made.wrong.append(f"{json.dumps(each['data'])[:200]}: {each.get('python_error', '')[:200]}")
    return path.name, made, counts


def main(folder, n="0"):
    paths = sorted(Path(folder).glob("*---*.json"))
    random.Random(1).shuffle(paths)
    tables, values = {}, Counter()
    with multiprocessing.Pool(2, maxtasksperchild=200) as pool, contextlib.suppress(KeyboardInterrupt):
        for name, made, counts in pool.imap_unordered(_look_at, paths[: int(n) or None]):
            table = tables.setdefault(name.partition("---")[0], Counter())
            table.update({"schemas": 1, made.kind: 1, "texts": made.n_texts, "wrong": len(made.wrong)})
            table["no text"] += made.kind in ("enforced", "notes") and not made.n_texts
            values.update(counts)
            if made.wrong or made.kind == "refused":
                print(name, *made.wrong, *(made.said if made.kind == "refused" else ()), sep="\n  ", flush=True)
    columns = ("schemas", *KINDS, "texts", "wrong", "no text")
    print("", "set", *columns, "", sep=" | ")
    for name, table in [*sorted(tables.items()), ("all", sum(tables.values(), Counter()))]:
        print("", name, *(table[each] for each in columns), "", sep=" | ")
    print(dict(values))


if __name__ == "__main__":
    main(*sys.argv[1:])
