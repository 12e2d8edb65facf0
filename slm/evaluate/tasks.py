"""``make eval TASKS=hellaswag,arc_easy``: tasks of lm-evaluation-harness on a checkpoint and on its GGUF files.

The harness runs in this process. It reads the examples (from the Hub, its cache, or local files that a task of one's
own names) and computes the metrics; ``slm.evaluate.harness`` gives it log-likelihoods of either engine.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slm import report
from slm.data.errors import UserError, excerpt, nearest
from slm.evaluate.config import HarnessConfig
from slm.evaluate.scorers import GGUFScorer, TorchScorer
from slm.evaluate.task_index import folders_of_all, harness_folder, scan, written_names
from slm.machine.crash_guard import doing

BOOTSTRAP = 1_000
"""Resamples of the standard errors that have no formula (perplexity)."""
FEWSHOT_SEED = 1_234
"""Chooses the examples that stand before a question (the harness's own default)."""
SCORED = ("loglikelihood", "loglikelihood_rolling", "multiple_choice")
"""What a task may ask of a model here."""
_DEFINITIONS = {
    ("acc", "multiple_choice"): "share of examples in which the right choice has the highest log-likelihood",
    ("acc_norm", "multiple_choice"): "the same with log-likelihoods divided by the choice's characters",
    ("acc_bytes", "multiple_choice"): "the same with log-likelihoods divided by the choice's bytes",
    ("acc", "loglikelihood"): "share of examples where greedy decoding would write exactly the target",
    ("perplexity", "loglikelihood"): "exp of the mean negative log-likelihood of a whole target (not of its tokens)",
    ("word_perplexity", "loglikelihood_rolling"): "exp of nats per whitespace-separated word of the text",
    ("byte_perplexity", "loglikelihood_rolling"): "exp of nats per UTF-8 byte of the text",
    ("bits_per_byte", "loglikelihood_rolling"): "bits per UTF-8 byte of the text",
}


class Tasks:
    """The tasks that a command names, loaded once for all models."""

    def __init__(self, names: list[str], config: HarnessConfig) -> None:
        """UserError, in one line, where a task is not known, cannot be loaded, or needs what is not here."""
        check_names(names, config)
        # Else the harness starts a process per core for a standard error, and each prints a bar.
        os.environ.setdefault("DISABLE_MULTIPROC", "1")
        logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of defaults that tasks are free to use
        self.config = config
        doing(f"loading the tasks {', '.join(names)}")
        print(f"loading the tasks {', '.join(names)}", flush=True)
        self.loaded = _load(names, config)
        self.tasks: dict[str, Any] = self.loaded["tasks"]
        for name, task in self.tasks.items():
            self._prepare(name, task)

    def _prepare(self, name: str, task: Any) -> None:
        kind = task.get_config("output_type")
        if kind not in SCORED:
            raise UserError(
                f"the task {name} lets the model write its answer ({kind}); here only tasks can be run that score "
                "given answers. docs/serving.md has how lm-eval asks the server for others"
            )
        # As the harness's own command does: a task that fixes its number of examples at 0 keeps it.
        own = task.get_config("num_fewshot")
        if self.config.num_fewshot is not None and own != 0:
            task.set_config(key="num_fewshot", value=self.config.num_fewshot)
        elif own is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
        try:
            task.build_all_requests(limit=1, rank=0, world_size=1)
        except Exception as error:  # the harness's own code, on a file that somebody wrote
            raise UserError(f"the task {name} cannot be made of its data ({_reason(error)}); check its file") from error

    def run(self, scorer: TorchScorer | GGUFScorer) -> list[dict[str, Any]]:
        """Rows of one model: one per task (groups, too) and metric."""
        import lm_eval

        from slm.evaluate.harness import HarnessModel

        model = HarnessModel(scorer)
        for task in self.tasks.values():
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
        doing(f"asking {scorer.name} the tasks' questions")
        results = lm_eval.evaluate(
            lm=model,
            task_dict=self.loaded,
            limit=self.config.limit,
            bootstrap_iters=BOOTSTRAP,
            log_samples=False,
        )
        if model.truncated:
            print(
                f"note: {model.truncated:,} contexts are longer than the {model.max_length} tokens of {scorer.name}; "
                "their starts were left out",
                flush=True,
            )
        return [row for name, values in results["results"].items() for row in self._rows(scorer, name, values, results)]

    def _rows(
        self, scorer: TorchScorer | GGUFScorer, name: str, values: dict[str, Any], results: dict[str, Any]
    ) -> Iterable[dict[str, Any]]:
        for key, value in values.items():
            metric, comma, filter_name = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            stderr = values.get(f"{metric}_stderr,{filter_name}")
            leaves = self.leaves(name)
            kinds = {self.tasks[leaf].get_config("output_type") for leaf in leaves}
            yield {
                "file": scorer.name,
                "engine": scorer.engine,
                "task": name,
                "metric": metric,
                "filter": filter_name,
                "value": value,
                "stderr": stderr if isinstance(stderr, int | float) else None,
                "definition": definition(metric, kinds),
                "chance": self.chance(leaves) if metric.startswith("acc") else None,
                "higher_is_better": results["higher_is_better"].get(name, {}).get(metric),
                "examples": sum(results["n-samples"][leaf]["effective"] for leaf in leaves),
                "num_fewshot": results["n-shot"].get(name),
                "version": results["versions"].get(name),
                "group": name not in self.tasks,
            }

    def leaves(self, name: str) -> list[str]:
        """The tasks of a group; of a task itself."""
        if name in self.tasks:
            return [name]
        return [each.task_name for each in self.loaded["groups"][name].get_all_tasks()]

    def chance(self, names: list[str]) -> float | None:
        """The share that guessing gets right in multiple-choice tasks, once their examples have been made."""
        shares = []
        for name in names:
            if self.tasks[name].get_config("output_type") != "multiple_choice":
                return None
            choices: dict[int, int] = {}
            for each in self.tasks[name].instances:
                choices[each.doc_id] = choices.get(each.doc_id, 0) + 1
            shares += [1 / n for n in choices.values()]
        return sum(shares) / len(shares) if shares else None

    def shown(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows without tasks that belong to a group with its own row."""
        groups = {row["task"] for row in rows if row["group"]}
        inside = {leaf for group in groups for leaf in self.leaves(group)}
        return [row for row in rows if row["task"] not in inside]


def check_names(names: list[str], config: HarnessConfig) -> None:
    """UserError where the harness is not there, or where no file of its tasks, nor one's own, has one of the names.

    It takes a second at most, and imports nothing of the harness.
    """
    if find_spec("lm_eval") is None:
        raise UserError(
            'tasks need lm-evaluation-harness, which is not installed: pip install "slm[tasks]" '
            '(in a checkout: .venv/bin/pip install -e ".[tasks]")'
        )
    own = config.include_path
    if own is not None and not own.is_dir():
        raise UserError(f"there is no folder {own}: harness.include_path holds YAML files of tasks")
    known = [*(scan(own) if own is not None else ()), *written_names(harness_folder())]
    for name in names:
        if not any(fnmatch(each, name) for each in known):
            raise _no_task(name, known, own)


def _no_task(name: str, known: list[str], own: Path | None) -> UserError:
    where = f" or {own}" if own else ""
    hint = nearest(name, known) or "lm_eval ls tasks lists them"
    return UserError(f"there is no task {name!r} in lm-evaluation-harness{where}; {hint}")


def definition(metric: str, kinds: set[str]) -> str:
    """What a metric of tasks of these kinds is."""
    texts = {_DEFINITIONS.get((metric, kind)) for kind in kinds}
    return (texts.pop() if len(texts) == 1 else None) or "as lm-evaluation-harness defines it"


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """The table, with what each metric is under it."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4f}" if abs(value) < 1_000 else report.perplexity_text(value)

    lines = list(dict.fromkeys(f"{row['metric']}: {row['definition']}" for row in rows))
    report.table(
        title,
        ["file", "engine", "task", "metric", "value", "± stderr", "chance", "few-shot", "examples"],
        [
            [
                row["file"],
                row["engine"],
                row["task"],
                row["metric"] + ("" if row["filter"] == "none" else f" ({row['filter']})"),
                number(row["value"]),
                number(row["stderr"]),
                number(row["chance"]),
                "" if row["num_fewshot"] is None else f"{row['num_fewshot']}",
                f"{row['examples']:,}",
            ]
            for row in rows
        ],
        caption="\n".join(
            [
                *lines,
                "chance: what guessing gets; few-shot: examples with their answers that stand before each question",
                f"stderr: of the mean over examples; of a perplexity by {BOOTSTRAP:,} bootstrap resamples",
            ]
        ),
    )


def _load(names: list[str], config: HarnessConfig) -> Any:
    """What the harness loads for the names, with as few of its thousands of files read as that takes."""
    from lm_eval.tasks import TaskManager

    own, root = config.include_path, harness_folder()

    def manager_of(folders: Iterable[str]) -> Any:
        # The harness's folders first: what is in one's own has precedence.
        paths = [str(root / each) for each in sorted(set(folders))] + ([str(own)] if own else [])
        return TaskManager(include_path=paths, include_defaults=False)

    mine: list[str] = []
    if own is not None:
        manager = manager_of([])
        mine = list(manager.all_tasks)
        if set(names) <= set(mine):
            with suppress(KeyError):  # a group may name tasks of the harness
                return _load_from(manager, names)
    known = written_names(root)
    if all(name in mine or len(known.get(name, [])) == 1 for name in names):
        manager = manager_of(known[name][0] for name in names if name not in mine)
        if set(names) <= set(manager.all_subtasks):
            return _load_from(manager, names)
    folders = folders_of_all(root, lambda: _listed(TaskManager))
    matched = []
    for name in names:
        found = sorted(each for each in {*folders, *mine} if fnmatch(each, name))
        if not found:
            raise _no_task(name, [*mine, *folders], own)
        matched += found
    # A group in one's own folder may name any task of the harness.
    manager = (
        TaskManager(include_path=str(own))
        if set(matched) & set(mine)
        else manager_of(top for name in matched for top in folders[name])
    )
    try:
        return _load_from(manager, list(dict.fromkeys(matched)))
    except KeyError as error:
        raise UserError(f"{', '.join(names)} cannot be loaded ({_reason(error)}); check the task's file") from error


def _listed(task_manager: Any) -> Any:
    print("listing all tasks of lm-evaluation-harness (half a minute or more; kept for the next time)", flush=True)
    return task_manager().task_index


def _load_from(manager: Any, names: list[str]) -> Any:
    try:
        return manager.load(names)
    except KeyError:
        raise
    except Exception as error:  # the harness's and datasets' own code, on whatever the task names
        offline = isinstance(error, ConnectionError) or "offline" in str(error).lower()
        advice = (
            f"without a network, {_datasets(manager, names)} must be in the Hub's cache from an earlier run, or the "
            "task must read your files (harness.include_path; docs/tutorial.md has an example)"
            if offline
            else "check the task's file and its data"
        )
        raise UserError(f"the data of {', '.join(names)} cannot be read ({_reason(error)}); {advice}") from error


def _datasets(manager: Any, names: list[str]) -> str:
    """The data sets of the Hub that tasks name, as far as their files say it."""
    entries = [manager.task_index.get(name) for name in names]
    paths = {(entry.cfg or {}).get("dataset_path") for entry in entries if entry is not None}
    return ", ".join(sorted(path for path in paths if isinstance(path, str))) or "their data"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {excerpt(error)}"
