"""What the schema at /openapi.json says may be sent, and what it says may not, made up by schemathesis and sent.

SLM_SCHEMA_CASES sets how many requests there are (10,000 for the whole proof), SLM_SCHEMA_SEED which.
"""

import json
import os
import time
from collections import Counter

import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

N_CASES = int(os.environ.get("SLM_SCHEMA_CASES", "120"))
SEED = int(os.environ.get("SLM_SCHEMA_SEED", "0"))
LIMIT_S = 30
"""For one answer, on a busy machine."""
# Small enough that what a request may ask for at most is soon done.
WORDS = ("serve.context=64", "serve.slots=4", "serve.max_n=4", "serve.access_log=false")


@pytest.fixture(scope="module")
def small_server(tmp_path_factory, chat_path, start_server):
    with start_server(tmp_path_factory.mktemp("log") / "server.log", chat_path, *WORDS) as server:
        yield server


def ended_well(stream: str) -> bool:
    """Whether all events, or lines, are JSON, and the last one is the right one."""
    if not stream.startswith(("data: ", "event: ", ": ")):
        return [json.loads(line) for line in stream.splitlines()][-1]["done"] is True
    events = [event.rpartition("data: ")[2] for event in stream.split("\n\n") if event]
    parsed = [json.loads(event) for event in events if event != "[DONE]"]
    last = parsed[-1]
    return (
        events[-1] == "[DONE]"
        or last.get("stop") is True
        or last.get("type") in ("response.completed", "response.incomplete", "message_stop")
    )


def rss_mb(server) -> float:
    """Of the server and its engine."""
    own = psutil.Process(server.process.pid)
    return sum(each.memory_info().rss for each in [own, *own.children(recursive=True)]) / 1e6


def test_what_the_schema_says(small_server):
    """No case is answered with a 5xx, nor late, nor in a form that the schema does not tell; no slot is leaked."""
    server = small_server
    load_all_checks()
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 10
    weights = {each.label: 20 if each.method == "post" else 1 for each in operations}
    statuses, slowest, memory = Counter(), (0.0, ""), []
    with requests.Session() as session:

        def send(case) -> None:
            nonlocal slowest
            began = time.perf_counter()
            # Not by `case.call`, which leaves a stream before its end.
            answer = session.request(**case.as_transport_kwargs(base_url=server.url), timeout=LIMIT_S)
            slowest = max(slowest, (time.perf_counter() - began, case.operation.label))
            statuses[answer.status_code] += 1
            assert answer.status_code < 500 or answer.status_code == 501, (case.as_curl_command(), answer.text)
            checks = [status_code_conformance, content_type_conformance]
            if answer.headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson")):
                assert ended_well(answer.text), (case.as_curl_command(), answer.text)
            else:
                checks.append(response_schema_conformance)
            case.validate_response(answer, checks=checks)

        for operation in operations:
            n = max(2, round(N_CASES * weights[operation.label] / sum(weights.values()) / 2))
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                limits = settings(
                    max_examples=n,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                seed(SEED)(limits(given(operation.as_strategy(generation_mode=mode))(send)))()
            memory.append(rss_mb(server))
    print(
        f"{statuses.total()} cases, seed {SEED}: {dict(sorted(statuses.items()))}; "
        f"slowest {slowest[0]:.2f} s ({slowest[1]}); memory after each route, MB: {[round(each) for each in memory]}"
    )
    assert statuses.total() > 0.9 * N_CASES
    assert server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0) < 5
    server.wait(lambda: server.metrics()["slm_sequences_running"] == 0)
    assert server.metrics()["slm_engine_restarts_total"] == 0
    assert "Traceback" not in server.log.read_text()
