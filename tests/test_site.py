"""The site's generated pages: every option of every command, and the files outside docs/ that pages link to.

The pages are made by docs/reference.py, without MkDocs. ``make docs`` builds the site and refuses a broken link.
"""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from slm.command.table import COMMANDS
from slm.options import listed
from tests.helpers import REPOSITORY
from tests.helpers.options import known_options

spec = importlib.util.spec_from_file_location("reference", REPOSITORY / "docs" / "reference.py")
assert spec
assert spec.loader
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The page of options, by command."""
    parts = re.split(r"^## slm ([\w-]+)$", reference.options(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_is_on_the_site(sections, name):
    on_page = re.findall(r"^\| `([^`]+)` \|", sections[name], re.MULTILINE)
    assert on_page == [option.key for option in listed(COMMANDS[name].config)]
    # A bar within `code` is text; any other would begin another cell.
    rows = [line for line in sections[name].splitlines() if line.startswith("| `")]
    assert {re.sub(r"`[^`]*`|\\\|", "", row).count("|") for row in rows} == {4}


def test_every_option_of_every_yaml_file_is_on_the_site(sections):
    text = "\n".join(sections.values())
    on_page = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    included = {option.removeprefix("data.") for option in on_page if option.startswith("data.")}
    options = {key for key in known_options() if not any(each.startswith(f"{key}.") for each in known_options())}
    missing = {key for key in options - on_page - included if not key.startswith(("preset.", *NOT_TYPED))}
    assert missing == {"components.quantization.share", "components.quantization.least_steps"}
    assert "+components.quantization.share=0.1 of the run; .least_steps=50" in text  # at train.qat


NOT_TYPED = ("defaults", "data.defaults", "data.with_files")
"""Hydra's lists, and a key of a mixture's sources, which stand in a file of the group data. Presets repeat what others
list."""


def test_files_outside_docs_are_on_the_site_where_a_page_links_to_them():
    found = {path.relative_to(REPOSITORY).as_posix(): reference.place(path) for path in reference.outside()}
    assert found["README.md"] == "index.md"
    assert found["examples/chat_bot/README.md"] == "examples/chat_bot/index.md"
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "examples/chat_bot/bot.py"} <= set(found)


def test_every_page_is_in_the_navigation():
    def pages(tree: object) -> list[str]:
        if isinstance(tree, str):
            return [tree]
        return [page for each in (tree.values() if isinstance(tree, dict) else tree) for page in pages(each)]

    text = (REPOSITORY / "mkdocs.yml").read_text()
    listed_there = pages(yaml.safe_load(text)["nav"])
    files = [*(REPOSITORY / "docs").rglob("*.md"), *(path for path in reference.outside() if path.suffix == ".md")]
    there = {reference.place(Path(path)) for path in files} | {"reference/options.md", "reference/python.md"}
    assert sorted(listed_there) == sorted(there)
