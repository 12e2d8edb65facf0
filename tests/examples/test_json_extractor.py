"""examples/json_extractor against a real server. The model is random: only the form of its answers has a meaning."""

import json
import re
import shlex
import subprocess
import sys

import jsonschema

from tests.helpers import REPOSITORY
from tests.helpers.example_pages import commands, run

FOLDER = REPOSITORY / "examples" / "json_extractor"


def extract(*words, text="Ann ordered 3 chairs."):
    return subprocess.run(
        [sys.executable, FOLDER / "extract.py", *words], input=text, capture_output=True, text=True, timeout=120
    )


def test_the_typed_command_prints_what_fits_the_schema(chat_server, tmp_path):
    *_, ask = commands("json_extractor/README.md")
    out = run(f"{ask} --url {chat_server.url}/v1", tmp_path)
    schema = json.loads((FOLDER / "order.schema.json").read_text())
    jsonschema.validate(json.loads(out), schema)
    # The page shows an answer of this schema, too.
    shown = re.search(r"^```json\n(.*?)^```", (FOLDER / "README.md").read_text(), re.M | re.S)
    jsonschema.validate(json.loads(shown.group(1)), schema)


def test_trouble_is_one_line(chat_server, tmp_path):
    url = f"{chat_server.url}/v1"
    refused = tmp_path / "refused.json"
    refused.write_text(json.dumps({"type": "string", "pattern": "(?=a)b"}))
    for words, says in (
        ((FOLDER / "order.schema.json", "--url", url, "--max-tokens", "3"), "--max-tokens"),
        ((tmp_path / "none.json", "--url", url), "none.json"),
        ((refused, "--url", url), "pattern"),
        ((FOLDER / "order.schema.json", "--url", "http://127.0.0.1:9/v1"), "no fields"),
    ):
        done = extract(*words)
        assert done.returncode == 1, done.stdout
        assert says in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_page_makes_the_model_with_commands_that_exist():
    download, export, serve, _ = commands("json_extractor/README.md")
    assert shlex.split(download)[:2] == [".venv/bin/hf", "download"]
    folder = shlex.split(download)[-1]
    assert f"MODEL={folder} " in export
    assert serve == f"make serve MODEL={folder}"
