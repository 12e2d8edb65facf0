"""The last step of a preparation: what the shards hold together, and the report.

Tested in tests/data/prepare/test_prepare.py.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from slm.data.config import CORPUS
from slm.data.prepare.shard import PARTS, dtype_of
from slm.data.prepare.work import Text, Work
from slm.data.sources.contents import EXAMPLES
from slm.data.sources.prepared.manifest import CALIBRATION, TRAIN, VALIDATION, VERSION, ids_of_text
from slm.data.storage import atomic_write_text, fingerprint

REPORT, PAGE = "report.json", "report.md"


def finish(work: Work) -> dict[str, Any]:
    """Write the report and, last, ``slm-corpus.json``. Returns the report. All shards must have been made."""
    shards = [json.loads(work.path(number, "json").read_text()) for number in range(len(work.shards))]
    sources = [_facts(work, text, shards) for text in work.texts if not text.own_validation]
    of_text = ids_of_text(work.tokenizer)
    what = [(each["source"], each["own_validation"], each["stretches"], each["digest"]) for each in shards]
    how = [(each["label"], each["weight"], each["files"], each["own_validation"]) for each in sources]
    manifest = {
        "version": VERSION,
        "identity": fingerprint((VERSION, of_text, what, how)),
        "tokenizer": {"name": _name(work.options), "vocab_size": work.tokenizer.vocab_size, "ids": of_text},
        "dtype": dtype_of(work.tokenizer.vocab_size),
        "options": work.options,
        "sources": sources,
        "shards": [{key: value for key, value in each.items() if key != "counts"} for each in shards],
    }
    report = _report(work, manifest)
    _write(work, REPORT, report)
    atomic_write_text(work.folder / PAGE, page(report))
    _write(work, CORPUS, manifest)
    return report


def report_of(folder: Path) -> dict[str, Any]:
    """The report of a complete corpus."""
    found: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    return found


def _name(options: dict[str, Any]) -> str:
    """What messages call the tokenizer."""
    if options["tokenizer.kind"] in ("bpe", "sentencepiece", "unigram"):
        return f"{options['tokenizer.kind']}-{options['tokenizer.vocab_size']}"
    return str(options["tokenizer.name"] if options["tokenizer.kind"] == "tiktoken" else options["tokenizer.path"])


def _write(work: Work, name: str, content: Any) -> None:
    atomic_write_text(work.folder / name, json.dumps(content, ensure_ascii=True, indent=1) + "\n")


def _facts(work: Work, text: Text, shards: list[dict[str, Any]]) -> dict[str, Any]:
    """What training must know of a source."""
    numbers = {its.own_validation: n for n, its in enumerate(work.texts) if its.source == text.source}
    plan, source = text.plan, text.plan.source
    own = True in numbers
    validation = next((its for part, its in text.shares if part == VALIDATION), None)
    return {
        "label": source.label,
        "weight": source.weight,
        "max_epochs": source.max_epochs,
        "validated": source.validated,
        "of_files": bool(plan.files),
        "long_documents": plan.long_documents,
        "least_documents": plan.least_documents,
        "by_file": source.kind == "hub" and source.rows == "documents",
        "files": work.n_files[numbers[False]],
        "own_validation": own,
        "validation_files": work.n_files[numbers[True]] if own else 0,
        "held_out": validation.held_out if validation else 0.0,
        "passage": validation.passage if validation else 0.0,
        "counts": _sum([each["counts"] for each in shards if _is_of(each, text.source, own=False)]),
        "validation_counts": _sum([each["counts"] for each in shards if _is_of(each, text.source, own=True)]),
    }


def _is_of(shard: dict[str, Any], source: int, *, own: bool) -> bool:
    return bool(shard["source"] == source and shard["own_validation"] is own)


def _sum(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several shards together."""
    total: dict[str, Any] = {"read": sum(each["read"] for each in counts)}
    total["passages"] = sum(each["passages"] for each in counts)
    for name in ("left_out", "changed", "replaced"):
        total[name] = dict(sum((Counter(each[name]) for each in counts), Counter[str]()))
    examples: dict[str, list[str]] = {}
    for each in counts:
        for why, texts in each["examples"].items():
            examples[why] = [*examples.get(why, ()), *texts][:EXAMPLES]
    total["examples"] = examples
    parts = {str(part): Counter[str](documents=0, bytes=0, tokens=0) for part in PARTS}
    for each in counts:
        for part, its in each["parts"].items():
            parts[part].update(its)
    total["parts"] = {part: dict(its) for part, its in parts.items()}
    return total


def _report(work: Work, manifest: dict[str, Any]) -> dict[str, Any]:
    found = []
    for facts in manifest["sources"]:
        counts = facts["counts"]
        train, kept = counts["parts"][str(TRAIN)], counts["parts"][str(CALIBRATION)]
        held_out = (facts["validation_counts"] if facts["own_validation"] else counts)["parts"][str(VALIDATION)]
        found.append(
            {
                "source": facts["label"],
                "read": counts["read"],
                "taken": train["documents"] + kept["documents"],
                "bytes": train["bytes"] + kept["bytes"],
                "tokens": train["tokens"] + kept["tokens"],
                "left_out": counts["left_out"],
                "passages_held_out": counts["passages"],
                "changed": counts["changed"],
                "replaced": counts["replaced"],
                "validation": held_out,
                "examples": counts["examples"],
            }
        )
    tokenizer = manifest["tokenizer"]
    return {
        "tokenizer": tokenizer["name"],
        "vocab_size": tokenizer["vocab_size"],
        "identity": manifest["identity"],
        "shards": len(work.shards),
        "tokens": sum(each["tokens"] for each in found),
        "sources": found,
        "options": work.options,
    }


def rows_of(report: dict[str, Any]) -> list[list[str]]:
    """The report as rows of a table: source, what, how many."""
    rows = []
    for each in report["sources"]:
        rows.append([each["source"], "read", f"{each['read']:,} records"])
        rows.append(["", "taken", f"{each['taken']:,} ({each['tokens']:,} tokens, {each['bytes'] / 1e6:,.1f} MB)"])
        if each["passages_held_out"]:
            rows.append(["", "taken without a passage, which is held out", f"{each['passages_held_out']:,}"])
        rows += [["", f"left out: {why}", f"{n:,}"] for why, n in Counter(each["left_out"]).most_common()]
        rows += [["", f"masked or cut out: {kind}", f"{n:,}"] for kind, n in Counter(each["changed"]).most_common()]
        rows += [["", f"replaced by U+FFFD: {what}", f"{n:,}"] for what, n in each["replaced"].items()]
        held_out = each["validation"]
        rows.append(["", "validation", f"{held_out['documents']:,} ({held_out['tokens']:,} tokens)"])
    return rows


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        "# A prepared corpus",
        "",
        f"{report['tokens']:,} tokens of {report['tokenizer']} ({report['vocab_size']:,} ids) in {report['shards']:,} "
        "shards.",
        "",
        "| source | what | how many |",
        "|---|---|---|",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows_of(report)),
    ]
    for each in report["sources"]:
        for why, texts in each["examples"].items():
            lines += ["", f"## {_cell(each['source'])}: left out by {_cell(why)}", ""]
            lines += [f"- {_cell(text)}" for text in texts]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A text on one line that Markdown takes as it is."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
