"""Small corpora, and streams over lists, for the tests of the data room."""

import json

from slm.data.config import DataConfig


def write_jsonl(path, rows):
    """Write ``rows`` as JSON lines with a ``text`` key; the path as a string."""
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path)


def local(*paths, **options):
    """The configuration of local files."""
    return DataConfig(kind="files", files=[str(path) for path in paths], **options)


def take(stream, count=None):
    """The next ``count`` items of a stream, or all that are left."""
    found = []
    while count is None or len(found) < count:
        try:
            found.append(next(stream))
        except StopIteration:
            break
    return found


class Listed:
    """A stream over a list."""

    def __init__(self, texts):
        self.texts = texts
        self.at = 0

    def __next__(self):
        if self.at == len(self.texts):
            raise StopIteration
        self.at += 1
        return self.texts[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
