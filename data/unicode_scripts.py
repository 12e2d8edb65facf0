"""Unicode characters by class: white space, letters by their script, and everything else.

A letter is what ``str.isalpha`` calls one. Its script is the first word of its Unicode name in lower case, for example
``latin`` for LATIN SMALL LETTER A.
"""

import functools
import unicodedata

import numpy as np

_BLANKS = "".join(chr(code) for code in (*range(9, 14), 32, 133, 160, 5760, *range(8192, 8203), 8232, 8233, 8239, 8287))
BLANKS = _BLANKS + "\u3000"
"""Unicode's White_Space, which ``tokenizers`` takes for such. ``str.isspace`` has four control characters more."""
SPACE, OTHER, LETTER = 0, 1, 2
"""Classes of characters. A letter without a script has the class ``LETTER``; the scripts' classes follow it."""


def scripts() -> dict[str, int]:
    """All scripts by name, each with its class."""
    return _tables()[0]


def count_classes(text: str) -> np.ndarray:
    """How many characters of each class ``text`` has, ``np.int64[n_classes]``."""
    names, table = _tables()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return np.bincount(table[codes], minlength=LETTER + 1 + len(names))


@functools.cache
def _tables() -> tuple[dict[str, int], np.ndarray]:
    """The scripts' classes, and the class of every code point (about 2 MB, made in half a second)."""
    names: dict[str, int] = {}
    table = np.full(0x110000, OTHER, dtype=np.uint16)
    for code in range(0x110000):
        character = chr(code)
        if character.isalpha():
            name = unicodedata.name(character, "").split(" ")[0].lower()
            name = name.split("-")[0]
            table[code] = names.setdefault(name, LETTER + 1 + len(names)) if name else LETTER
        elif character.isspace():
            table[code] = SPACE
    return names, table
