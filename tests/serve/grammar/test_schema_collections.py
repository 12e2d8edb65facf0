"""Many schemas: each is accepted, or relaxed and named. What a grammar allows is valid where nothing was relaxed."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.random_schemas import schema
from tests.helpers.schema_bench import look

PUBLISHED = json.loads(Path(__file__).with_name("llama_cpp_schemas.json").read_text())["schemas"]
RELAXED = {
    "unknown type",
    "string array",
    "nullable string array",
    "array with empty items and prefixItems",
    "regexp with unbalanced parentheses",
    "unsupported regexp in a property",
}
"""llama.cpp refuses the first and the last but one; the three arrays have a schema where a list of them belongs."""


def test_schemas_of_llama_cpp():
    outcomes = {name: look(each, name, n_texts=2, most=2000) for name, each in PUBLISHED.items()}
    assert {name for name, each in outcomes.items() if each.kind == "refused"} == {"invalid type"}  # there, too
    assert {name for name, each in outcomes.items() if each.kind == "relaxed"} == RELAXED
    for name, each in outcomes.items():
        assert each.wrong == [], name
        assert each.n_texts or each.kind in ("relaxed", "refused"), name
        assert each.said or each.kind != "relaxed", name


@pytest.mark.parametrize("part", range(5))
def test_random_schemas(part):
    kinds = Counter()
    for seed in range(part * 100, part * 100 + 20):
        made = look(schema(seed), seed, n_texts=2, most=1000)
        assert made.kind != "refused", (seed, made.said)
        assert made.wrong == [], seed
        kinds[made.kind] += 1
    assert kinds["enforced"] + kinds["notes"] >= 5
