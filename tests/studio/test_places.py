"""Nothing outside the folders that studio was given is read."""

import pytest

from slm.data.errors import UserError
from slm.studio.places import Places


def test_only_given_folders_are_read(tmp_path):
    root, outside = tmp_path / "work", tmp_path / "outside"
    for path in (root / "texts", root / ".hidden", outside):
        path.mkdir(parents=True)
        (path / "a.txt").write_text("x")
    (root / "link").symlink_to(outside)
    places = Places(root)
    assert places.path("texts/a.txt") == root / "texts/a.txt"
    assert places.shown(places.path(str(root / "texts"))) == "texts"
    for wrong in ("../outside/a.txt", str(outside), "link/a.txt", "/etc/passwd", "~"):
        with pytest.raises(UserError, match="in no folder that studio was given"):
            places.path(wrong)
    with pytest.raises(UserError, match="is hidden"):
        places.path(".hidden/a.txt")
    with pytest.raises(UserError, match="does not exist"):
        places.path("texts/b.txt")
    for wrong in ("", " ", "a\0b"):
        with pytest.raises(UserError, match="give the path"):
            places.path(wrong)
    places.add(str(outside))
    assert places.path("link/a.txt") == outside / "a.txt"
    assert Places(root).folders == [outside]
    places.remove(str(outside))
    assert places.folders == []


def test_a_folder_must_be_one_and_not_the_whole_disk(tmp_path):
    places = Places(tmp_path)
    for wrong, why in (("/", "the whole disk"), (str(tmp_path / "none"), "is no folder")):
        with pytest.raises(UserError, match=why):
            places.add(wrong)


def test_folders_of_other_programs_are_offered_until_they_are_given(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for path in (home / ".cache" / "llama.cpp", home / ".lmstudio" / "models", elsewhere):
        path.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OLLAMA_MODELS", str(elsewhere))
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    places = Places(tmp_path)
    assert places.known() == [
        {"of": "Ollama's models", "path": str(elsewhere)},
        {"of": "LM Studio's models", "path": str(home / ".lmstudio" / "models")},
        {"of": "llama.cpp's downloads", "path": str(home / ".cache" / "llama.cpp")},
    ]
    places.add(str(home))
    assert [each["path"] for each in places.known()] == [str(elsewhere)]
