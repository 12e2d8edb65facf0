"""What training survives, with the faults injected for real.

Killed at any moment: tests/soak/test_kill.py, test_resume.py. Damaged checkpoints: tests/slm/model/test_checkpoint.py
and test_main.py. Two runs in one directory, changed settings: test_main.py, test_resume.py. Here: signals at any
moment, a full disk, too little memory, losses that are not finite or jump, text that is none.
"""

import functools
import json
import os
import pty
import signal
import subprocess
import threading
import time

import pytest

from slm.model.checkpoint import verify
from slm.runs import list_checkpoints
from tests.helpers import train_faults
from tests.helpers.small_run import SmallRun, differences, losses, newest_step, records, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "documents.jsonl", 600)


@pytest.fixture
def options(corpus):
    return (f"data.files=[{corpus}]", "data.val_fraction=0.1")


def one_line(run: SmallRun, *said: str) -> None:
    """The run ended with status 2 and one line that says all of this."""
    assert run.wait() == 2, run.out + run.err
    assert len(run.err.splitlines()) == 1, run.err
    for text in said:
        assert text in run.err, (text, run.err)


# Signals.


def test_a_signal_during_validation_saves_the_step_and_validates_later(tmp_path):
    """SIGTERM; the test below sends SIGINT."""
    text = write_corpus(tmp_path / "much.jsonl", 3000)
    common = (f"data.files=[{text}]", "data.val_fraction=0.5", "train.eval_every=4", "train.max_steps=8")
    long = ("train.eval_blocks=100000", "train.micro_batch=1")  # seconds of validation
    run = SmallRun(tmp_path, *common, *long)
    run.wait_for_step(4)
    time.sleep(0.3)
    run.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert run.wait() == 143, run.out + run.err
    assert time.monotonic() - began < 60
    assert "stopped at step 4" in run.out
    assert not [record for record in records(run.root) if "val_loss" in record]
    (saved,) = list_checkpoints(run.root)
    assert saved.name == "step-00000004"
    verify(saved)
    run = SmallRun(tmp_path, *common, "train.eval_blocks=8", "train.micro_batch=1").finish()
    assert [record["step"] for record in records(run.root) if "val_loss" in record] == [4, 8]


def test_a_run_stopped_in_its_last_validation_is_validated_by_the_next_start(tmp_path):
    text = write_corpus(tmp_path / "much.jsonl", 3000)
    common = (f"data.files=[{text}]", "data.val_fraction=0.5", "train.eval_every=100", "train.max_steps=4")
    run = SmallRun(tmp_path, *common, "train.eval_blocks=100000", "train.micro_batch=1")
    run.wait_for_step(4)
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.out + run.err
    assert "stopped at step 4; the same command goes on from there" in run.out
    short = ("train.eval_blocks=8", "train.micro_batch=1")
    run = SmallRun(tmp_path, *common, *short).finish()
    assert [record["step"] for record in records(run.root) if "val_loss" in record] == [4]
    (saved,) = list_checkpoints(run.root)
    verify(saved)
    assert json.loads((saved / "trainer_state.json").read_text())["validation"]["step"] == 4
    assert "is finished" in SmallRun(tmp_path, *common, *short).finish().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_first_step_compiles_ends_the_run_at_once(number, options, tmp_path):
    """To the whole group of processes, as a terminal sends Ctrl-C: the compiler dies of it, too."""
    prepare = functools.partial(train_faults.set_environment, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cold")})
    run = SmallRun(tmp_path, *options, "train.kernels=false", prepare=prepare, session=True)
    run.wait_for(lambda: any((tmp_path / "cold").rglob("*.cpp")), timeout=180)
    assert losses(run.root) == {}
    os.killpg(run.pid, number)
    began = time.monotonic()
    assert run.wait() == 128 + number, run.out + run.err
    assert time.monotonic() - began < 60
    assert "Traceback" not in run.err
    assert "before the first step was done" in run.out
    assert list_checkpoints(run.root) == []


def test_a_closed_terminal_saves_the_run(options, tmp_path):
    """The signal reaches the worker, too, and every write to the terminal fails from then on."""
    ours, theirs = pty.openpty()
    long = ("train.workers=1", "train.max_steps=500")  # so few that every step is recorded
    take = functools.partial(train_faults.take_terminal, os.ttyname(theirs))
    run = SmallRun(tmp_path, *options, *long, prepare=take, session=True)
    run.wait_for((root := run.root).exists)
    os.close(theirs)  # it is the run's alone
    reader = threading.Thread(target=train_faults.read_until_end, args=(ours, root))
    reader.start()  # it closes the terminal after the first steps
    try:
        assert run.wait(60) == 129
    finally:
        run.kill()
        reader.join()
    (saved,) = list_checkpoints(root)
    verify(saved)
    assert int(saved.name[5:]) == max(losses(root))
    assert json.loads((root / "journal.jsonl").read_text().splitlines()[-1])["signal"] == signal.SIGHUP


def test_a_run_under_nohup_outlives_its_terminal(options, tmp_path):
    run = SmallRun(tmp_path, *options, "train.max_steps=2000", prepare=train_faults.ignore_hangup)
    run.wait_for_step(5)
    run.send_signal(signal.SIGHUP)
    step = max(losses(run.root))
    run.wait_for_step(step + 5)
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 143


def test_signals_during_the_last_save_tear_nothing(options, tmp_path):
    run = SmallRun(tmp_path, *options, "train.max_steps=500", "model.n_layers=8")
    run.wait_for_step(5)
    run.send_signal(signal.SIGTERM)
    run.wait_for(lambda: any((run.root / "checkpoints").glob(".step-*.tmp")) or list_checkpoints(run.root))
    while run.alive():
        run.send_signal(signal.SIGINT)
        time.sleep(0.003)
        if list_checkpoints(run.root):
            break
    assert run.wait() in (130, 143), run.out + run.err
    assert "Traceback" not in run.err
    (saved,) = list_checkpoints(run.root)
    verify(saved)
    assert sorted(path.name for path in saved.parent.iterdir()) == [saved.name]
    assert int(saved.name[5:]) == max(losses(run.root))


# A full disk.


@pytest.fixture
def disk(tmp_path):
    """A separate file system of 64 MB; skipped where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "slm-test", folder], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip("a tmpfs can only be mounted by root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def leave(disk, room: int) -> None:
    """Fill the disk up to ``room`` bytes."""
    (disk / "ballast").unlink(missing_ok=True)
    free = os.statvfs(disk)
    (disk / "ballast").write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - room))


def test_a_full_disk_is_one_line_and_the_last_checkpoint_is_whole(disk, options, tmp_path):
    """Whatever the run was writing: its first file, the tokenizer, its texts, metrics, samples, or a checkpoint."""
    common = (*options, "name=mine", "train.max_steps=12", "train.checkpoint_every=4", "train.eval_every=6")
    told = set()
    for room in (0, 30_000, 300_000, 2_000_000):
        leave(disk, room)
        run = SmallRun(disk / "runs", *common, logs=tmp_path)
        one_line(run, "bytes", str(disk))
        told.add(run.err.split(" could not")[0].split(" for the checkpoint")[0])
        assert list_checkpoints(run.root) == []
    assert len(told) >= 2, told  # different writes met the end of the disk
    leave(disk, 64 << 20)
    whole = SmallRun(disk / "runs", *common, logs=tmp_path).finish()
    kept = newest_step(whole.root)
    for room in (60_000, 2_000_000):
        leave(disk, room)
        run = SmallRun(disk / "runs", *common, "train.max_steps=40", logs=tmp_path)
        one_line(run, "bytes", str(disk))
        assert newest_step(run.root) == kept
        verify(list_checkpoints(run.root)[-1])
        assert not list((run.root / "checkpoints").glob(".*"))
    leave(disk, 64 << 20)
    run = SmallRun(disk / "runs", *common, "train.max_steps=14", logs=tmp_path).finish()
    assert f"from step-{kept:08d}" in run.out


# Memory.


def test_memory_that_runs_out_is_one_line_with_what_helps(options, tmp_path):
    limit = functools.partial(train_faults.limit_memory, 1 << 30)
    big = ("train.micro_batch=2048", "train.seq_len=256", "model.n_layers=4")
    run = SmallRun(tmp_path, *options, *big, prepare=limit)
    one_line(run, "out of memory", "train.micro_batch=1024 train.grad_accum=2", "train.gradient_checkpointing=true")


# Numbers.


def test_a_loss_that_is_not_finite_stops_before_the_update_and_saves_nothing(options, tmp_path):
    common = (*options, "train.max_steps=30", "train.checkpoint_every=4", "train.keep_last=1")
    run = SmallRun(tmp_path, *common, prepare=functools.partial(train_faults.poison_weights, (10,)))
    one_line(run, "the loss is nan", "stopped before the update", "optim.lr")
    (saved,) = list_checkpoints(run.root)
    assert saved.name == "step-00000008"
    verify(saved)
    run = SmallRun(tmp_path, *common).finish()
    assert "from step-00000008" in run.out


def test_skipped_updates_take_their_data_with_them_and_are_counted(options, tmp_path):
    common = (*options, "train.max_steps=20", "train.on_nonfinite=skip")
    run = SmallRun(
        tmp_path, "name=skipped", *common, prepare=functools.partial(train_faults.poison_weights, (5, 6, 13))
    ).finish()
    assert run.out.count("the update is skipped with its data") == 3
    events = [record for record in records(run.root) if record.get("event") == "skipped"]
    assert [(event["step"], event["skipped"]) for event in events] == [(4, 1), (4, 2), (10, 3)]
    assert [record["skipped"] for record in records(run.root) if "lr" in record and "skipped" in record][-1] == 3
    # The same run on the text without those batches: calls 5 and 11 of the step take others before theirs.
    passed = SmallRun(
        tmp_path, "name=passed", *common, prepare=functools.partial(train_faults.pass_over_data, {5: 2, 11: 1})
    ).finish()
    last = "checkpoints/step-00000020"
    assert differences(run.root / last, passed.root / last) == []
    # Resumed, both go on alike: the position in the text is the same.
    ends = [
        SmallRun(tmp_path, f"name={name}", *common, "train.max_steps=24").finish() for name in ("skipped", "passed")
    ]
    last = "checkpoints/step-00000024"
    assert differences(ends[0].root / last, ends[1].root / last) == []


def test_too_many_skipped_in_a_row_end_the_run(options, tmp_path):
    every = functools.partial(train_faults.poison_weights, tuple(range(6, 60)))
    common = (*options, "train.max_steps=40", "train.on_nonfinite=skip", "train.checkpoint_every=5")
    run = SmallRun(tmp_path, *common, prepare=every)
    one_line(run, "11 updates in a row were skipped", "loss is nan")
    assert newest_step(run.root) == 5


@pytest.fixture(scope="module")
def odd_corpus(tmp_path_factory):
    """Ordinary documents, and in their midst one of characters that are nowhere else: a real jump of the loss."""
    folder = tmp_path_factory.mktemp("odd")
    documents = write_corpus(folder / "a.jsonl", 200).read_text().splitlines()
    odd = json.dumps({"text": "".join(chr(0x4E00 + n * 37 % 9000) for n in range(100))}, ensure_ascii=True)
    path = folder / "documents.jsonl"
    path.write_text("\n".join([*documents[:100], odd, *documents[100:]]) + "\n")
    return path


RUN = 100
"""Steps of a run that meets them."""


def test_a_jump_of_the_loss_goes_back_and_on_with_the_data_after_it(odd_corpus, tmp_path):
    """With Muon, which leaves tables and gains to AdamW; the test below has AdamW alone."""
    # In the text's order, so that a step's sequences are all odd.
    common = (f"data.files=[{odd_corpus}]", "data.val_fraction=0.02", "data.shuffle_buffer=0", "optim=muon")
    common += (f"train.max_steps={RUN}", "train.checkpoint_every=20", "train.spike_factor=1.5", "train.keep_last=100")
    seen = tmp_path / "batches"
    whole = SmallRun(
        tmp_path, "name=whole", *common, prepare=functools.partial(train_faults.log_batches, seen)
    ).finish()
    events = [record for record in records(whole.root) if record.get("event") == "rolled_back"]
    assert events, whole.out
    assert "back to this checkpoint, on with the data after it" in whole.out
    for event in events:
        assert event["loss"] > 1.5 * event["median"]
        assert event["step"] == event["to"] < event["from"]
        assert event["to"] % 20 == 0
        assert event["tokens"] == (event["from"] - event["to"]) * 4 * 32
    # No batch is taken twice, those that were passed over are not either; every step is logged once.
    batches = seen.read_text().split()
    assert len(set(batches)) == len(batches)
    assert len(batches) == RUN + sum(event["from"] - event["to"] for event in events)
    assert sorted(losses(whole.root)) == list(range(1, RUN + 1))
    assert max(list(losses(whole.root).values())[40:]) < events[0]["loss"]

    # Killed between the jump and the next save, or after it, and resumed: the same to the bit.
    run = SmallRun(tmp_path, "name=parts", *common)
    run.wait_for(lambda: "back to this checkpoint" in run.out)
    run.kill()
    before = newest_step(run.root)
    run = SmallRun(tmp_path, "name=parts", *common)
    run.wait_for_checkpoint(min(before + 20, RUN))
    run.kill()
    parts = SmallRun(tmp_path, "name=parts", *common).finish()
    last = f"checkpoints/step-{RUN:08d}"
    assert differences(parts.root / last, whole.root / last) == []
    assert losses(parts.root) == losses(whole.root)
    states = [json.loads((run.root / last / "trainer_state.json").read_text()) for run in (whole, parts)]
    assert states[0]["spikes"]["rollbacks"] == states[1]["spikes"]["rollbacks"]
    assert len(states[0]["spikes"]["rollbacks"]) == len(events)


def test_a_jump_goes_back_to_the_same_step_whenever_checkpoints_were_written(odd_corpus, tmp_path):
    common = (f"data.files=[{odd_corpus}]", "data.val_fraction=0.02", "optim.lr=3e-3", "train.keep_last=1")
    common += (f"train.max_steps={RUN}", "train.checkpoint_every=20", "train.spike_factor=1.5")
    common += ("train.calibrate_head=false",)  # which would keep some of the odd text from training
    by_step = SmallRun(tmp_path, "name=by_step", *common).finish()
    often = functools.partial(train_faults.save_often, 0.018)
    by_time = SmallRun(tmp_path, "name=by_time", *common, prepare=often).finish()
    events = [[r for r in records(run.root) if r.get("event") == "rolled_back"] for run in (by_step, by_time)]
    assert events[0]
    assert [(e["from"], e["to"]) for e in events[0]] == [(e["from"], e["to"]) for e in events[1]]
    assert by_time.out.count(": saved ") > by_step.out.count(": saved ")
    last = f"checkpoints/step-{RUN:08d}"
    assert differences(by_step.root / last, by_time.root / last) == []


# Text.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ["bad.txt"]),
        (b"too short", ["text"]),
        (b"fine\nfine\nnot \xff text\n" * 50, ["bad.txt:3", "UTF-8"]),
    ],
)
def test_text_that_is_none_is_one_line_with_the_file(content, says, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    one_line(SmallRun(tmp_path, f"data.files=[{path}]"), *says)


def test_a_hub_that_cannot_be_reached_is_one_line_with_the_host(tmp_path):
    nowhere = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    prepare = functools.partial(train_faults.set_environment, nowhere)
    run = SmallRun(tmp_path, "data=tinystories", prepare=prepare)
    one_line(run, "127.0.0.1:9")
