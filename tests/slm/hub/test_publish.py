"""A run published to a Hub on this machine, and what is shown before."""

import json
import shutil

import pytest
import yaml

from slm.data.errors import UserError
from slm.export.config import ExportConfig
from slm.export.gguf.writer import run_record, without_folders, without_private
from slm.export.pipeline import export
from slm.exported import CONFIG_KEY
from slm.hub import models, publish
from slm.hub.card import MARK, Facts, write_card
from slm.llama.gguf_check import read_header
from slm.runs import resolve
from slm.serve.pool.model_files import resolve_model
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture
def run(hub, tmp_path):
    """A run with a checkpoint, its figures and one exported file, in the current folder."""
    root = tiny.run(tmp_path / "runs" / "mine", n_layers=1)
    config = {
        "name": "mine",
        "data": {"name": "notes", "kind": "local", "files": ["/home/somebody/notes.txt"], "val_fraction": 0.1},
        "optim": {"name": "muon", "lr": 0.03},
        "train": {"seq_len": 128, "micro_batch": 4, "grad_accum": 2, "seed": 7, "qat": None},
    }
    (root / "config.yaml").write_text(yaml.safe_dump(config))
    state = {"step": 10, "tokens": 10240, "elapsed_s": 75.0, "rounding": {"precision": "f32"}}
    state |= {"validation": {"step": 10, "val_loss": 2.5, "val_bits_per_byte": 1.25}}
    (root / "checkpoints" / "step-00000010" / "trainer_state.json").write_text(json.dumps(state))
    assert export(ExportConfig(threads=1, run=root, quant=["q8_0"], license="mit"))["published"]
    return root


def test_a_dry_run_shows_everything_and_uploads_nothing(run, hub, capsys):
    assert publish.main(["run=runs/mine", "to=org/mine"]) == 0
    out = capsys.readouterr().out
    assert hub.asked == []
    record = json.loads(out.splitlines()[-1])
    (gguf,) = (name for name in record["files"] if name.endswith("-Q8_0.gguf"))
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json"} <= set(record["files"])
    assert "trainer_state.json" not in record["files"]
    assert 'make publish MODEL=runs/mine TO=org/mine ARGS="dry_run=false"' in out
    card = (run / "README.md").read_text()
    header, body = card.split("---\n")[1:3]
    assert yaml.safe_load(header) == {
        "license": "mit",
        "pipeline_tag": "text-generation",
        "tags": ["slm", "gguf", "llama.cpp"],
        "library_name": "transformers",
    }
    for part in (
        "- notes: 1 file of the author's",
        "| training tokens | 10,240 |",
        "| tokens per step | 1,024 |",
        "validation loss 2.5000: the mean of -ln(probability)",
        "1.2500 bits per byte: ",
        f"| {gguf} |",
        "llama-cli -hf org/mine:Q8_0",
        "ollama run hf.co/org/mine:Q8_0",
        "slm serve model=org/mine:Q8_0",
    ):
        assert part in body, part
    assert "somebody" not in card
    assert "notes.txt" not in card
    # A person's own card stays.
    (run / "README.md").write_text(card.replace(MARK, "").replace("# mine", "# My own"))
    assert publish.main(["run=runs/mine", "to=org/mine", "license=apache-2.0"]) == 0
    assert "# My own" in (run / "README.md").read_text()
    assert "is yours" in capsys.readouterr().out


def test_what_is_published_can_be_used_by_its_name(run, hub, capsys, tmp_path):
    assert publish.main(["run=runs/mine", "to=org/mine", "dry_run=false"]) == 0
    assert f"published: {hub.address}/org/mine" in capsys.readouterr().out
    assert hub.commits == ["mine, step 10"]
    files = hub.repositories["org/mine"].files
    (gguf,) = (run / "gguf").glob("*Q8_0.gguf")
    checkpoint = run / "checkpoints" / "step-00000010"
    assert files[gguf.name] == gguf.read_bytes()
    assert files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert b"llama-cli -hf org/mine" in files["README.md"]
    # Served, and exported again, by its name.
    path, note = resolve_model("org/mine:Q8_0")
    assert path.read_bytes() == gguf.read_bytes()
    assert note is None
    calibration = run / "calibration.txt"
    found = models.resolve("org/mine")
    record = export(
        ExportConfig(threads=1, run="org/mine", quant=["f16"], calibration=calibrated(calibration)),
    )
    assert record["published"]
    assert found.gguf_dir == tmp_path / "models" / "org" / "mine" / "gguf"
    (made,) = found.gguf_dir.glob("*.gguf")
    assert made.name == gguf.name.replace("Q8_0", "F16")
    path, note = resolve_model("org/mine")
    assert path == made
    assert "exported here from org/mine" in note
    hub.repositories["org/mine"].files.pop(gguf.name)
    with pytest.raises(UserError, match=r"org/mine holds no GGUF file; make one with `make export MODEL=org/mine`"):
        resolve_model("org/mine:Q8_0")


def calibrated(text):
    from slm.export.config import CalibrationConfig

    return CalibrationConfig(text=text, chunks=2)


def test_mistakes_are_one_line(run, hub, monkeypatch):
    for words, message in (
        ([], r"to= is missing: `make publish MODEL=runs/mine TO=org/name`"),
        (["to=mine"], r"to=mine is no name on the Hub: write org/name"),
        (["to=org/mine", "gguf=false", "checkpoint=false"], "leaves nothing to publish"),
        (["to=org/mine", "dryrun=false"], "did you mean 'dry_run'"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            publish.main(["run=runs/mine", *words])
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"does not allow this for org/mine \(401\): log in with `hf auth login`"):
        publish.main(["run=runs/mine", "to=org/mine", "dry_run=false"])
    (gguf,) = (run / "gguf").glob("*Q8_0.gguf")
    gguf.write_bytes(gguf.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"Q8_0.gguf is damaged"):
        publish.main(["run=runs/mine", "to=org/mine"])


def test_ollamas_modelfile_goes_up_next_to_the_file_that_it_names(run, hub, capsys):
    (gguf,) = (run / "gguf").glob("*Q8_0.gguf")
    path = run / "gguf" / "Modelfile"
    assert not path.exists()  # the run does not chat
    path.write_text(f'FROM ./{gguf.name}\nPARAMETER stop "<|im_end|>"\n')
    assert publish.main(["run=runs/mine", "to=org/mine", "dry_run=false"]) == 0
    files = hub.repositories["org/mine"].files
    assert files["Modelfile"] == path.read_bytes()
    assert files[gguf.name] == gguf.read_bytes()
    assert b"ollama create mine -f Modelfile" in files["README.md"]
    path.write_text("FROM ./another.gguf\n")
    capsys.readouterr()
    assert publish.main(["run=runs/mine", "to=org/mine"]) == 0
    out = capsys.readouterr().out
    assert "it is not made FROM one of the files that go up" in out
    assert "Modelfile" not in json.loads(out.splitlines()[-1])["files"]
    assert "ollama create" not in (run / "README.md").read_text()


def test_the_files_hold_no_folder_of_the_author(run, hub):
    (path,) = resolve(run).ggufs()
    record = read_header(path).metadata[CONFIG_KEY]
    assert "files" not in json.loads(record)["config"]["data"]
    assert b"notes.txt" not in path.read_bytes()
    assert b"somebody" not in path.read_bytes()


def test_folders_are_left_out_of_a_configuration():
    snapshot = "/home/me/.cache/huggingface/hub/models--org--name/snapshots/0123"
    found = without_folders(
        {"init_from": snapshot, "data": {"files": ["~/a/b.txt", "rel/c.txt"]}, "train": {"sample_prompts": ["/start"]}}
    )
    assert found == {
        "init_from": "org/name",
        "data": {"files": ["b.txt", "rel/c.txt"]},
        "train": {"sample_prompts": ["/start"]},
    }


def test_names_of_files_and_prompts_are_left_out_unless_asked_for(run):
    chosen = resolve(run)
    asked, plain = (
        json.loads(run_record(chosen, chosen.checkpoint(), private=private))["config"] for private in (True, False)
    )
    assert asked["data"]["files"] == ["notes.txt"]
    assert "files" not in plain["data"]
    nested = {
        "train": {"sample_prompts": ["/x"], "seed": 1},
        "data": {"sources": [{"files": ["a/b"], "kind": "local"}]},
    }
    assert without_private(nested) == {"train": {"seed": 1}, "data": {"sources": [{"kind": "local"}]}}


def test_figures_of_another_checkpoint_are_left_out(run, hub, capsys):
    older = run / "checkpoints/step-00000005"
    shutil.copytree(run / "checkpoints/step-00000010", older)
    assert publish.main([f"run={older}", "to=org/mine"]) == 0
    assert "the exported files are of step-00000010, and this is step-00000005" in capsys.readouterr().out
    assert "bits per weight" not in (run / "README.md").read_text()


def test_a_second_export_keeps_the_first_ones_figures(run, hub):
    assert export(ExportConfig(threads=1, run=run, quant=["q4_0"]))["published"]
    types = [each["type"] for each in json.loads((run / "gguf/export.json").read_text())["files"]]
    assert sorted(types) == ["q4_0", "q8_0"]
    assert publish.main(["run=runs/mine", "to=org/mine"]) == 0
    card = (run / "README.md").read_text()
    assert "-Q8_0.gguf | " in card
    assert "-Q4_0.gguf | " in card


@pytest.mark.parametrize(
    ("change", "has", "lacks"),
    [
        ({"data": {"name": "x", "kind": "hub", "val_split": "validation", "val_fraction": 0.1}}, "- x", "held out for"),
        ({"preference": {"loss": "dpo"}}, "the mean DPO loss of the held-out pairs", "each token"),
        ({"data": {"name": "x", "kind": "chat"}}, "each token of the held-out answers", "the held-out text"),
        (
            {"train": {"seq_len": 8, "micro_batch": 1, "grad_accum": 1, "phases": [{"bags": 4, "until": 0.1}]}},
            "training positions",
            "training tokens",
        ),
    ],
)
def test_the_card_says_what_the_figures_are_of(run, hub, change, has, lacks):
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    assert publish.main(["run=runs/mine", "to=org/mine", "gguf=false"]) == 0
    card = (run / "README.md").read_text()
    assert has in card
    assert lacks not in card
    assert yaml.safe_load(card.split("---\n")[1])["tags"] == ["slm"]  # no GGUF file goes up


@pytest.mark.parametrize(
    ("change", "tags", "relation"),
    [
        (dict(chat=True, ggufs=["m-Q8_0.gguf"]), ["slm", "gguf", "llama.cpp", "conversational"], "finetune"),
        (dict(chat=False, config={}, ggufs=["m-Q8_0.gguf"]), ["slm", "gguf", "llama.cpp"], "quantized"),
        (dict(chat=True), ["slm", "conversational"], "finetune"),
    ],
)
def test_the_tags_say_what_goes_up(change, tags, relation):
    common = dict(repo="org/m", title="m", model={}, state={}, export={}, n_params=10, license=None, base="org/base")
    header = yaml.safe_load(write_card(Facts(**common | {"config": {"name": "m"}} | change)).split("---\n")[1])
    assert (header["tags"], header["base_model"], header["base_model_relation"]) == (tags, "org/base", relation)
