"""How coherent a story is, as a number from 0 to 1, measured against stories of the same grammar.

It is the mean of six checks:

- **names**: one or two people are named, and the first of them again in the last two paragraphs;
- **objects**: nothing and nobody turns up after the second paragraph that other stories would have mentioned before;
- **sentences**: the share of runs of three words that other stories have, too;
- **order**: the share of sentences that follow a sentence which they follow elsewhere;
- **resolved**: there are at least three paragraphs, and the last tells how a story of this plot comes out well;
- **ends**: the last sentence is whole, and one that stories end with.

The last four checks ignore names, pronouns, relatives and slot fillers (``data/tales/words.py``). They test the
grammar's form, not its vocabulary. The number means nothing for other text.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any

from slm.data.tales import words
from slm.data.tales.plots import PLOTS
from slm.data.tales.story import write
from slm.data.tales.teller import Teller

REFERENCE_STORIES = 2000
REFERENCE_SEED = 990_137
"""Of a collection that nobody trains on."""
OFTEN = 4
"""A word that returned so often, and never came new, must not come new."""
KNOWN_RESOLUTION = 0.6
"""Of the last paragraph's runs of three words: the share that other endings of the plot have."""

_NAMES = frozenset((*words.GIRLS, *words.BOYS))
_PRONOUNS = {
    **dict.fromkeys(("he", "she"), "<he>"),
    **dict.fromkeys(("him", "his", "her", "hers"), "<his>"),
    **dict.fromkeys(("himself", "herself"), "<himself>"),
    **dict.fromkeys(("mother", "father", "grandmother", "grandfather", "aunt", "uncle"), "<relative>"),
    **dict.fromkeys(("a", "an"), "<a>"),
}
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"(?<=[.!?])(?:\"?)\s+")


@dataclass(frozen=True)
class Coherence:
    """The checks of one story, each from 0 to 1."""

    names: float
    objects: float
    sentences: float
    order: float
    resolved: float
    ends: float

    @property
    def score(self) -> float:
        """Their mean."""
        values = [getattr(self, field.name) for field in fields(self)]
        return sum(values) / len(values)


def coherence(story: str) -> Coherence:
    """The checks of ``story``; paragraphs are separated by blank lines. An empty text has zeros."""
    reference, text = _reference(), _Read(story)
    if not text.sentences:
        return Coherence(0, 0, 0, 0, 0, 0)
    runs = [run for sentence in text.sentences for run in _runs(sentence)]
    plot = reference.plot_of(runs)
    last = [run for sentence in text.paragraphs[-1] for run in _runs(sentence)]
    told = sum(run in reference.endings[plot] for run in last) / max(1, len(last))
    pairs = list(pairwise(text.sentences))
    return Coherence(
        names=float(1 <= len(text.names) <= 2 and text.names[0] in set().union(*text.paragraph_words[-2:])),
        objects=float(not (_new_late(text) & reference.returning)),
        sentences=sum(run in reference.runs for run in runs) / max(1, len(runs)),
        order=sum((_class(a), _class(b)) in reference.pairs for a, b in pairs) / max(1, len(pairs)),
        resolved=float(len(text.paragraphs) >= 3 and told >= KNOWN_RESOLUTION),
        ends=float(story.rstrip()[-1] in '.!?"' and _last_class(text.sentences[-1]) in reference.last_sentences),
    )


def mean_coherence(stories: Sequence[str]) -> float:
    """The mean score of ``stories``; 0 for none."""
    return sum(coherence(story).score for story in stories) / max(1, len(stories))


class _Read:
    """A story in words, sentences and paragraphs, with what may differ between stories masked."""

    def __init__(self, story: str) -> None:
        parts = [part for part in story.split("\n\n") if part.strip()]
        self.paragraph_words = [set(_WORD.findall(part)) | set(_base(part)) for part in parts]
        self.names = [name for name in dict.fromkeys(_base(story)) if name in _NAMES]
        roles = {name: f"<name {min(index, 2)}>" for index, name in enumerate(self.names)}
        self.paragraphs = [
            [tuple(_masked(word, roles) for word in found) for text in _SENTENCE.split(part) if (found := _base(text))]
            for part in parts
        ]
        self.sentences = [sentence for paragraph in self.paragraphs for sentence in paragraph]


def _base(text: str) -> list[str]:
    """The words of ``text``, without the ending of a genitive."""
    return [word.removesuffix("'s") for word in _WORD.findall(text)]


def _masked(word: str, roles: dict[str, str]) -> str:
    if word in roles:
        return roles[word]
    lower = word.lower()
    return "<word>" if lower in _filled_in() else _PRONOUNS.get(lower, lower)


def _runs(sentence: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The runs of three words in a sentence, its borders counted as words."""
    padded = ("", *sentence, "")
    return [padded[index : index + 3] for index in range(len(padded) - 2)]


def _class(sentence: tuple[str, ...]) -> tuple[str, ...]:
    return sentence[:3]


def _last_class(sentence: tuple[str, ...]) -> tuple[str, ...]:
    return (*sentence[:2], *sentence[-2:])


def _new_late(text: _Read) -> set[str]:
    """The words that are first said after the second paragraph."""
    early = {word.lower() for part in text.paragraph_words[:2] for word in part}
    return {word.lower() for part in text.paragraph_words[2:] for word in part} - early


@cache
def _filled_in() -> frozenset[str]:
    """The words of phrases of one or two words in ``data/tales/words.py``, and names."""
    found: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, str):
            parts = value.split()
            if len(parts) <= 2:
                found.update(word.lower() for word in _WORD.findall(value))
        elif isinstance(value, list | tuple):
            for each in value:
                collect(each)

    for name, value in vars(words).items():
        if name.isupper() and name not in ("GIRLS", "BOYS"):
            collect(value)
    return frozenset(found)


class _Reference:
    """What ``REFERENCE_STORIES`` stories have in common."""

    def __init__(self) -> None:
        self.runs: set[tuple[str, ...]] = set()
        self.pairs: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
        self.last_sentences: set[tuple[str, ...]] = set()
        self.endings: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        """Of each plot: the runs of its last paragraphs."""
        self._plots: dict[tuple[str, ...], set[str]] = defaultdict(set)
        new, late = Counter[str](), Counter[str]()
        for index in range(REFERENCE_STORIES):
            plot = Teller(REFERENCE_SEED, index).pick(PLOTS).__name__
            text = _Read(write(Teller(REFERENCE_SEED, index)))
            for sentence in text.sentences:
                for run in _runs(sentence):
                    self.runs.add(run)
                    self._plots[run].add(plot)
            self.endings[plot] |= {run for sentence in text.paragraphs[-1] for run in _runs(sentence)}
            classes = [_class(sentence) for sentence in text.sentences]
            self.pairs |= set(pairwise(classes))
            self.last_sentences.add(_last_class(text.sentences[-1]))
            new.update(_new_late(text))
            late.update({word.lower() for part in text.paragraph_words[2:] for word in part})
        self.returning = frozenset(word for word, count in late.items() if count >= OFTEN and not new[word])

    def plot_of(self, runs: Sequence[tuple[str, ...]]) -> str:
        """The plot that most of the runs that belong to one plot only belong to."""
        votes = Counter(plot for run in runs if len(plots := self._plots.get(run, set())) == 1 for plot in plots)
        return votes.most_common(1)[0][0] if votes else ""


@cache
def _reference() -> _Reference:
    return _Reference()
