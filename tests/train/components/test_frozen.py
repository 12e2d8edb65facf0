"""Lower layers, embedding and head of a base stay as they are; the others learn as they would under autograd."""

import pytest
import torch
from safetensors.torch import load_file

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.runs import list_checkpoints
from slm.train.components.make import make_components
from slm.train.config import RunConfig
from tests.helpers.small_run import SmallRun, records, write_corpus

SHAPE = "model.n_layers=2"
STEPS = (SHAPE, "optim=adamw", "train.max_steps=6", "train.eval_every=3", "train.checkpoint_every=3", "optim.lr=2e-3")


@pytest.fixture(scope="module")
def base(tmp_path_factory, corpus):
    run = SmallRun(
        tmp_path_factory.mktemp("base"), "name=base", f"data.files=[{corpus}]", SHAPE, "train.max_steps=4"
    ).finish()
    return list_checkpoints(run.root)[-1]


def tuned(folder, base, *words: str) -> SmallRun:
    text = folder / "other.jsonl"
    if not text.exists():
        write_corpus(text, seed=3)
    return SmallRun(folder / "runs", f"init_from={base}", f"data.files=[{text}]", *STEPS, *words)


def weights(run: SmallRun) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run.root)[-1] / "model.safetensors")


def losses(run: SmallRun) -> list[float]:
    return [each["loss"] for each in records(run.root) if "loss" in each]


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The parts of a model that training has changed: numbers of layers, or names."""
    names = [name for name in before if not torch.equal(before[name], after[name])]
    return {name.split(".")[2] if ".layers." in name else name for name in names}


def test_lower_layers_and_tables_stay_as_they_are(base, tmp_path):
    begun = load_file(base / "model.safetensors")
    run = tuned(tmp_path, base, "name=half", "+components.frozen.share=0.5").finish()
    assert moved(begun, weights(run)) == {"1", "model.norm.weight"}
    assert "frozen: layers 1 to 1 of 2, embedding and head; " in run.out
    state = load_file(list_checkpoints(run.root)[-1] / "optimizer.safetensors")
    assert any(".layers.1." in name for name in state)
    assert not any(".layers.0." in name or "embed_tokens" in name for name in state if name.endswith("exp_avg"))
    tables = tuned(tmp_path, base, "name=tables", "+components.frozen.share=0").finish()
    assert moved(begun, weights(tables)) == {"0", "1", "model.norm.weight"}


def test_kernels_and_autograd_agree(base, tmp_path):
    by_kernels = tuned(tmp_path, base, "name=kernels", "+components.frozen.share=0.5", "train.precision=f32").finish()
    words = ("train.kernels=eager", "train.precision=f32")
    plain = tuned(tmp_path, base, "name=plain", "+components.frozen.share=0.5", *words).finish()
    assert losses(plain) == pytest.approx(losses(by_kernels), abs=2e-4)
    before, after = weights(by_kernels), weights(plain)
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=5e-4)


def test_a_stopped_run_goes_on_exactly(base, tmp_path):
    whole = tuned(tmp_path, base, "name=whole", "+components.frozen.share=0.5").finish()
    part = tuned(tmp_path, base, "name=part", "+components.frozen.share=0.5")
    part.finish()
    checkpoint = list_checkpoints(part.root)[0]
    again = tuned(tmp_path, base, "name=again", "+components.frozen.share=0.5", f"resume={checkpoint}").finish()
    own, other = weights(whole), weights(again)
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name that model with init_from=DIR"),
        (["init_from=DIR", "lora.rank=4", "optim=adamw"], "leave it out with lora.rank"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    config = build(RunConfig, load_config("train", ["preset=tiny", "name=any", "+components.frozen.share=0.5", *words]))
    with pytest.raises(UserError, match=message):
        make_components(config)


def test_a_share_is_a_share():
    words = ["preset=tiny", "name=any", "init_from=DIR", "+components.frozen.share=1"]
    with pytest.raises(UserError, match="must be from 0 to below 1"):
        make_components(build(RunConfig, load_config("train", words)))
