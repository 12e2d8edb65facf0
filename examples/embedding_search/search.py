"""Searches the paragraphs of text files by the embeddings of a served model.

python examples/embedding_search/search.py index FOLDER --index FILE
python examples/embedding_search/search.py ask "a question" --index FILE
"""

import argparse
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".txt", ".md")
BATCH = 16
"""Paragraphs in one request."""
LONGEST = 800
"""Characters of a paragraph; longer ones are cut. Their tokens must fit into the model's context."""


def paragraphs(folder: Path) -> Iterator[dict]:
    """Each paragraph of 40 characters or more: its file, its first line's number, its text."""
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES):
        line = 1
        for block in re.split(r"(\n\s*\n)", path.read_text(encoding="utf-8", errors="replace")):
            text = " ".join(block.split())
            if len(text) >= 40:
                yield {"file": str(path), "line": line + len(block) - len(block.lstrip("\n")), "text": text[:LONGEST]}
            line += block.count("\n")


def embed(url: str, texts: list[str]) -> tuple[str, list[list[float]]]:
    """The model's name, and a vector of length 1 for each text."""
    body = json.dumps({"model": "default", "input": texts}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('SLM_API_KEY', 'none')}"}
    request = urllib.request.Request(f"{url}/embeddings", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"the server refuses: {json.load(error)['error']['message']}")
    except OSError as error:
        sys.exit(f"no server at {url}: {error} (start one with: make serve MODEL=...)")
    return found["model"], [each["embedding"] for each in sorted(found["data"], key=lambda each: each["index"])]


def make_index(folder: Path, file: Path, url: str) -> None:
    """Writes ``file``: the model's name, the paragraphs and their vectors."""
    found = list(paragraphs(folder))
    if not found:
        sys.exit(f"no paragraphs in {folder}: it needs files that end in {' or '.join(SUFFIXES)}")
    vectors: list[list[float]] = []
    model = ""
    for start in range(0, len(found), BATCH):
        model, more = embed(url, [each["text"] for each in found[start : start + BATCH]])
        vectors += more
        print(f"\r{len(vectors):,} of {len(found):,} paragraphs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"model": model, "paragraphs": found, "vectors": vectors}))
    print(f"{file}: {len(found):,} paragraphs, vectors of {len(vectors[0])} numbers by {model}")


def ask(question: str, file: Path, url: str, count: int) -> None:
    """Prints the ``count`` nearest paragraphs with their cosine similarity."""
    try:
        index = json.loads(file.read_text())
    except FileNotFoundError:
        sys.exit(f"there is no index {file}: make it with 'search.py index FOLDER --index {file}'")
    model, (wanted,) = embed(url, [question])
    if model != index["model"]:
        sys.exit(f"{file} was made by {index['model']}, and the server has {model}: index the folder again")
    scores = [sum(a * b for a, b in zip(wanted, vector, strict=True)) for vector in index["vectors"]]
    for i in sorted(range(len(scores)), key=lambda i: -scores[i])[:count]:
        found = index["paragraphs"][i]
        print(f"{scores[i]:.3f}  {found['file']}:{found['line']}\n       {found['text'][:200]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    index, search = commands.add_parser("index", help="embed a folder"), commands.add_parser("ask", help="search")
    index.add_argument("folder", type=Path)
    search.add_argument("question")
    search.add_argument("--count", type=int, default=3, help="paragraphs to show (default: %(default)s)")
    for each in (index, search):
        each.add_argument("--index", type=Path, required=True, help="the file with the vectors")
        each.add_argument("--url", default="http://localhost:8080/v1", help="the server (default: %(default)s)")
    options = parser.parse_args()
    if options.command == "index":
        make_index(options.folder, options.index, options.url)
    else:
        ask(options.question, options.index, options.url, options.count)


if __name__ == "__main__":
    main()
