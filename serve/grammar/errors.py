"""What makes a grammar unusable.

Tested in tests/serve/grammar/test_json_schema.py.
"""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why and where."""
