"""A snapshot holds what was, whatever training does to its tensors, and its files are what the library reads."""

import hashlib
import threading

import pytest
import torch
from safetensors.torch import load_file

from slm.model import snapshot
from slm.model.snapshot import Snapshot


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "large": torch.randn(700, 300),
        "columns": torch.randn(300, 200).t(),
        "half": torch.randn(5, 3).to(torch.bfloat16),
        "count": torch.tensor(7.0),
        "state": torch.randint(0, 255, (5057,), dtype=torch.uint8),
        "ids": torch.arange(11),
        "none": torch.empty(0, 4),
    }


def test_the_library_reads_every_tensor_to_the_bit_and_the_hash_is_the_files(tmp_path):
    mine = tensors()
    taken = Snapshot({"a": mine})
    digest = taken.write_file("a", tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    assert digest == hashlib.sha256(content).hexdigest()
    assert int.from_bytes(content[:8], "little") % 8 == 0
    read = load_file(tmp_path / "a")
    assert read.keys() == mine.keys()
    for name, tensor in mine.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name
    assert taken.wait_read(0)


def test_what_changes_after_detach_is_not_in_the_file(tmp_path):
    mine = tensors()
    before = {name: tensor.clone() for name, tensor in mine.items()}
    taken = Snapshot({"a": mine})
    assert taken.detach() == mine["large"].nbytes  # the small ones and the transposed one were copied at once
    for tensor in mine.values():
        tensor.zero_()
    taken.write_file("a", tmp_path / "a")
    for name, tensor in load_file(tmp_path / "a").items():
        assert torch.equal(tensor, before[name]), name


def test_detached_in_the_middle_of_the_writing_nothing_is_torn(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE_BYTES", 1000)  # not a divisor of anything here
    mine = {f"{n}": torch.full((50, 500), float(n)) for n in range(8)}
    taken = Snapshot({"a": dict(mine)})
    written = []
    true_write = snapshot._write

    def write(out, piece, digest):
        written.append(len(piece))
        if len(written) == 300:  # in the third tensor
            reached.set()
            go_on.wait(20)
        true_write(out, piece, digest)

    monkeypatch.setattr(snapshot, "_write", write)
    reached, go_on = threading.Event(), threading.Event()
    writer = threading.Thread(target=taken.write_file, args=("a", tmp_path / "a"))
    writer.start()
    assert reached.wait(20)
    copied = taken.detach()
    assert 0 < copied < sum(t.nbytes for t in mine.values())
    for tensor in mine.values():
        tensor.fill_(-1)
    go_on.set()
    writer.join()
    for name, tensor in load_file(tmp_path / "a").items():
        assert torch.equal(tensor, torch.full((50, 500), float(name))), name


def test_a_change_without_detach_is_found_not_written(tmp_path):
    mine = {"a": torch.zeros(200, 200)}
    taken = Snapshot({"a": mine})
    mine["a"].add_(1)
    with pytest.raises(RuntimeError, match="changed before"):
        taken.write_file("a", tmp_path / "a")


def test_released_it_holds_nothing_and_nobody_waits(tmp_path):
    taken = Snapshot({"a": tensors()})
    assert not taken.wait_read(0)
    taken.release()
    assert taken.wait_read(0)
    assert taken.unread() == 0
    assert taken.detach() == 0
