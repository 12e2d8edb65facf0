"""lm-evaluation-harness on a checkpoint and its GGUF file, on tasks of local files.

What the harness reports is compared with a separate computation: plain forward passes over each text.
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.evaluate import tasks
from slm.evaluate.continuations import Request, score_continuations
from slm.evaluate.evaluate import main
from slm.evaluate.scorers import GGUFScorer, checkpoint_scorer
from slm.evaluate.task_index import folders_of_all, written_names
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from slm.model.checkpoint import load_model
from slm.runs import resolve
from tests.helpers import tiny_checkpoint as tiny

CHOICES = [
    {"question": "The fox saw the", "choices": [" river.", " red boat! The", " 1984"], "label": 0},
    {"question": "The girl gave the bear to", "choices": [" the", " the garden. The king found", " x"], "label": 1},
    {"question": "The king couldn't", "choices": [" lamp", " café; The fox", " bird"], "label": 2},
    {"question": "The fox saw the boat. " * 40 + "She", "choices": [" The", " The river"], "label": 0},
    {"question": "", "choices": ["The bird made the boat.", "boat the made bird"], "label": 0},
]
"""The fourth is longer than the model's context, the last has an empty one."""
CLOZE = [{"text": tiny.text(200, seed=seed).rsplit(" ", 1)[0]} for seed in range(6)]

CHOICE_TASK = """
task: foxes
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
CLOZE_TASK = """
task: last_word
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
target_delimiter: ""
metric_list: [{{metric: perplexity}}, {{metric: acc}}]
"""
ROLLING_TASK = """
task: whole_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""
GENERATING_TASK = """
task: writes
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
output_type: generate_until
test_split: test
doc_to_text: "x"
doc_to_target: "y"
"""
GROUP = "group: both\ntask: [foxes, last_word]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tiny.run(tmp_path_factory.mktemp("run") / "run")
    assert export(ExportConfig(threads=1, run=root, quant=["f16"]))["published"]
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tasks of local files."""
    root = tmp_path_factory.mktemp("tasks")
    for name, docs, task in (
        ("foxes", CHOICES, CHOICE_TASK),
        ("last_word", CLOZE, CLOZE_TASK),
        ("whole_texts", CLOZE, ROLLING_TASK),
        ("writes", CLOZE, GENERATING_TASK),
    ):
        path = root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
        (root / f"{name}.yaml").write_text(task.format(path=path), encoding="utf-8")
    (root / "both.yaml").write_text(GROUP, encoding="utf-8")
    (root / "broken.yaml").write_text(
        CHOICE_TASK.format(path=root / "foxes.jsonl").replace("foxes\n", "broken\n").replace("question", "inquiry")
    )
    (root / "away.yaml").write_text(CHOICE_TASK.format(path="/nowhere.jsonl").replace("foxes\n", "away\n"))
    return root


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def direct(run):
    """(log-likelihood, greedy) of a continuation: one forward pass of the checkpoint, f64 sums."""
    checkpoint = resolve(run).checkpoint()
    model, tokenizer = load_model(checkpoint), tiny.tokenizer()

    @torch.inference_mode()
    def score(context: str, continuation: str) -> tuple[float, bool]:
        before = tokenizer.encode(context)
        ids = tokenizer.encode(context + continuation)
        n = len(ids) - len(before)
        ids = [tokenizer.eot_id, *ids] if not before else ids[-(model.config.seq_len + 1) :]
        logprobs_TV = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)[-n:]
        targets = torch.tensor(ids[-n:])
        return float(logprobs_TV.gather(1, targets[:, None]).sum()), bool((logprobs_TV.argmax(1) == targets).all())

    return score


def run_tasks(run: Path, capsys, *options: str) -> tuple[list[dict], str]:
    assert main([f"run={run}", "eval.threads=1", *options]) == 0
    said = capsys.readouterr().out
    return json.loads(said.splitlines()[-1]), said


def test_metrics_of_both_engines_are_those_of_a_direct_computation(run, folder, direct, capsys):
    pytest.importorskip("lm_eval")
    rows, said = run_tasks(run, capsys, "tasks=foxes,last_word,whole_texts", f"harness.include_path={folder}")
    found = {(row["engine"], row["task"], row["metric"]): row for row in rows}
    scores = [[direct(doc["question"], choice)[0] for choice in doc["choices"]] for doc in CHOICES]
    picks = [int(np.argmax(each)) for each in scores]
    by_length = [
        int(np.argmax([score / len(choice) for score, choice in zip(each, doc["choices"], strict=True)]))
        for each, doc in zip(scores, CHOICES, strict=True)
    ]
    labels = [doc["label"] for doc in CHOICES]
    pairs = [[part if not i else " " + part for i, part in enumerate(doc["text"].rsplit(" ", 1))] for doc in CLOZE]
    cloze = [direct(*pair) for pair in pairs]
    nats, n_bytes = 0.0, 0
    for doc in CLOZE:
        nats -= direct("", doc["text"])[0]
        n_bytes += len(doc["text"].encode())
    expected = {
        ("foxes", "acc"): np.mean([a == b for a, b in zip(picks, labels, strict=True)]),
        ("foxes", "acc_norm"): np.mean([a == b for a, b in zip(by_length, labels, strict=True)]),
        ("last_word", "acc"): np.mean([greedy for _, greedy in cloze]),
        ("last_word", "perplexity"): math.exp(-np.mean([score for score, _ in cloze])),
        ("whole_texts", "bits_per_byte"): nats / math.log(2) / n_bytes,
    }
    for (task, metric), value in expected.items():
        assert found["torch", task, metric]["value"] == pytest.approx(value, rel=1e-5), (task, metric)
        assert found["llama.cpp", task, metric]["value"] == pytest.approx(value, rel=2e-2), (task, metric)
    assert len(found) == 2 * len(expected)
    acc = found["llama.cpp", "foxes", "acc"]
    assert acc["examples"] == 5
    assert acc["chance"] == pytest.approx((3 * 1 / 3 + 2 * 1 / 2) / 5)
    assert acc["stderr"] > 0
    assert found["torch", "last_word", "perplexity"]["stderr"] > 0
    assert "highest log-likelihood" in said
    assert "greedy decoding would write exactly the target" in said
    assert "2 contexts are longer than the 128 tokens" in said


def test_a_group_and_a_limit(run, folder, capsys):
    """The group's row is the mean over all examples; the table leaves its tasks to it."""
    pytest.importorskip("lm_eval")
    options = ["eval.files=[]", f"harness.include_path={folder}", "harness.limit=2", "harness.num_fewshot=0"]
    rows, said = run_tasks(run, capsys, "tasks=both", *options)
    found = {(row["task"], row["metric"]): row for row in rows}
    group = found["both", "acc"]
    assert group["value"] == pytest.approx((found["foxes", "acc"]["value"] + found["last_word", "acc"]["value"]) / 2)
    assert [found[name, "acc"]["examples"] for name in ("both", "foxes", "last_word")] == [4, 2, 2]
    table = said[: said.rindex("[{")]
    assert "both" in table
    assert "foxes" not in table


def test_answers_do_not_depend_on_what_else_is_asked(run, direct):
    """Windows of different lengths go through the models together; the sums change in their last digits only."""
    checkpoint = resolve(run).checkpoint()
    tokenizer = tiny.tokenizer()
    pairs = [(doc["question"], choice) for doc in CHOICES[:3] for choice in doc["choices"]]
    requests = [Request(context=tokenizer.encode(a), continuation=tokenizer.encode(a + b)[len(tokenizer.encode(a)) :])
                for a, b in pairs]  # fmt: skip
    with GGUFScorer(resolve(run).ggufs()[0], context=128, n_threads=1, exact=True) as gguf:
        for scorer, tolerance in ((checkpoint_scorer(checkpoint, 1), 1e-4), (gguf, 2e-2)):
            ran: list[int] = []
            together = score_continuations(scorer, requests, ran.append)
            alone = [score_continuations(scorer, [each])[0] for each in requests]
            assert [each.logprob for each in together] == pytest.approx([each.logprob for each in alone], abs=1e-3)
            expected = [direct(*pair) for pair in pairs]
            assert [each.logprob for each in together] == pytest.approx([e[0] for e in expected], abs=tolerance)
            assert [each.greedy for each in together] == [e[1] for e in expected]
            assert sum(ran) == sum(len(each.context) + len(each.continuation) - 1 for each in requests)
    with pytest.raises(UserError, match="a continuation has 200 tokens"):
        score_continuations(checkpoint_scorer(checkpoint, 1), [Request(context=[1], continuation=[2] * 200)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["tasks=foxs"], "did you mean 'foxes'"),
        (["tasks=writes"], "lets the model write its answer"),
        (["tasks=broken"], "'inquiry' is undefined); check the task's file and its data"),
        (["tasks=away"], "check the task's file and its data"),
        (["tasks=foxes", "harness.limit=0"], "harness.limit=0 must be at least 1"),
        (["tasks=foxes", "harness.include_path=/nowhere"], "there is no folder /nowhere"),
    ],
)
def test_mistakes_are_one_line(run, folder, options, message, only_local):
    with pytest.raises(UserError) as caught:
        main([f"run={run}", "eval.files=[]", "eval.threads=1", f"harness.include_path={folder}", *options])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def only_local(monkeypatch, tmp_path) -> list[bool]:
    """The harness with three of its folders: to list its thousands of files takes seconds. Returns, per list of tasks
    that was read, whether it was that of all folders."""
    tasks_of = pytest.importorskip("lm_eval.tasks")
    there, root = Path(tasks_of.__file__).parent, tmp_path / "harness"
    for name in ("arc", "blimp", "hellaswag"):
        shutil.copytree(there / name, root / name)
    monkeypatch.setattr(tasks, "harness_folder", lambda: root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    read: list[bool] = []

    def manager(include_path=None, include_defaults=True):
        read.append(include_defaults)
        paths = include_path if isinstance(include_path, list) else [include_path] if include_path else []
        return real(include_path=[str(root)] * include_defaults + paths, include_defaults=False)

    real = tasks_of.TaskManager
    monkeypatch.setattr(tasks_of, "TaskManager", manager)
    return read


def test_a_task_of_the_hub_without_a_network(run, only_local):
    """One line that names the data set, and no list of all tasks was read for it."""
    message = r"the data of hellaswag cannot be read .*, Rowan/hellaswag must be in the Hub's cache .* read your files"
    with pytest.raises(UserError, match=message) as caught:
        main([f"run={run}", "eval.files=[]", "tasks=hellaswag"])
    assert "\n" not in str(caught.value)
    assert only_local == [False]


def test_the_list_of_all_tasks_is_read_once(run, only_local):
    for name in ("blimp", "arc_*", "blimp"):
        with pytest.raises(UserError, match=f"the data of .*{name.strip('*')}.* cannot be read"):
            main([f"run={run}", "eval.files=[]", f"tasks={name}"])
    assert only_local == [True, False, False, False]


def test_an_unknown_name_is_refused_before_anything_is_loaded(run, folder, only_local):
    for name, hint in (("nosuch", "lm_eval ls tasks lists them"), ("hellaswagg", "did you mean 'hellaswag'")):
        with pytest.raises(UserError, match=rf"there is no task '{name}' in lm-evaluation-harness or .*; {hint}"):
            main([f"run={run}", f"harness.include_path={folder}", f"tasks=foxes,{name}"])
    with pytest.raises(UserError, match=r"there is no task 'nosuch_\*'"):
        main([f"run={run}", "tasks=nosuch_*"])
    assert only_local == []  # no list of tasks was made


def test_where_tasks_groups_and_tags_lie(tmp_path, monkeypatch):
    """A group includes its members' folders; a tag has the folders of its tasks."""
    harness = pytest.importorskip("lm_eval.tasks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    root = tmp_path / "tasks"
    for path, content in (
        ("a/one.yaml", "task: one\ntag: [odd, low]\n"),
        ("a/deep/er/two.yaml", "task: 'two'\n"),
        ("b/three.yaml", "tag: odd\ntask: three\n"),
        ("c/all.yaml", "group: all\ntask:\n  - two\n  - group: inside\n    task: [{task: three}, own]\n"),
        ("d/more.yaml", "group: more\ntask: [all, odd]\n"),
        ("e/four.yaml", "tag:  # two\n  - odd\n  - high\nclass: !function x.Four\ntask: four\n"),
        ("f/_shared", '"tag": shared\n'),
        ("f/five.yaml", "include: _shared\n'task': \"five\"\n"),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")
    own = {"one": ["a"], "two": ["a"], "three": ["b"], "four": ["e"]}
    assert {name: folders for name, folders in written_names(root).items() if folders} == own
    index = harness.TaskManager(include_path=str(root), include_defaults=False).task_index
    found = folders_of_all(root, lambda: index)
    assert found == own | {
        **{"odd": ["a", "b", "e"], "low": ["a"], "high": ["e"], "shared": ["f"], "five": ["f"]},
        **{"all": ["a", "b", "c"], "more": ["a", "b", "c", "d", "e"]},
    }
    assert found.keys() <= written_names(root).keys()
    assert folders_of_all(root, dict) == found, "it was not kept"


def test_without_the_harness(run, monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed: pip install .slm\[tasks\]"):
        main([f"run={run}", "eval.files=[]", "tasks=hellaswag"])
