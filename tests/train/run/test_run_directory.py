"""A start takes its directory from nobody, and leaves everything as it was where it is refused."""

import functools
import json
import tempfile
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.model.checkpoint import verify
from slm.runs import list_checkpoints
from slm.train.distributed.ranks import LostPeerError
from slm.train.run import run_directory
from slm.train.run.run_directory import RunDirectory, back_up
from slm.train.run_lock import LOCK, is_locked, take_lock
from tests.helpers.directories import open_as_nobody, start_anew
from tests.helpers.programs import Program
from tests.helpers.small_run import SmallRun, newest_step, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "documents.jsonl", 200)


@pytest.fixture
def options(corpus):
    return (f"data.files=[{corpus}]", "data.val_fraction=0.1")


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, lock files left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK and not path.name.startswith(".train-")
    }


def vocabulary(root: Path) -> int:
    return len(json.loads((root / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"])


def refused(run: SmallRun, *texts: str) -> None:
    assert run.wait() == 2, run.out + run.err
    assert len(run.err.splitlines()) == 1, run.err
    for text in texts:
        assert text in run.err, (text, run.err)


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_a_run_that_is_going_on_keeps_its_directory_whatever_the_options(resume, options, tmp_path):
    first = SmallRun(tmp_path, "name=busy", *options, "train.max_steps=100000", "train.checkpoint_every=5")
    try:
        first.wait_for_checkpoint(5)
        refused(SmallRun(tmp_path, "name=busy", *options, f"resume={resume}"), "another process is training in")
        before = newest_step(first.root)
        first.wait_for_checkpoint(before + 5)
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["busy", "latest"]
    finally:
        first.kill()
    verify(list_checkpoints(first.root)[0])


def test_a_start_that_waits_for_a_directory_never_holds_the_lock_of_its_backup(tmp_path):
    """Many starts at once, each of which renames what the one before has left: one at a time is in the directory."""
    work = functools.partial(start_anew, tmp_path / "run", 40)
    starts = [Program("slm.train", [], tmp_path, prepare=work) for _ in range(3)]
    assert [(start.wait(120), start.err) for start in starts] == [(0, "")] * 3
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("run")]) == 120
    for path in tmp_path.glob("run*"):
        assert (path / "owner").read_text() == (path / "config.yaml").read_text()


def test_a_refused_start_leaves_nothing_behind(options, tmp_path):
    runs = tmp_path / "new" / "runs"
    command = ("name=mine", f"runs_dir={runs}", *options)
    refused(SmallRun(tmp_path, *command, "train.seq_len=100000"), "the validation text is")
    assert not runs.parent.exists()
    SmallRun(tmp_path, *command, "train.max_steps=2").finish()
    before = files(runs)
    refused(SmallRun(tmp_path, *command, "train.seq_len=100000", "resume=never"), "the validation text is")
    assert sorted(path.name for path in runs.iterdir()) == ["latest", "mine"]
    assert files(runs) == before
    refused(SmallRun(tmp_path, *command, "train.max_steps=9", "data.files=[/nowhere.txt]"), "data.files")
    assert files(runs) == before


def test_what_a_killed_start_left_is_not_used_with_other_settings(options, tmp_path):
    run = SmallRun(tmp_path, *options, "train.max_steps=100000", "train.checkpoint_every=100000")
    run.wait_for_step(1)
    run.kill()
    assert vocabulary(run.root) == 300
    old = {name: (run.root / name).read_text() for name in ("validation.txt", "calibration.txt")}
    other = write_corpus(tmp_path / "other.jsonl", 200, seed=5)
    changed = (f"data.files=[{other}]", "data.val_fraction=0.1", "tokenizer.vocab_size=280", "train.max_steps=2")
    run = SmallRun(tmp_path, *changed).finish()
    assert vocabulary(run.root) == vocabulary(list_checkpoints(run.root)[0].parent.parent) == 280
    for name, text in old.items():
        assert (run.root / name).read_text() != text, name


def test_the_tokenizer_of_another_base_model_is_not_kept(options, tmp_path):
    """Its chat template, which a killed start without it would have taken away."""
    teacher = SmallRun(tmp_path, "name=teacher", *options, "train.max_steps=1").finish()
    base = list_checkpoints(teacher.root)[0]
    (base / "chat_template.jinja").write_text("{{ messages[0].content }}")
    run = SmallRun(tmp_path, "name=tuned", *options, "tokenizer.vocab_size=280", "train.max_steps=100000")
    run.wait_for_step(1)
    run.kill()
    assert list_checkpoints(run.root) == []
    run = SmallRun(tmp_path, "name=tuned", *options, f"init_from={base}", "train.max_steps=1").finish()
    assert vocabulary(run.root) == 300
    assert "messages[0].content" in (run.root / "tokenizer" / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    ("runs_dir", "text"),
    [("/proc/foo", "/proc/foo"), ("{folder}/file", "{folder}/file"), ("{folder}/file/below", "{folder}/file")],
)
def test_a_folder_that_cannot_be_one_is_one_line(runs_dir, text, options, tmp_path):
    (tmp_path / "file").write_text("mine")
    run = SmallRun(tmp_path, *options, f"runs_dir={runs_dir.format(folder=tmp_path)}")
    refused(run, text.format(folder=tmp_path), "runs_dir=DIR")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_may_not_be_written_is_one_line(tmp_path):
    with tempfile.TemporaryDirectory() as name:
        existing = Path(name) / "existing"
        existing.mkdir()
        (existing / LOCK).touch()
        for path in (existing, Path(name)):
            path.chmod(0o555)
        roots = (existing, Path(name) / "new")
        start = Program("slm.train", [], tmp_path, prepare=functools.partial(open_as_nobody, roots))
        assert start.wait(60) == 0, start.err
        for root, line in zip(roots, start.out.splitlines(), strict=True):
            assert f"the run's directory {root} cannot be used" in line
            assert "Permission denied" in line
            assert "give runs_dir=DIR a folder that you may write to" in line
        for path in (Path(name), existing):
            path.chmod(0o755)


def test_a_lost_process_undoes_nothing(tmp_path):
    """The launcher starts the run again, and that start must not find the run of before."""
    root = tmp_path / "mine"
    root.mkdir()
    (root / "config.yaml").write_text("old")
    with pytest.raises(LostPeerError):
        _fail(root, LostPeerError("gone"), anew=True)
    assert (tmp_path / "mine.1" / "config.yaml").read_text() == "old"
    assert not (root / "config.yaml").exists()
    with pytest.raises(UserError, match="no"):
        _fail(root, UserError("no"), anew=False)
    assert root.is_dir()  # it was there before
    assert not is_locked(root / LOCK)


def _fail(root: Path, error: Exception, *, anew: bool) -> None:
    with RunDirectory(root, keep_after=LostPeerError) as directory:
        directory.open(anew=anew)
        assert is_locked(root / LOCK)
        raise error


def test_a_refused_start_does_not_remove_what_another_start_has_made_meanwhile(tmp_path, monkeypatch):
    root, locks = tmp_path / "run", []

    def take(path):
        locks.append(path)
        if len(locks) == 2:  # a third start was faster
            path.mkdir()
            (path / "theirs").write_text("live")
            raise UserError("another process is training there")
        lock = take_lock(path)
        (path / "config.yaml").write_text("of a start that came and went since this one looked")
        return lock

    monkeypatch.setattr(run_directory, "take_lock", take)
    with (
        pytest.raises(UserError, match="another process"),
        RunDirectory(root, keep_after=LookupError) as directory,
    ):
        directory.open(anew=True)
    assert (root / "theirs").read_text() == "live"


def test_nothing_is_overwritten_by_a_backup(tmp_path):
    root = tmp_path / "mine"
    assert back_up(root) is None
    for n in (1, 2):
        root.mkdir()
        (root / "text").write_text(str(n))
        assert back_up(root) == tmp_path / f"mine.{n}"
    assert [(tmp_path / f"mine.{n}" / "text").read_text() for n in (1, 2)] == ["1", "2"]
