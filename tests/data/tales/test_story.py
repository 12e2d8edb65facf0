"""The embedded stories: enough of them, well formed, and about the same people and things all through."""

import re
import time
from collections import Counter

import pytest

from slm.data.tales import story as tales
from slm.data.tales import words as tale_words
from slm.data.tales.plots import PLOTS
from slm.data.tales.teller import Teller

STORIES = [tales.story(0, index) for index in range(4000)]


def written(seed: int, index: int) -> tuple[str, str, int]:
    """The name of a story's plot, its text, and the number of ways in which its choices could have gone."""
    teller = Teller(seed, index)
    text = tales.write(teller)
    plot = Teller(seed, index).pick(PLOTS)
    return plot.__name__, text, teller.ways


def test_a_story_is_a_function_of_seed_and_index():
    assert tales.story(3, 5) == tales.story(3, 5)
    assert tales.story(3, 5) != tales.story(3, 6)
    assert tales.story(3, 5) != tales.story(4, 5)
    assert tales.story(3, -5) != tales.story(3, 10**15)


def test_there_are_many_more_than_millions():
    # A story written with probability at most p leaves room for at least 1/p of them; each plot alone has millions.
    ways: dict[str, int] = {}
    for index in range(3000):
        plot, _, count = written(1, index)
        ways[plot] = min(count, ways.get(plot, count))
    assert len(ways) == len(PLOTS) >= 10
    assert min(ways.values()) / len(PLOTS) > 10_000_000
    # The choices are seen in the text: no two of these stories are equal.
    assert len({tales.story(2, index) for index in range(30_000)}) == 30_000


def test_they_are_short_and_their_vocabulary_is_small():
    lengths = [len(story.split()) for story in STORIES]
    assert min(lengths) >= 110
    assert max(lengths) <= 240
    words = Counter(word for story in STORIES for word in re.findall(r"[a-z]+(?:'[a-z]+)?", story.lower()))
    assert 900 <= len(words) <= 1500
    # A word that was seen once in 4,000 stories could not be learnt.
    assert sum(count < 5 for count in words.values()) < len(words) * 0.02


def test_they_are_written_quickly():
    start = time.perf_counter()
    size = sum(len(tales.story(9, index)) for index in range(2000))
    assert size / (time.perf_counter() - start) > 2e6


@pytest.mark.parametrize(
    "wrong",
    [
        r"\b[Aa] (?=[aeiou]|honest)(?!(one|use|uni))",
        r"\b[Aa]n (?![aeiou]|honest)",
        r"\b(\w+) \1\b(?<!no no)(?<!that that)",
        r"[{}]",
        r"  |\n\n\n| \n|\n ",
        r" [,.!?;:]",
        r"[,.!?]{2}",
        r"\bNone\b|\bTrue\b|\bFalse\b",
        r"(?<=[.!?] )[a-z](?!\w*[^\"]*\")",
        r"(?:^|\n)[a-z]",
    ],
)
def test_spelling_and_punctuation(wrong):
    for story in STORIES:
        match = re.search(wrong, story)
        assert match is None, story[max(0, match.start() - 60) : match.end() + 60]


def test_paragraphs_end_like_sentences_and_quotes_close():
    for story in STORIES:
        for paragraph in story.split("\n\n"):
            assert paragraph.endswith((".", "!", "?", '"')), paragraph
            assert paragraph.count('"') % 2 == 0, paragraph
            assert paragraph[0].isupper() or paragraph[0] == '"'
        assert '"' in story  # somebody speaks


def test_only_the_cast_is_named_and_pronouns_fit():
    girls, boys = set(tale_words.GIRLS), set(tale_words.BOYS)
    assert not girls & boys
    female = {"she", "her", "hers", "herself", "mother", "grandmother", "aunt", "girl"}
    male = {"he", "him", "his", "himself", "father", "grandfather", "uncle", "boy"}
    seen = Counter()
    for story in STORIES:
        words = re.findall(r"[A-Za-z]+", story)
        names = {word for word in words if word in girls | boys}
        assert 1 <= len(names) <= 2, names
        lower = {word.lower() for word in words}
        # Where everyone named, and every relative, is of one sex, the other's pronouns have no place.
        people = {"female" if name in girls else "male" for name in names}
        people |= {"female"} if lower & {"mother", "grandmother", "aunt"} else set()
        people |= {"male"} if lower & {"father", "grandfather", "uncle"} else set()
        if people == {"female"}:
            assert not lower & male, story
            seen["female"] += 1
        if people == {"male"}:
            assert not lower & female, story
            seen["male"] += 1
    assert min(seen["female"], seen["male"]) > 300


def test_what_was_lost_is_what_is_found():
    checked = 0
    for index in range(2000):
        plot, text, _ = written(5, index)
        if plot != "lost_thing":
            continue
        paragraphs = text.split("\n\n")
        thing = next(word for word in tale_words.TREASURES if re.search(rf"\b{word}\b", paragraphs[0].split(".")[-2]))
        assert all(re.search(rf"\b{thing}\b", paragraph) for paragraph in paragraphs), text
        checked += 1
    assert checked > 50
