"""The files, modules and options that the documentation names exist."""

import json
import re
from pathlib import Path

import pytest

from slm.data.chat.formats import TITLES, read_record
from slm.removed_options import REMOVED as REMOVED_OPTIONS
from tests.helpers import REPOSITORY
from tests.helpers.options import known_options

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PAGES += sorted((REPOSITORY / "examples").rglob("*.md"))
PAGES.remove(REPOSITORY / "docs" / "lab" / "changes.md")  # options and files of earlier days
FOLDERS = ("data", "slm", "train", "export", "serve", "studio", "configs", "docs", "tests", "examples")
FILES = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.suffix != ".pyc"]
REMOVED = {"narrow.py"}  # docs/lab/decisions.md says why
OTHER_PROGRAMS = {"pytest"}
OTHER_OPTIONS = {"glibc.malloc.hugetlb"}

LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")
FENCED = re.compile(r"```.*?```", re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
MODULE = re.compile(r"python3? -m ([\w.]+\w)")
OPTION = re.compile(r"(?<![\w./-])([a-z][a-z_0-9]*(?:\.[a-z_0-9]+)+)=")


def paths_in(text: str) -> set[str]:
    """The words in a text's code spans that name Python files or lie in a folder of the repository."""
    words = {word for span in CODE.findall(FENCED.sub("", text)) for word in span.split() if PATH.fullmatch(word)}
    return {word for word in words if word.endswith(".py") or word.startswith(tuple(f"{name}/" for name in FOLDERS))}


def exists(path: str) -> bool:
    """Whether a path from the root exists. A table may leave out leading folders that its head names."""
    return any(REPOSITORY.glob(path.rstrip("/"))) or any(str(file).endswith(f"/{path.rstrip('/')}") for file in FILES)


def is_module(name: str) -> bool:
    """Whether ``python -m NAME`` runs something."""
    first, _, rest = name.partition(".")
    in_stage = first == "slm" and rest.split(".")[0] in ("data", "train", "export", "serve", "studio")
    base = REPOSITORY / (rest if in_stage else name).replace(".", "/")
    return base.with_suffix(".py").is_file() or (base / "__main__.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    wrong = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    wrong += [path for path in sorted(paths_in(text) - REMOVED) if not exists(path)]
    wrong += [name for name in MODULE.findall(text) if not is_module(name) and name not in OTHER_PROGRAMS]
    assert wrong == []


TYPED = [page for page in PAGES if page.parent.name in ("docs", "results") and page.name != "decisions.md"]


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.stem)
def test_a_page_begins_with_what_one_types(page: Path) -> None:
    begins = page.read_text().splitlines()[:6]
    assert any(re.match(r" {4}\S", line) for line in begins), begins


def anchors(page: Path) -> set[str]:
    """What links to a page's headings end in, as GitHub makes it of their text."""
    headings = [
        line.lstrip("#").strip() for line in FENCED.sub("", page.read_text()).split("\n") if line.startswith("#")
    ]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_the_headings_that_a_page_links_to_exist(page: Path) -> None:
    for path, anchor in ANCHOR.findall(page.read_text()):
        assert anchor in anchors(page.parent / path if path else page), f"{path}#{anchor}"


def test_what_is_removed_is_gone() -> None:
    assert not any(exists(path) for path in REMOVED)


def test_names_are_found() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert len(paths_in(text)) >= 100
    assert len(set(LINK.findall(text))) >= 20
    assert {"slm.train", "slm.serve.bench", "slm.train.distributed.launch"} <= set(MODULE.findall(text))

    assert paths_in("`serve/web` [a](b) `python -m x tests/x.py` `narrow.py`, `runs/a` and `/v1/models`") == {
        "serve/web",
        "tests/x.py",
        "narrow.py",
    }
    for path, there in {
        "slm/model/config.py": True,
        "configs/*.yaml": True,
        "serve/web": False,
        "slm/fused.py": False,
    }.items():
        assert exists(path) == there
    for name, there in {
        "slm.doctor": True,
        "slm.serve.bench": True,
        "slm.train.plan": False,
        "slm.serve.api": False,
    }.items():
        assert is_module(name) == there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_the_options_that_a_page_gives_exist(page: Path) -> None:
    known = known_options() | OTHER_OPTIONS
    if page.parent.name == "lab":  # a measurement has the options of its day
        known |= set(REMOVED_OPTIONS)
    assert set(OPTION.findall(page.read_text())) <= known


def test_options_are_found() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert len(set(OPTION.findall(text))) >= 80
    assert OPTION.findall("`a.b=1` c.d_e.f=[x] g=2 /h.i=3 --j.k=4") == ["a.b", "c.d_e.f"]


def test_the_records_to_copy_are_read_each_in_its_format() -> None:
    page = (REPOSITORY / "docs" / "chat.md").read_text()
    block = re.search(r"^```json\n(.*?)^```", page, re.M | re.S)
    assert block
    records = [json.loads(line) for line in block[1].splitlines()]
    read = [read_record(record) for record in records]
    assert {each.kind for each in read} == set(TITLES)
    assert all(each.conversation["messages"][-1]["role"] == "assistant" for each in read)
