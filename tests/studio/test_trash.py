"""What is deleted can be put back until the trash is emptied."""

import pytest

from slm.data.errors import UserError
from slm.studio import trash
from slm.studio.places import Places


def test_delete_put_back_and_empty(tmp_path):
    other = tmp_path / "other"
    places = Places(tmp_path / "work", []) if (tmp_path / "work").mkdir() is None else None
    assert places
    other.mkdir()
    (other / "a.gguf").write_text("x")
    places.add(str(other))
    run = places.runs / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("x" * 100)
    trash.delete(places, "runs/mine")
    assert not run.exists()
    (found,) = trash.listed(places)
    assert (found["from"], found["bytes"] >= 100) == ("runs/mine", True)
    run.mkdir()
    with pytest.raises(UserError, match="exists again"):
        trash.put_back(places, found["id"])
    run.rmdir()
    trash.put_back(places, found["id"])
    assert (run / "config.yaml").is_file()
    assert trash.listed(places) == []
    for wrong in (str(other / "a.gguf"), "runs", "."):
        with pytest.raises(UserError, match="in runs/ and models/ only"):
            trash.delete(places, wrong)
    trash.delete(places, "runs/mine")
    trash.empty(places)
    assert trash.listed(places) == []
    with pytest.raises(UserError, match="does not hold"):
        trash.put_back(places, "../jobs")
