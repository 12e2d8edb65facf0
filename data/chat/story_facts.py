"""What an embedded story is about: noted while it is written, so that answers are known without reading it.

Tested in tests/data/chat/test_story_chat.py.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from slm.data.tales import words
from slm.data.tales.plots import PLOTS
from slm.data.tales.teller import Character, Teller

T = TypeVar("T")

HELD_OUT_NAMES = frozenset(("Clara", "Hana", "Daisy", "Maya", "Theo", "Oscar", "Ravi", "Gus"))
"""No conversation of the training split is about someone of these names (the stories that a base model learns are)."""
_NAMES = frozenset(words.GIRLS + words.BOYS)
MADE_UP_SHARE = 0.5
"""Share of the training split's stories that are made up."""
_SYLLABLES = [c + v for c in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z") for v in "aeiou"]


@dataclass
class Facts:
    """A story and the answers to questions about it; None and empty where the story does not say."""

    plot: str = ""
    story: str = ""
    hero: Character | None = None
    friend: Character | None = None
    elder: str = ""
    home: str = ""
    hobby: str = ""
    picked: dict[str, object] = field(default_factory=dict)
    """Choices from the lists of words that some plots use: ``treasure``, ``color``, ``hiding``, ..."""

    @property
    def name(self) -> str:
        assert self.hero is not None
        return self.hero.name


_LISTS: tuple[tuple[str, Sequence[object]], ...] = (
    ("treasure", words.TREASURES),
    ("color", words.COLORS),
    ("hiding", words.HIDING_PLACES),
    ("treat", words.TREATS),
    ("dish", words.DISHES),
    ("seed", words.SEEDS),
    ("rescue", words.RESCUES),
    ("noise", words.NOISES),
    ("skill", words.SKILLS),
    ("broken", words.BREAKABLE),
    ("toy", words.TOYS),
)


class NotingTeller(Teller):
    """A teller that remembers what it chose.

    ``held_out_names``: its story has ``HELD_OUT_NAMES`` only, else none of them; with a probability of
    ``made_up_share`` it has names made of syllables.
    """

    def __init__(self, key: str, *, held_out_names: bool = False, made_up_share: float = 0.0) -> None:
        super().__init__(0, 0)
        self._random = random.Random(key)
        self._held_out_names = held_out_names
        # A model that only ever sees forty names learns these forty; one that sees new ones learns to look for them.
        self._made_up = made_up_share > 0 and self._random.random() < made_up_share
        self.facts = Facts()

    def pick(self, options: Sequence[T]) -> T:
        if isinstance(options[0], str) and options[0] in _NAMES:
            if self._made_up:
                return cast(T, self._new_name())
            options = [name for name in options if (name in HELD_OUT_NAMES) == self._held_out_names]
        chosen = super().pick(options)
        for name, known in _LISTS:
            if options is known:
                self.facts.picked[name] = chosen
        if options is words.HOUSES or options is words.DENS:
            self.facts.home = str(chosen)
        elif options is words.HOBBIES:
            self.facts.hobby = words.HOBBIES[words.HOBBIES.index(chosen)][0]
        return chosen

    def _new_name(self) -> str:
        """A name of two or three syllables that is no ordinary one, and not the hero's."""
        while True:
            syllables = [self._random.choice(_SYLLABLES) for _ in range(self._random.choice((2, 2, 3)))]
            name = "".join(syllables).capitalize()
            if name not in _NAMES and (self.facts.hero is None or name != self.facts.hero.name):
                self.ways *= len(_SYLLABLES) ** 2
                return name

    def hero(self, *, child: bool | None = None) -> Character:
        self.facts.hero = super().hero(child=child)
        return self.facts.hero

    def friend(self, hero: Character) -> Character:
        self.facts.friend = super().friend(hero)
        return self.facts.friend

    def elder(self) -> Character:
        made = super().elder()
        self.facts.elder = made.kind
        return made

    def tell(self) -> Facts:
        """A story and what it is about."""
        plot = self.pick(PLOTS)
        self.facts.plot = plot.__name__
        self.facts.story = "\n\n".join(" ".join(paragraph) for paragraph in plot(self))
        return self.facts
