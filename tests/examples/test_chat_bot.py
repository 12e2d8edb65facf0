"""examples/chat_bot against a real server of a random model: the conversation's way, not its sense."""

import importlib.util
import subprocess
import sys

import pytest
from openai import BadRequestError, OpenAI

from tests.helpers import REPOSITORY
from tests.helpers.example_pages import commands, run

SCRIPT = REPOSITORY / "examples" / "chat_bot" / "bot.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("chat_bot", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client(chat_server):
    return OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0)


def test_the_way_to_a_model_of_ones_own_is_made_of_targets_that_exist(tmp_path):
    """``make`` only prints what it would do: tests/train/tune and tests/export do it."""
    *way, _ = commands("chat_bot/README.md")
    printed = [run(line.replace("make ", "make -n ", 1), tmp_path / "runs") for line in way]
    for part, found in zip(("slm demo", "slm tune", "slm export", "slm serve"), printed, strict=True):
        assert part in found
    assert "base=" in printed[1]
    assert "name=bot" in printed[1]


def test_the_typed_command_answers_line_by_line(chat_server):
    *_, talk = commands("chat_bot/README.md")
    command = talk.replace(".venv/bin/python", sys.executable) + f" --url {chat_server.url}/v1 --max-tokens 5"
    before = chat_server.metrics()["slm_completion_tokens_total"]
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=REPOSITORY,
        input="hello\n\nand now?\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") >= 2
    assert 2 <= chat_server.metrics()["slm_completion_tokens_total"] - before <= 10


def test_the_history_is_sent_and_its_oldest_turns_are_dropped(script, client, capsys):
    bot = script.Bot(client, "You are a fox.", 4)
    bot.answer("the old fox")
    bot.answer("the little bird")
    assert [turn["role"] for turn in bot._turns] == ["user", "assistant"] * 2
    assert bot._turns[2]["content"] == "the little bird"
    bot.answer("QZXJ " * 60)
    bot.answer("JXZQ " * 60)
    assert "forgotten" not in capsys.readouterr().err
    # The context is 1,024 tokens: this fits only without what was before.
    bot.answer("ZQJX " * 120)
    assert "messages are forgotten" in capsys.readouterr().err


def test_a_question_that_never_fits_is_reported_and_forgotten(script, client):
    bot = script.Bot(client, None, 4)
    with pytest.raises(BadRequestError, match="context"):
        bot.answer("x" * 5000)
    assert bot._turns == []


def test_without_a_server_it_says_so(tmp_path):
    command = [sys.executable, SCRIPT, "--url", "http://127.0.0.1:9/v1"]
    done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=120)
    assert done.stderr.startswith("no answer: ")
    assert len(done.stderr.splitlines()) == 1
