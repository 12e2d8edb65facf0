"""``python -m slm.serve.bench model=PATH``: our server under load, next to other servers and to llama.cpp's own
limit."""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import replace

from slm import cli
from slm.llama.verdict import crash_advice, require_working_build
from slm.machine.busy import Others
from slm.machine.crash_guard import doing, guarded
from slm.report import final_json
from slm.serve.bench.config import BenchConfig, BenchOptions
from slm.serve.bench.contenders import SLOT_CONTEXT, Contender, contenders, ours
from slm.serve.bench.limit import Limiter, memory_bound
from slm.serve.bench.measure import Measured, measure, median_figures
from slm.serve.bench.record import make_record
from slm.serve.bench.report import show
from slm.serve.bench.workloads import Case, Prompts, cases, mean_tokens
from slm.serve.config import load
from slm.serve.pool.memory_plan import read_facts
from slm.serve.pool.model_files import resolve_model


def main(argv: list[str]) -> int:
    """Measures, and prints tables and one line of JSON. Raises ``UserError`` for what the caller can mend."""
    # Ended from outside, the benchmark still ends the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    own = [word for word in argv if word.startswith("serve.")]
    config = load(BenchConfig, "bench_serve", [word for word in argv if word not in own], literal=("model",))
    options = replace(config.bench, options=[*config.bench.options, *own])
    path, note = resolve_model(config.model)
    if note:
        print(note, file=sys.stderr)
    require_working_build()
    prompts = Prompts(options)
    doing(f"reading the vocabulary of {path.name}")
    prompt_tokens = mean_tokens(path, [prompts.take() for _ in range(32)])
    servers, notes = contenders(options)
    facts = read_facts(path)
    given = [int(word.partition("=")[2]) for word in options.options if re.fullmatch(r"serve\.context=\d+", word)]
    context = facts.context(given[-1] if given else 0)
    if len(servers) > 1:  # each of the others divides its context among its slots
        context = min(context, SLOT_CONTEXT)
    for line in notes:
        print(line, file=sys.stderr)
    others = Others()
    limiter = Limiter(options, path, round(prompt_tokens))
    planned: list[Case] = []
    measured: dict[str, Measured] = {server.name: {} for server in servers}
    for _ in range(options.repeats):
        # The limit and the servers are measured in turn, because a machine's speed drifts.
        limiter.measure()
        planned = planned or cases(options, prompts, limiter.limit, prompt_tokens, context=context)
        for server in servers:
            for start, part in _starts(server, planned, options):
                measure(start, path, part, measured[server.name])
    figures = {
        name: {key: {n: median_figures(each) for n, each in by_n.items()} for key, by_n in by_key.items()}
        for name, by_key in measured.items()
    }
    memory = memory_bound(path, prompt_tokens=prompt_tokens, new_tokens=options.new_tokens)
    record = make_record(options, path, figures, limiter, prompt_tokens, memory)
    record["others_share"] = others.share()
    show(record, notes)
    final_json(record)
    return 0


def _starts(server: Contender, planned: list[Case], options: BenchOptions) -> list[tuple[Contender, list[Case]]]:
    """How often a server is started, and for which cases: our server is started once more for ``repeat`` where that
    workload has its own options."""
    if server.name != "ours" or not options.repeat_options:
        return [(server, planned)]
    starts = [(server, [each for each in planned if each.key != "repeat"])]
    if repeat := [each for each in planned if each.key == "repeat"]:
        starts.append((ours([*options.options, *options.repeat_options]), repeat))
    return starts


if __name__ == "__main__":
    cli.run(lambda argv: guarded(lambda: main(argv), advice=crash_advice))
