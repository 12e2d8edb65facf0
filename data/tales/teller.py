"""What every plot draws from: characters with their pronouns, openings, endings, and seeded choices.

Tested in tests/data/tales/test_story.py.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from slm.data.tales import words

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Character:
    """Someone in a story, and the pronouns that go with them."""

    name: str
    kind: str
    """``girl``, ``boy``, or an animal."""
    female: bool
    trait: str = "kind"

    @property
    def he(self) -> str:
        return "she" if self.female else "he"

    @property
    def He(self) -> str:
        return "She" if self.female else "He"

    @property
    def him(self) -> str:
        return "her" if self.female else "him"

    @property
    def his(self) -> str:
        return "her" if self.female else "his"

    @property
    def His(self) -> str:
        return "Her" if self.female else "His"

    @property
    def himself(self) -> str:
        return "herself" if self.female else "himself"

    @property
    def is_child(self) -> bool:
        return self.kind in ("girl", "boy")


def a(phrase: str) -> str:
    """The phrase with its article: ``a red hat``, ``an old tree``."""
    return ("an " if phrase.lower().startswith(("a", "e", "i", "o", "u", "honest")) else "a ") + phrase


def the(phrase: str) -> str:
    """A phrase with an article named again: ``a red hat`` becomes ``the red hat``."""
    return "the " + phrase.split(" ", 1)[1]


def capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


class Teller:
    """The choices of one story, each drawn from the story's own random generator."""

    def __init__(self, seed: int, index: int) -> None:
        self._random = random.Random(f"{seed}/{index}")
        self.ways = 1
        """The number of equally likely outcomes of the choices so far. A story has the probability ``1 / ways``, so
        there are at least as many stories as the smallest ``ways`` of any story."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        self.ways *= len(options)
        return options[int(self._random.random() * len(options))]

    def say(self, *options: str) -> str:
        """One of several wordings."""
        return self.pick(options)

    def two(self, options: Sequence[T]) -> tuple[T, T]:
        """Two different options."""
        first = self.pick(options)
        second = self.pick([option for option in options if option != first])
        return first, second

    def hero(self, *, child: bool | None = None) -> Character:
        """A child or a young animal, with a name and a character."""
        female = self.pick((True, False))
        is_child = self.pick((True, False)) if child is None else child
        kind = ("girl" if female else "boy") if is_child else self.pick(words.ANIMALS)
        name = self.pick(words.GIRLS if female else words.BOYS)
        return Character(name=name, kind=kind, female=female, trait=self.pick(words.TRAITS))

    def friend(self, hero: Character) -> Character:
        """Another of the hero's sort, with another name; another animal where the hero is one."""
        female = self.pick((True, False))
        kind = "girl" if female else "boy"
        if not hero.is_child:
            kind = self.pick([animal for animal in words.ANIMALS if animal != hero.kind])
        names = words.GIRLS if female else words.BOYS
        name = self.pick([name for name in names if name != hero.name])
        return Character(name=name, kind=kind, female=female, trait=self.pick(words.TRAITS))

    def elder(self) -> Character:
        """A relative of the hero: ``kind`` is the word for it, as in "his mother"."""
        kind, female = self.pick(
            (
                ("mother", True),
                ("father", False),
                ("grandmother", True),
                ("grandfather", False),
                ("aunt", True),
                ("uncle", False),
            )
        )
        return Character(name=kind, kind=kind, female=female)

    def opening(self, c: Character) -> list[str]:
        """Who the hero is and where: one or two sentences."""
        home = self.pick(words.HOUSES if c.is_child else words.DENS)
        hobby, _ = self.pick(words.HOBBIES)
        who = f"{c.trait} little {c.kind}"
        first = self.say(
            f"Once upon a time, there was {a(who)} named {c.name}. {c.He} lived {home}.",
            f"{capital(home)} lived {a(who)} named {c.name}.",
            f"{c.name} was {a(who)} who lived {home}.",
            f"Once there was {a(f'little {c.kind}')} called {c.name}, who lived {home}. {c.He} was very {c.trait}.",
            f"There once was {a(who)}. {c.His} name was {c.name}, and {c.he} lived {home}.",
        )
        second = self.say(
            f"{c.name} loved to {hobby}.",
            f"More than anything, {c.he} loved to {hobby}.",
            f"Every day {c.he} liked to {hobby}.",
            f"{c.He} always had time to {hobby}.",
        )
        return [first, second]

    def day(self) -> str:
        """``One sunny morning``, to begin what happens."""
        return f"One {self.pick(words.WEATHER)} {self.pick(words.TIMES)}"

    def moral(self, topic: str, c: Character) -> list[str]:
        """A closing lesson, or nothing in two cases of five."""
        lesson = self.pick(words.MORALS[topic])
        quiet = lesson[0].lower() + lesson[1:-1]
        return self.pick(
            (
                [],
                [],
                [lesson],
                [f"{c.name} never forgot that day. {lesson}"],
                [f"And {c.name} learned something: {quiet}."],
            )
        )

    def ending(self, c: Character, f: Character | None = None) -> str:
        """How the day ends."""
        glad = self.pick(words.GLAD)
        options = [
            f"That night, {c.name} fell asleep with a smile.",
            f"{c.name} went home feeling {glad}.",
            f"It was the best day {c.name} could remember.",
            f"When the stars came out, {c.name} was still smiling.",
        ]
        if f is not None:
            options += [
                f"From then on, {c.name} and {f.name} were the best of friends.",
                f"{c.name} and {f.name} laughed all the way home.",
                f"Then {c.name} and {f.name} sat side by side and watched the sun go down.",
                f"The two friends were {glad}.",
            ]
        return self.pick(options)
