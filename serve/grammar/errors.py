"""What makes a grammar unusable."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why and where."""
