"""Streams of streams: shares by weight, every document once per epoch, exact resume."""

import json
from collections import Counter

import pytest

from slm.data.sources.mixture import Filtered, Mixture, Repeated, Shuffled, latest_epoch, text_bytes
from tests.helpers.documents import Listed, take


def named(name, count, size=10):
    return [f"{name}{i:0{size - len(name)}d}" for i in range(count)]


def once(texts):
    return Repeated(lambda epoch: Listed(texts), epochs=1)


def resumes(make, total):
    """The stream continues exactly from every position, also when it is left several times."""
    whole = take(make(), total)
    for cut in range(len(whole)):
        stream = make()
        take(stream, cut)
        state = json.loads(json.dumps(stream.state_dict()))
        other = make()
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert take(other, total - cut) == whole[cut:], cut
    stream, found = make(), []
    for step in (1, 3, 2, 7, 5):
        found += take(stream, step)
        state = stream.state_dict()
        stream = make()
        stream.load_state_dict(state)
    assert found == whole[: len(found)]


def test_repeated_goes_round_and_counts():
    stream = Repeated(lambda epoch: Listed([f"{epoch}a", f"{epoch}b"]), epochs=None)
    assert take(stream, 5) == ["0a", "0b", "1a", "1b", "2a"]
    assert latest_epoch({"streams": [stream.state_dict()]}) == 2
    assert take(Repeated(lambda epoch: Listed(["x"]), epochs=1)) == ["x"]
    resumes(lambda: Repeated(lambda epoch: Listed([f"{epoch}{c}" for c in "abc"]), epochs=None), 20)


def test_repeated_ends_where_there_is_nothing():
    assert take(Repeated(lambda epoch: Listed([]), epochs=None), 3) == []


def test_filtered():
    make = lambda: Filtered(Listed([str(i) for i in range(30)]), lambda text: int(text) % 3 == 0)  # noqa: E731
    assert take(make()) == [str(i) for i in range(0, 30, 3)]
    resumes(make, 10)


@pytest.mark.parametrize("size", [1, 4, 30, 100])
def test_shuffled_gives_each_once_and_resumes(size):
    texts = named("a", 30)
    shuffled = take(Shuffled(once(texts), size=size, seed="1"))
    assert sorted(shuffled) == texts
    assert (shuffled != texts) == (size > 1)
    assert all(abs(texts.index(text) - place) < size for place, text in enumerate(shuffled))
    if size > 1:
        assert take(Shuffled(once(texts), size=size, seed="2")) != shuffled
    resumes(lambda: Shuffled(once(texts), size=size, seed="1"), 30)


def test_shuffled_groups_of_an_endless_stream_differ():
    make = lambda: Shuffled(  # noqa: E731
        Repeated(lambda epoch: Listed(named("a", 8)), epochs=None), size=8, seed="1"
    )
    found = take(make(), 24)
    first, second, third = (tuple(found[i : i + 8]) for i in (0, 8, 16))
    assert len({first, second, third}) == 3
    assert set(first) == set(second)
    resumes(make, 24)


@pytest.mark.parametrize("size", [3, 5, 100])
def test_a_group_ends_with_its_epoch(size):
    make = lambda: Shuffled(  # noqa: E731
        Repeated(lambda epoch: Listed(list("abcde")), epochs=3), size=size, seed="1"
    )
    found = take(make())
    assert [sorted(found[i : i + 5]) for i in (0, 5, 10)] == [list("abcde")] * 3
    resumes(make, 15)


def test_a_group_is_bounded_in_characters(monkeypatch):
    monkeypatch.setattr("slm.data.sources.mixture.GROUP_CHARS", 25)
    texts = named("a", 12)
    shuffled = take(Shuffled(once(texts), size=100, seed="1"))
    assert [sorted(shuffled[i : i + 3]) for i in range(0, 12, 3)] == [texts[i : i + 3] for i in range(0, 12, 3)]
    resumes(lambda: Shuffled(once(texts), size=100, seed="1"), 12)


def test_mixture_shares_bytes_by_weight_also_over_short_stretches():
    # Documents of 1,000 bytes against 10: shares are of the text, not of the documents.
    make = lambda: Mixture(  # noqa: E731
        [Listed(["x" * 1000] * 500), Listed(["é" * 5] * 100_000)], [0.25, 0.75], measure=text_bytes, seed="1"
    )
    found = take(make(), 40_000)
    for stretch in (found, found[5000:15_000], found[30_000:]):
        share = sum(len(t.encode()) for t in stretch if t[0] == "x") / sum(len(t.encode()) for t in stretch)
        assert share == pytest.approx(0.25, abs=0.02)


def test_mixture_goes_on_without_a_stream_that_ended():
    streams = [Listed(named("a", 3)), Listed(named("b", 9)), Listed([])]
    counts = Counter(text[0] for text in take(Mixture(streams, [1.0, 1.0, 5.0], measure=len, seed="1")))
    assert counts == {"a": 3, "b": 9}


def test_mixture_resumes_and_depends_on_the_seed():
    def make(seed="1"):
        streams = [
            Shuffled(Repeated(lambda epoch: Listed(named("a", 5)), epochs=None), size=3, seed="a"),
            Listed(named("b", 9, size=17)),
            Repeated(lambda epoch: Listed(named("c", 2, size=5)), epochs=None),
        ]
        return Mixture(streams, [2.0, 1.0, 0.5], measure=len, seed=seed)

    resumes(make, 40)
    assert len({tuple(take(make(str(seed)), 12)) for seed in range(10)}) > 1


def test_a_cap_on_epochs_ends_the_stream():
    make = lambda: Repeated(lambda epoch: Listed([f"{epoch}a", f"{epoch}b"]), epochs=2)  # noqa: E731
    assert take(make()) == ["0a", "0b", "1a", "1b"]
    resumes(make, 4)


def test_after_a_cap_the_others_share_by_their_weights():
    """a (weight 6) is read twice and drops out; b and c go on 3 to 1."""

    def make():
        streams = [
            Repeated(lambda epoch, name=name: Listed(named(name, 500)), epochs=e)
            for name, e in zip("abc", (2, 9, 9), strict=True)
        ]
        return Mixture(streams, [6.0, 3.0, 1.0], measure=len, seed="1")

    found = [text[0] for text in take(make(), 5600)]
    last = max(i for i, name in enumerate(found) if name == "a")
    assert found.count("a") == 1000
    before, after = Counter(found[: last + 1]), Counter(found[last + 1 :])
    assert before["b"] / before["a"] == pytest.approx(0.5, abs=0.1)
    assert before["c"] / before["a"] == pytest.approx(1 / 6, abs=0.1)
    assert after["b"] / after["c"] == pytest.approx(3, abs=0.3)
    assert [text[0] for text in take(make(), 3000)] == found[:3000]
    assert len(take(make())) == 1000 + 4500 + 4500
