"""The listing of a source's files: each one is taken, or left out with a reason."""

import os

from slm.data.account import listing
from slm.data.account.listing import list_files, show_files
from slm.data.config import DataConfig, SourceConfig


def folder(root):
    for name in ("a.md", "b.md", "sub/c.jsonl", "sub/d.txt.gz", "sub/e.svg", "p.png", ".hidden.txt", ".git/config"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('{"text": "words"}\n')
    (root / "settings.json").write_text("{}")
    return root


def test_every_file_of_a_folder_is_taken_or_named_with_a_reason(tmp_path):
    root = folder(tmp_path)
    found = list_files(SourceConfig(kind="files", files=[str(root)], val_files=[str(root / "b.md")]))
    names = {kind: [os.path.basename(path) for path in paths] for kind, paths in found.taken.items()}
    assert names == {".md": ["a.md"], ".jsonl": ["c.jsonl"], ".txt.gz": ["d.txt.gz"]}
    left_out = {why: sorted(os.path.basename(path) for path in paths) for why, paths in found.left_out.items()}
    assert left_out == {
        listing.VALIDATION: ["b.md"],
        listing.HIDDEN: [".git", ".hidden.txt"],
        "of types that are not read": ["e.svg", "p.png"],
        listing.NO_RECORDS: ["settings.json"],
    }
    line = found.line()
    assert "1 .md (18 bytes)" in line
    assert "2 hidden (" in line
    assert "1 named by data.val_files (b.md)" in line
    assert found.record()["taken"][".md"] == {"files": 1, "bytes": 18}
    assert found.record()["left_out_names"]["of types that are not read"] == ["e.svg", "p.png"]


def test_text_files_in_a_folder_of_conversations(tmp_path):
    found = list_files(SourceConfig(kind="chat", files=[str(folder(tmp_path))]))
    assert "a.md" in [os.path.basename(path) for path in found.left_out["of types that are not read"]]


def test_only_sources_with_files_are_listed_and_each_once(tmp_path):
    (tmp_path / "a.txt").write_text("words")
    source = SourceConfig(kind="files", files=[str(tmp_path / "a.txt")])
    lines = []
    config = DataConfig(kind="mixture", sources=[source, SourceConfig(kind="tales")])
    show_files(config, lines.append)
    show_files(config, lines.append)
    assert lines == [f"files of {tmp_path / 'a.txt'}: 1 .txt (5 bytes)"]
