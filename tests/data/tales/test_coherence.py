"""The checker of stories: right ones have about 1, and each way to spoil them costs something."""

import random
import re
from statistics import mean

import pytest

from slm.data.tales import words
from slm.data.tales.coherence import Coherence, coherence, mean_coherence
from slm.data.tales.story import story

STORIES = [story(11, index) for index in range(120)]
NAMES = (*words.GIRLS, *words.BOYS)


def shuffled_sentences(text: str, chance: random.Random) -> str:
    sentences = re.split(r"(?<=[.!?\"])\s+", text)
    chance.shuffle(sentences)
    size = -(-len(sentences) // 4)
    return "\n\n".join(" ".join(sentences[at : at + size]) for at in range(0, len(sentences), size))


def other_name_halfway(text: str, chance: random.Random) -> str:
    old = next(name for name in re.findall(r"[A-Z][a-z]+", text) if name in NAMES)
    new = chance.choice([name for name in NAMES if name not in text])
    return text[: len(text) // 2] + text[len(text) // 2 :].replace(old, new)


def cut_off(text: str, chance: random.Random) -> str:
    return text[: int(len(text) * chance.uniform(0.5, 0.9))]


def end_of_another(text: str, chance: random.Random) -> str:
    return "\n\n".join([*text.split("\n\n")[:2], *chance.choice(STORIES).split("\n\n")[2:]])


def words_in_disorder(text: str, chance: random.Random) -> str:
    found = text.split(" ")
    for at in range(0, len(found) - 4, 4):
        part = found[at : at + 4]
        chance.shuffle(part)
        found[at : at + 4] = part
    return " ".join(found)


def checked(stories) -> dict[str, float]:
    found = [coherence(each) for each in stories]
    return {name: mean(getattr(each, name) for each in found) for name in Coherence.__dataclass_fields__}


def test_real_stories_score_about_one_in_every_check():
    assert mean_coherence(STORIES) > 0.99
    assert min(checked(STORIES).values()) > 0.97
    assert min(coherence(each).score for each in STORIES) > 0.8


@pytest.mark.parametrize(
    ("spoil", "check", "at_most"),
    [
        (shuffled_sentences, "order", 0.75),
        (other_name_halfway, "names", 0.9),
        (cut_off, "ends", 0.8),
        (end_of_another, "objects", 0.8),
        (words_in_disorder, "sentences", 0.75),
    ],
)
def test_a_spoiled_story_scores_clearly_lower(spoil, check, at_most):
    chance = random.Random(5)
    spoiled = [spoil(each, chance) for each in STORIES]
    assert mean_coherence(spoiled) < at_most, checked(spoiled)
    assert checked(spoiled)[check] < 0.55 < checked(STORIES)[check]


def test_what_was_lost_must_be_what_is_found():
    lost = [(each, match[1]) for each in STORIES if (match := re.search(r'"I lost my \w+ (\w+),"', each))]
    assert lost
    for each, thing in lost:
        other = "hat" if thing != "hat" else "drum"
        head, tail = each.rsplit("\n\n", 1)
        assert coherence(f"{head}\n\n{tail.replace(thing, other)}").objects == 0
        assert coherence(each).objects == 1


def test_other_text_and_none_at_all():
    assert coherence("").score == coherence("...").score == mean_coherence([]) == 0
    assert coherence("The parliament met on Tuesday. It voted.").score < 0.5
