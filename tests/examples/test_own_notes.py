"""examples/own_notes, as typed, in small."""

import json

import pytest

from tests.helpers.example_pages import commands, run

pytestmark = pytest.mark.slow


def test_every_command_of_the_page(tmp_path):
    statistics, train, export, chat = commands("own_notes/README.md")
    (source,) = json.loads(run(statistics, tmp_path).splitlines()[-1])["sources"].values()
    assert source["documents"] > 10
    assert (tmp_path / "data-stats.png").is_file()
    run(train, tmp_path)
    assert (tmp_path / "notes" / "report.html").is_file()
    assert json.loads(run(export, tmp_path).splitlines()[-1])["published"]
    assert list((tmp_path / "notes" / "gguf").glob("*Q8_0.gguf"))
    assert run(chat, tmp_path).startswith("The server")
