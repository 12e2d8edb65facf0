from dataclasses import FrozenInstanceError, replace

import pytest

from slm.data.errors import UserError
from slm.serve.bench.config import BenchConfig
from slm.serve.config import ServeConfig, ServerOptions, TerminalConfig, load

LITERAL = ("model", "serve.models")


@pytest.mark.parametrize(
    ("cls", "name"), [(ServeConfig, "serve"), (TerminalConfig, "terminal"), (BenchConfig, "bench_serve")]
)
def test_the_files_and_the_classes_have_the_same_defaults(cls, name):
    assert load(cls, name, ["model=m.gguf"], literal=LITERAL) == cls(model="m.gguf")


def test_a_model_must_be_named():
    for cls, name in ((ServeConfig, "serve"), (TerminalConfig, "terminal")):
        with pytest.raises(UserError, match="model must be given: model=runs/latest"):
            load(cls, name, [], literal=LITERAL)
    config = load(ServeConfig, "serve", ["serve.models=[a=x.gguf,y.gguf]"], literal=LITERAL)
    assert (config.model, config.serve.models) == (None, ["a=x.gguf", "y.gguf"])


def test_values_out_of_range_are_named():
    for wrong in ({"max_n": 0}, {"body_timeout_s": 0.0}, {"queue": -1}, {"request_timeout_s": float("inf")}):
        (name,) = wrong
        with pytest.raises(UserError, match=rf"serve\.{name} is "):
            ServerOptions(**wrong)
    with pytest.raises(UserError, match="empty key"):
        ServerOptions(api_keys=["a", " "])
    for origin in ("http://localhost:3000/", "localhost:3000", "http://", "http://Friend.example"):
        with pytest.raises(UserError, match=f"serve.cors_origins: {origin} is no origin"):
            ServerOptions(cors_origins=[origin])
    ServerOptions(cors_origins=["*", "null", "http://localhost:3000"])
    with pytest.raises(UserError, match=r"^context=-5 is out of range"):
        TerminalConfig(model="x", context=-5)
    with pytest.raises(UserError, match="port=70000"):
        ServeConfig(model="m", port=70000)
    with pytest.raises(UserError, match="top_p=2 is out of range"):
        TerminalConfig(model="m", top_p=2)


def test_yaml_reads_off_and_on_as_booleans():
    assert [ServerOptions(tune=each).tune_mode for each in (True, False, "force")] == ["auto", "off", "force"]
    forms = [ServerOptions(access_log=each).access_form for each in (True, False, "json")]
    assert forms == ["text", "off", "json"]


def test_nobody_changes_a_configuration():
    config = ServeConfig(model="m")
    with pytest.raises(FrozenInstanceError):
        config.port = 1
    assert replace(config, port=1).port == 1
