"""``data=path/to/mix.yaml``, mixtures on the command line, and the recipes for data sets of the Hub by name."""

import pytest
import yaml

from slm.command.grammar import read
from slm.configuration import build, load_config, to_dict
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.options import CONFIG_DIR, choices

MIX = """
# My books and some stories.
kind: mixture
sources:
  - {kind: files, files: [books/], weight: 0.7, max_epochs: 4}
  - {kind: tales, weight: 0.3}
shuffle_buffer: 7
"""


def data(*words: str) -> DataConfig:
    return build(DataConfig, load_config("data_stats", list(words))["data"])


def test_a_mixture_stands_in_a_file_anywhere(tmp_path, monkeypatch):
    folder = tmp_path / "it's my text"
    folder.mkdir()
    (folder / "mix.yaml").write_text(MIX)
    monkeypatch.chdir(folder)
    meant = [read("train", line) for line in (["mix.yaml"], ["data=mix.yaml"], [f"data={folder}/mix.yaml"])]
    assert meant[0] == meant[1] == ["data='mix.yaml'"]
    for (word,) in meant[1:]:
        found = data(word, "data.min_chars=9")
        assert [(each.kind, each.weight, each.max_epochs) for each in found.all_sources()] == [
            ("files", 0.7, 4),
            ("tales", 0.3, None),
        ]
        assert (found.shuffle_buffer, found.all_sources()[0].min_chars, found.cache) == (7, 9, "auto")
    (folder / "mix.yaml").write_text("defaults: [/data_options@_here_, _self_]\nkind: files\nfiles: [a.txt]\n")
    assert data("data=mix.yaml").files == ["a.txt"]  # read again


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: [", "mix.yaml:1: not valid YAML"),
        ("- kind: tales", "mix.yaml does not describe text: it must have kind"),
        ("files: [a.txt]", "mix.yaml does not describe text: it must have kind"),
        ("kind: mixture\nsauces: []", "no option sauces; did you mean 'sources'"),
        ("sources: [{kind: tales, wieght: 2}]", "no option sources[0].wieght; did you mean 'weight'"),
        ("sources: []", "data kind=mixture needs data.sources"),
        (
            "defaults: [local]\nkind: files",
            "defaults may be [/data_options@_here_, _self_] or left out, and not 'local'",
        ),
        (b"kind: \xff\xfe", "mix.yaml cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, says):
    (tmp_path / "mix.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        data(f"data={tmp_path}/mix.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(UserError, match=r"there is no file gone\.yaml: data= takes a YAML file"):
        data("data=gone.yaml")


def test_a_mixture_on_the_command_line():
    found = data("data=mixture", "data.sources=[{kind: files, files: [books/], weight: 0.7}, {kind: tales}]")
    assert [each.kind for each in found.all_sources()] == ["files", "tales"]
    with pytest.raises(UserError, match=r"needs data\.sources: a list of sources with weights"):
        data("data=mixture")


def test_a_data_set_of_the_hub_by_its_name():
    found = data("data=hub", "data.path=HuggingFaceFW/fineweb-edu", "data.name=sample-10BT", "data.text_field=text")
    assert (found.path, found.subset, found.text_field) == ("HuggingFaceFW/fineweb-edu", "sample-10BT", "text")
    assert found.label == "HuggingFaceFW/fineweb-edu sample-10BT"
    assert data("data=hub", "data.path=a/b").subset == ""
    named = data("data=hub", "data.path=a/b", "data.subset=x", "data.name=mine")
    assert (named.subset, named.label) == ("x", "mine")


def test_recipes_for_the_hub():
    recipes = {"fineweb_edu", "cosmopedia", "smollm_corpus", "tinystories", "wikipedia_stories", "wikitext"}
    assert recipes <= set(choices("data"))
    for name in recipes:
        tree = yaml.safe_load((CONFIG_DIR / f"data/{name}.yaml").read_text())
        parts = build(DataConfig, {key: value for key, value in tree.items() if key != "defaults"}).all_sources()
        assert all(each.kind == "hub" and "/" in each.path for each in parts), name
    parts = data("data=smollm_corpus").all_sources()
    assert {each.subset: each.weight for each in parts} == {"fineweb-edu-dedup": 0.887, "cosmopedia-v2": 0.113}


def test_the_reference_mixture_from_files():
    for word in ("data=wikipedia_stories", "preset=125m"):
        found = data(word, "data.files=[wiki/]", "data.val_files=[held.parquet]", "data.min_chars=5")
        articles, stories = found.all_sources()
        assert (articles.kind, articles.files, articles.val_files) == ("files", ["wiki/"], ["held.parquet"])
        assert (articles.weight, stories.weight, stories.kind, articles.min_chars) == (0.8, 0.2, "tales", 5)
        # What is kept with a run names what was read, and is the same configuration.
        assert found.name == "wikipedia_stories"
        assert build(DataConfig, to_dict(found)) == found
        assert (found.files, found.with_files) == ([], [])
    assert data("data=wikipedia_stories").with_files == []  # as it is saved with runs that had no such choice
    with pytest.raises(UserError, match=r"data\.val_files needs data\.files"):
        data("data=wikipedia_stories", "data.val_files=[held.parquet]")
    with pytest.raises(UserError, match="a mixture names files in its sources"):
        DataConfig(kind="mixture", sources=[found.sources[0]], files=["a"])
