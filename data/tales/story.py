"""The embedded corpus: small children's stories from a seeded grammar, for training on a machine without network.

A story has a hero with a character and a home, a friend or a relative, a problem, a resolution that follows from
it, some dialogue, and often a moral: 120 to 220 simple words. Names, pronouns and objects stay consistent through a
story. A small model can learn that consistency and the syntax, but it cannot memorise the stories: there are far too
many (``Teller.ways``).
"""

from slm.data.tales.plots import PLOTS
from slm.data.tales.teller import Teller


def story(seed: int, index: int) -> str:
    """The story number ``index`` (any whole number) of the collection ``seed``: always the same text.

    Paragraphs are separated by a blank line; there is no newline at the end.
    """
    return write(Teller(seed, index))


def write(teller: Teller) -> str:
    """The story that ``teller`` chooses: first a plot, then the plot's details."""
    plot = teller.pick(PLOTS)
    return "\n\n".join(" ".join(paragraph) for paragraph in plot(teller))
