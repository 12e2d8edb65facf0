from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from slm.configuration import load
from slm.data.errors import UserError
from slm.export.config import ExportConfig, resolve_types
from slm.llama.quantize import quant_types


def types(*names: str) -> list[str]:
    return resolve_types(names, quant_types())


def test_types_any_case_and_once():
    assert types("Q4_K_M", "q8_0", "F16", "q8_0") == ["q4_k_m", "q8_0", "f16"]


def test_an_alias_is_the_type_it_stands_for():
    assert types("q4_k", "q4_k_m", "q5_k", "q3_k") == ["q4_k_m", "q5_k_m", "q3_k_m"]
    assert types("q2_k", "q2_k_s") == ["q2_k", "q2_k_s"]


def test_every_offered_type_is_accepted():
    assert set(types(*quant_types())) == {n for n in quant_types() if n not in ("q3_k", "q4_k", "q5_k")}


def test_unknown_type_names_the_nearest():
    with pytest.raises(UserError, match=r"'q4_k_x'.*did you mean 'q4_k"):
        types("q4_k_x")


@pytest.mark.parametrize(
    "options", [{"quant": []}, {"name": "a/b"}, {"name": ".hidden"}, {"version": " "}, {"threads": 0}]
)
def test_refused_options(options):
    with pytest.raises(UserError):
        ExportConfig(run="run", **options)


def test_the_file_has_the_same_defaults():
    assert load(ExportConfig, "export", []) == ExportConfig(run=Path("runs/latest"))


def test_a_configuration_never_changes():
    config = ExportConfig(run="run")
    with pytest.raises(FrozenInstanceError):
        config.base = "f16"
    with pytest.raises(FrozenInstanceError):
        config.proof.chunks = 1
