"""What counts as a name on the Hub, and what stays a path."""

import pytest

from slm.hub.name import HubName, hub_name, valid_repo


@pytest.mark.parametrize(
    ("word", "repo", "revision", "quant"),
    [
        ("org/name", "org/name", None, None),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", None, None),
        ("org/Name-1.5_b-GGUF:Q4_K_M", "org/Name-1.5_b-GGUF", None, "Q4_K_M"),
        ("org/name@v1.0", "org/name", "v1.0", None),
        ("org/name@refs/pr/3:q8_0", "org/name", "refs/pr/3", "q8_0"),
    ],
)
def test_names(word, repo, revision, quant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = hub_name(word)
    assert found == HubName(repo=repo, revision=revision, quant=quant)
    assert found.short == repo.split("/")[1]


@pytest.mark.parametrize(
    "word",
    [
        "name",
        "runs/mine",
        "models/mine",
        "a/b/c",
        "./org/name",
        "/org/name",
        "../name",
        "org/model.gguf",
        "org/",
        "org/na me",
        "~/x",
    ],
)
def test_paths(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub_name(word) is None


def test_what_is_here_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    for word in ("org/name", "org/other", "org/name:q8_0"):
        assert hub_name(word) is None, word


def test_repositories():
    assert valid_repo("org/name")
    assert not any(map(valid_repo, ("name", "org/name:q8_0", "org/name@v1", "a/b/c", "org/")))
