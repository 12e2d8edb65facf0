"""A run whose text has an end: it stops there, with everything saved."""

from slm.runs import list_checkpoints


def test_the_run_ends_with_its_text_and_keeps_what_it_learnt(command, train, tmp_path):
    """Some 300 short documents, read once, are far less than 5,000 steps."""
    options = ("name=short", "data.max_epochs=1", "train.max_steps=5000", "train.checkpoint_every=5000")
    code, out, err = train(command(*options, "train.workers=2"))
    assert code == 0, err
    used_up = "the training text is used up, every source has been read data.max_epochs times: raise data.max_epochs"
    assert used_up in out
    assert out.startswith("files of ")
    assert " taken (" in out
    assert "held out for validation" in out
    assert "records" in (tmp_path / "runs" / "short" / "report.html").read_text()
    (last,) = list_checkpoints(tmp_path / "runs" / "short")
    assert 5 < int(last.name.removeprefix("step-")) < 1000
    assert "next: make export" in out
