"""examples/embedding_search against a real server."""

import json
import subprocess
import sys

import pytest

from tests.helpers import REPOSITORY
from tests.helpers.example_pages import commands, run

SCRIPT = REPOSITORY / "examples" / "embedding_search" / "search.py"


def search(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    (folder / "fox.md").write_text("# The fox\n\nThe old fox went to the river to find the red boat again.\n\nShort.\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "bear.txt").write_text("\n\nThe bear said hello\nto the little bird in the garden, once more.\n")
    return folder


def test_a_paragraph_is_found_by_its_own_words(chat_server, notes, tmp_path):
    index, url = tmp_path / "new" / "index.json", f"{chat_server.url}/v1"
    made = search("index", notes, "--index", index, "--url", url)
    assert made.returncode == 0, made.stderr
    assert "2 paragraphs" in made.stdout
    found = search(
        "ask", "The bear said hello to the little bird in the garden, once more.", "--index", index, "--url", url
    )
    first, text, *_ = found.stdout.splitlines()
    assert first.startswith("1.000")
    assert first.endswith("bear.txt:3")
    assert text.strip().startswith("The bear said hello to")
    other = json.loads(index.read_text()) | {"model": "another"}
    index.write_text(json.dumps(other))
    refused = search("ask", "hello", "--index", index, "--url", url)
    assert refused.returncode == 1
    assert "index the folder again" in refused.stderr


def test_trouble_is_one_line(chat_server, tmp_path):
    for words, says in (
        (("index", tmp_path, "--index", tmp_path / "i"), "no paragraphs"),
        (("ask", "x", "--index", tmp_path / "i"), "there is no index"),
    ):
        done = search(*words)
        assert done.returncode == 1
        assert says in done.stderr
    (tmp_path / "a.txt").write_text("a paragraph that is longer than forty characters, as it must be")
    done = search("index", tmp_path, "--index", tmp_path / "i", "--url", "http://127.0.0.1:9/v1")
    assert "no server at" in done.stderr


def test_every_command_of_the_page(chat_server, tmp_path):
    index, ask = (f"{line} --url {chat_server.url}/v1" for line in commands("embedding_search/README.md"))
    run(index.replace("docs/", "examples/"), tmp_path)
    assert len(run(ask, tmp_path).splitlines()) == 6
