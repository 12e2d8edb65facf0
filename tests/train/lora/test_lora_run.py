"""``make tune ... tune.lora=RANK``: a run that trains an adapter, its checkpoints, its exact resume, two processes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.model import lora
from slm.model.checkpoint import load_config, load_model, load_weights, verify
from slm.model.fingerprint import fingerprint
from slm.runs import list_checkpoints
from slm.train.beginning.model import starting_shape
from slm.train.config import LoraConfig
from slm.train.lora.adapter import AdapterParameters
from slm.train.lora.base import BASE
from slm.train.tune.__main__ import tuning
from tests.helpers.programs import Program
from tests.helpers.ranks import fork_ranks
from tests.helpers.small_run import OPTIONS, QUICK, SmallRun, differences, losses, write_corpus

SHORT = (
    "train.sample_prompts=[]",
    "train.seq_len=64",
    "train.micro_batch=2",
    "train.grad_accum=2",
    "train.eval_blocks=2",
)
STEPS = ("train.max_steps=6", "train.checkpoint_every=3", "train.eval_every=3", "train.keep_last=9")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    corpus = write_corpus(folder / "documents.jsonl")
    run = SmallRun(folder / "runs", "name=base", f"data.files=[{corpus}]", "train.max_steps=2", "optim=muon")
    run.finish()
    return run.root


@pytest.fixture(scope="module")
def words(base, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("lora")
    made = [{"instruction": f"Say {index}", "output": "cat " * (index % 9 + 1)} for index in range(200)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, made)))
    options = [f"base={base}", f"runs_dir={folder}/runs", "data=chat", f"data.files=[{folder}/chats.jsonl]"]
    return [*options, *QUICK, *SHORT, *STEPS, "tune.lora=4"]


@pytest.fixture(scope="module")
def whole(words) -> Path:
    run(words, "name=whole")
    return Path(words[1].removeprefix("runs_dir=")) / "whole"


def run(words: list[str], *more: str, module: str = "slm.train.tune.__main__") -> str:
    folder = Path(words[1].removeprefix("runs_dir=")).parent / "logs"
    folder.mkdir(exist_ok=True)
    program = Program(module, [*words, *more], folder, prepare=fork_ranks)
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, out + err
    return out


def test_only_the_adapter_is_trained_and_a_checkpoint_is_the_merged_model(base, whole):
    saved = yaml.safe_load((whole / "config.yaml").read_text())
    assert (saved["lora"]["rank"], saved["optim"]["name"], saved["optim"]["weight_decay"]) == (4, "adamw", 0.0)
    curve = losses(whole)
    assert curve[6] < curve[1]
    (*_, last) = list_checkpoints(whole)
    verify(last)
    adapter = lora.read(last / lora.FOLDER)
    frozen, merged = load_weights(whole / BASE), load_weights(last)
    assert (adapter.rank, adapter.alpha, adapter.base) == (4, 8.0, str(whole / BASE))
    assert adapter.base_fingerprint == fingerprint(frozen)
    assert len(adapter.pairs) == 7
    for name, weight in merged.items():
        if name in adapter.pairs:
            a_RI, b_OR = adapter.pairs[name]
            torch.testing.assert_close(weight, frozen[name] + adapter.scale * b_OR @ a_RI)
            assert not torch.equal(weight, frozen[name])
        else:
            assert torch.equal(weight, frozen[name])
    state = load_file(last / "optimizer.safetensors")
    assert all(".lora_" in name for name in state if not name.startswith("rng"))


def test_the_base_with_a_template_is_kept_and_its_new_rows_differ(base, whole):
    """ChatML's two marks are frozen: with equal rows none could be told from the other."""
    old, kept = load_tokenizer(list_checkpoints(base)[-1]), load_tokenizer(whole / BASE)
    new = range(old.vocab_size, kept.vocab_size)
    assert len(new) == 2
    frozen, before = load_weights(whole / BASE), load_weights(list_checkpoints(base)[-1])
    for name in ("model.embed_tokens.weight",):
        assert torch.equal(frozen[name][: new.start], before[name][: new.start])
        rows = frozen[name][list(new)]
        assert (rows[0] - rows[1]).norm() > 0.5 * frozen[name][: new.start].std(0).norm()
    assert load_config(whole / BASE).eos_id == kept.eot_id


def test_it_goes_on_where_it_was_stopped_to_the_bit(words, whole):
    parts = whole.parent / "parts"
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000006")
    assert "step-00000003" in run(words, "name=parts")
    ends = [root / "checkpoints" / "step-00000006" for root in (whole, parts)]
    assert differences(*ends) == []
    one, two = (load_file(end / lora.FOLDER / lora.WEIGHTS) for end in ends)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_two_processes_train_the_same_adapter_on_plain_text(base, tmp_path):
    """Two processes with a reader each read what one process with two readers does."""
    corpus = write_corpus(tmp_path / "documents.jsonl")
    options = [*OPTIONS, f"runs_dir={tmp_path}/runs", f"data.files=[{corpus}]", "optim=adamw", "optim.lr=1e-2"]
    options += [f"init_from={list_checkpoints(base)[-1]}", "lora.rank=4", "train.max_steps=4", "train.grad_accum=2"]
    options.sort(key=lambda word: not word.startswith("preset="))
    options.insert(1, options.pop(next(i for i, word in enumerate(options) if word.startswith("runs_dir="))))
    run(options, "name=one", "train.workers=2", module="slm.train.__main__")
    two = ("nproc=2", "name=two", "train.workers=1", "train.shard_optimizer=true")
    run(options, *two, module="slm.train.distributed.launch")
    one, both = (tmp_path / "runs" / name for name in ("one", "two"))
    assert not (one / BASE).exists()  # the same tokenizer: the directory that it began from is the base
    left, right = (lora.read(list_checkpoints(root)[-1] / lora.FOLDER) for root in (one, both))
    assert left.base == right.base == str(list_checkpoints(base)[-1])
    for name, pair in left.pairs.items():
        for a, b in zip(pair, right.pairs[name], strict=True):
            # AdamW divides a gradient by its own size: where it is next to nothing, its rounding shows. Four steps
            # of this rate move a weight by up to 0.04.
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


def test_a_run_that_is_tuned_from_it_takes_no_rate_of_an_adapter(words, whole):
    config = tuning([f"base={whole}", *words[1:-1]])
    assert (config.optim.name, config.optim.weight_decay, config.lora.rank) == ("adamw", 0.0, 0)
    assert config.optim.lr == 1e-3  # by the model's size


def test_a_base_that_has_changed_is_refused(whole):
    model = load_model(whole / BASE)
    with torch.no_grad():
        model.model.layer_list()[0].mlp.up_proj.weight += 0.1
    adapter = AdapterParameters(model, LoraConfig(rank=4), "elsewhere")
    (*_, last) = list_checkpoints(whole)
    with pytest.raises(UserError, match=r"has changed .its fingerprint is"):
        adapter.load(last)
    adapter.base_fingerprint = lora.read(last / lora.FOLDER).base_fingerprint  # the weights are compared as well
    with pytest.raises(UserError, match=r"has changed .model\.layers\.0\.mlp\.up_proj\.weight differs"):
        adapter.load(last)
    with pytest.raises(UserError, match="another rank"):
        AdapterParameters(load_model(whole / BASE), LoraConfig(rank=3), "elsewhere").load(last)


def test_a_rank_over_the_width_is_one_line(base):
    directory = str(list_checkpoints(base)[-1])
    assert starting_shape(directory, 32, None, 256).d_model == 256
    with pytest.raises(UserError, match=r"a LoRA rank of 257 is over the width of .* \(256\).*: use for example 16"):
        starting_shape(directory, 32, None, 257)


def test_what_does_not_work_is_one_line(words):
    with pytest.raises(UserError, match="optim=adamw"):
        tuning([*words, "optim=muon"])
    with pytest.raises(UserError, match="must be a rank"):
        tuning([*words, "tune.lora=-1"])
    for options, message in (
        ({"rank": 4, "targets": ("q_proj", "qq")}, "must name linear layers"),
        ({"rank": 4, "targets": ()}, "must name linear layers"),
        ({"rank": -4}, "at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            LoraConfig(**options)
