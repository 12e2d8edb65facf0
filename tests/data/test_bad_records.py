"""The tally: each place once, by reason, with the first place; and what workers send."""

import os

from slm.data.bad_records import REPLACED, BadRecordError, Found, Tally


def add(tally, position, path="a", reason="torn", **more):
    tally.add(reason, path=path, position=position, first=lambda: f"{path}:{position}", **more)


def test_a_place_counts_once(capsys):
    tally = Tally()
    for _ in range(2):  # as two epochs do
        add(tally, 3)
        add(tally, 9)
        add(tally, 4, path="b")
        add(tally, 3, reason="a NUL character", count=7, kind=REPLACED)
    assert tally.record() == {"torn": Found(3, "a:3")}
    assert tally.record(["b"]) == {"torn": Found(1, "b:4")}
    assert tally.record(kind=REPLACED) == {"a NUL character": Found(7, "a:3")}
    tally.report()
    tally.report(final=True)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "text: 3 left out (data.on_bad=skip): torn; the first: a:3"
    assert second == "text: 7 replaced by U+FFFD: a NUL character; the first: a:3"
    add(tally, 10)
    tally.report()
    assert not capsys.readouterr().err
    tally.report(final=True)
    assert "4 left out" in capsys.readouterr().err


def test_a_file_has_one_name():
    tally = Tally()
    add(tally, 3)
    add(tally, 3, path=os.path.abspath("a"))
    assert tally.record(["./a"]) == tally.record([os.path.abspath("a")]) == {"torn": Found(1, "a:3")}


def test_workers_counts_are_added():
    workers, parent = [Tally(), Tally()], Tally()
    add(workers[0], 1)
    add(workers[1], 1)  # both read the same files
    add(workers[1], 2)
    for worker in workers:
        parent.take(worker.news())
        assert not worker.news()
    assert parent.record() == {"torn": Found(2, "a:1")}


def test_an_error_is_one_line():
    assert BadRecordError("torn", detail="two\nlines").detail == "two lines"
