"""Shuffled blocks and their shares: nothing is lost or repeated, epochs stay apart, every position resumes."""

import itertools

import numpy as np
import pytest

from slm.data.sources.mixture import Repeated
from slm.data.stream import blocks
from slm.data.stream.blocks import EveryNth, ShuffledBlocks
from slm.data.stream.packing import Packer, Tokenized
from tests.helpers.documents import Listed, take


def packer(*, epochs=3):
    def one_pass(epoch):
        return Listed([chr(1 + n) * 90 for n in range(20)])

    tokens = Tokenized(Repeated(one_pass, epochs=epochs), lambda text: [ord(c) for c in text], eot_id=0)
    return Packer(tokens, seq_len=16)


def shuffled(**options):
    return ShuffledBlocks(packer(**options), seed="s")


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(blocks, "FIRST_GROUP", 16 * 20)
    monkeypatch.setattr(blocks, "LARGEST_GROUP", 16 * 40)


def test_the_blocks_are_those_of_the_packer_in_another_order():
    plain, found = take(packer()), take(shuffled())
    assert sorted(b.tobytes() for b in found) == sorted(b.tobytes() for b in plain)
    assert any(not np.array_equal(a, b) for a, b in zip(plain, found, strict=True))
    changes = [sum(a[0] != b[0] for a, b in itertools.pairwise(order)) for order in (plain, found)]
    assert changes[1] > 2 * changes[0]  # a batch is no longer all of one document


def test_a_group_ends_with_its_epoch(monkeypatch):
    monkeypatch.setattr(blocks, "FIRST_GROUP", 1 << 30)
    monkeypatch.setattr(blocks, "LARGEST_GROUP", 1 << 30)
    found, plain = ([b.tobytes() for b in take(stream)] for stream in (shuffled(), packer()))
    n = 20 * 91 // 16  # blocks of an epoch, one more or less
    assert any(sorted(found[:m]) == sorted(plain[:m]) for m in (n - 1, n, n + 1))
    assert found[: n - 1] != plain[: n - 1]


@pytest.mark.parametrize("make", [shuffled, lambda: EveryNth(shuffled(), index=1, n=3)])
def test_it_resumes_at_every_block(make):
    whole = take(make())
    stream = make()
    for number in range(0, len(whole), 7):
        other = make()
        other.load_state_dict(stream.state_dict())
        rest = take(other, 12)
        assert [b.tobytes() for b in rest] == [b.tobytes() for b in whole[number : number + 12]]
        take(stream, 7)


def test_groups_grow():
    """The first is small, so that a run can begin; then twice as many blocks, up to the largest."""
    plain, found = ([block.tobytes() for block in take(stream)] for stream in (packer(), shuffled()))
    for start, stop in ((0, 20), (20, 60), (60, 100)):
        assert sorted(found[start:stop]) == sorted(plain[start:stop])
    assert sorted(found[:10]) != sorted(plain[:10])


def test_the_shares_are_the_whole():
    whole = [b.tobytes() for b in take(shuffled())]
    shares = [[b.tobytes() for b in take(EveryNth(shuffled(), index=i, n=3))] for i in range(3)]
    assert [share[0] for share in shares] == whole[:3]
    assert sorted(b for share in shares for b in share) == sorted(whole)
