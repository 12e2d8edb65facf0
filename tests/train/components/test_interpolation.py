"""At the end of a tuning the weights go back towards the base as far as what was learned remains."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.runs import best_checkpoint, list_checkpoints
from slm.train.components.interpolation import LEARNED, MOST_RISE, SHARES, Options
from slm.train.components.make import make_components
from slm.train.config import RunConfig
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.small_run import SmallRun, records, write_corpus

STEPS = ("train.max_steps=6", "train.eval_every=3", "train.checkpoint_every=3", "optim.lr=2e-3")


@pytest.fixture(scope="module")
def base(tmp_path_factory, corpus):
    run = SmallRun(tmp_path_factory.mktemp("base"), "name=base", f"data.files=[{corpus}]", "train.max_steps=4").finish()
    return list_checkpoints(run.root)[-1]


def tuned(folder, base, *words: str) -> SmallRun:
    text = folder / "other.jsonl"
    if not text.exists():
        write_corpus(text, seed=3)
    return SmallRun(folder / "runs", f"init_from={base}", f"data.files=[{text}]", *STEPS, *words).finish()


def weights(run: SmallRun) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run.root)[-1] / "model.safetensors")


def test_the_least_share_that_keeps_what_was_learned_is_kept(base, tmp_path):
    whole = tuned(tmp_path, base, "name=whole", "+components.interpolation.kept=1")
    mixed = tuned(tmp_path, base, "name=mixed", "+components.interpolation.kept=null")
    (event,) = [each for each in records(mixed.root) if each.get("event") == "interpolated"]
    assert event["share"] in SHARES
    begun, trained, found = load_file(base / "model.safetensors"), weights(whole), weights(mixed)
    for name, weight in begun.items():
        torch.testing.assert_close(found[name], torch.lerp(weight, trained[name], event["share"]), rtol=0, atol=1e-5)
    after = [each["val_loss"] for each in records(mixed.root) if "val_loss" in each][-1]
    assert after == pytest.approx(event["after"], abs=1e-6)
    _, before = (each["val_loss"] for each in records(whole.root) if "val_loss" in each)
    assert before == pytest.approx(event["before"], abs=1e-6)
    state = json.loads((list_checkpoints(mixed.root)[-1] / "trainer_state.json").read_text())
    untuned = state["interpolation"]["before"]
    assert untuned > before
    assert after - before <= MOST_RISE + 1e-6
    assert (untuned - after) / (untuned - before) >= LEARNED - 1e-3
    assert "the weights keep" in mixed.out
    assert best_checkpoint(mixed.root) == list_checkpoints(mixed.root)[-1]  # those before it hold another model


def test_a_run_that_is_over_is_not_moved_twice(base, tmp_path):
    first = tuned(tmp_path, base, "name=mixed", "+components.interpolation.kept=0.5")
    own = weights(first)
    again = SmallRun(
        tmp_path / "runs",
        f"init_from={base}",
        f"data.files=[{tmp_path / 'other.jsonl'}]",
        *STEPS,
        "name=mixed",
        "+components.interpolation.kept=0.5",
    )
    again.wait()
    assert all(torch.equal(own[name], weight) for name, weight in weights(again).items())


def test_a_base_that_is_gone_costs_no_run(tmp_path):
    said = []
    log = SimpleNamespace(doing=lambda what: nullcontext(), print=said.append)
    config, model = SimpleNamespace(init_from=str(tmp_path / "gone")), SimpleNamespace(config=tiny.config())
    mine = Options(kept=0.5).make()
    mine.attach(SimpleNamespace(log=log, config=config, model=model, state=SimpleNamespace(step=3)))
    assert not mine.at_end()
    (line,) = said
    assert line.startswith("the weights keep 1 of their change from the base, which cannot be read: ")
    assert mine.state_dict() == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+components.interpolation.kept=0.5"], "goes back towards a base: name that model with init_from=DIR"),
        (["+components.interpolation.kept=1.5", "init_from=DIR"], "kept is 1.5 and must be above 0"),
        (
            ["+components.interpolation.kept=null", "init_from=DIR", "lora.rank=4", "optim=adamw"],
            "leave it out with lora.rank",
        ),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    config = build(RunConfig, load_config("train", ["preset=tiny", "name=any", *words]))
    with pytest.raises(UserError, match=message):
        make_components(config)
