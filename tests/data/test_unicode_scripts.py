"""Classes of characters, counted by hand."""

from slm.data.unicode_scripts import LETTER, OTHER, SPACE, count_classes, scripts


def test_scripts_are_the_names_people_know():
    known = {"latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "cjk", "hangul", "hiragana", "thai"}
    assert known <= set(scripts())


def test_counts_by_hand():
    counts = count_classes("aé ж\n\u30001-\ud800")
    assert counts[SPACE] == 3
    assert counts[OTHER] == 3
    assert counts[scripts()["latin"]] == 2
    assert counts[scripts()["cyrillic"]] == 1
    assert counts[LETTER:].sum() == 3
    assert counts.sum() == 9
    assert len(counts) == len(count_classes(""))
