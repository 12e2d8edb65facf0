"""The programs that run in nanochat's Python, here with another tokenizer."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from slm.train.bench_recipe.nanochat_scripts import PIECES

TOKENIZER = '''
"""One id for each character, behind the interface of nanochat's tokenizer."""


class Characters:
    def encode(self, text, num_threads=1):
        return [ord(each) for each in text] if isinstance(text, str) else [self.encode(each) for each in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def get_vocab_size(self):
        return 128


def get_tokenizer():
    return Characters()
'''


def test_documents_become_pieces_that_fill_a_row_and_nothing_is_lost(tmp_path):
    package = tmp_path / "nanochat"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tokenizer.py").write_text(TOKENIZER)
    documents = [" ".join(f"word{n}x{i}" for i in range(length)) for n, length in enumerate((90, 1, 40, 7, 60))]
    shard = tmp_path / "shard_00000.parquet"
    pq.write_table(pa.table({"text": documents}), shard)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PIECES, shard, "64", "4", "1234"], check=True, env=environment)

    found = pq.ParquetFile(shard)
    pieces = found.read().column("text").to_pylist()
    assert found.num_row_groups == -(-len(pieces) // 4)
    longest = max(len(word) for document in documents for word in document.split())
    shorter = [piece for piece in pieces if len(piece) < 66]
    assert len(shorter) <= 1  # the end of the text
    assert max(len(piece) for piece in pieces) <= 66 + longest + 1
    assert sorted(" ".join(pieces).split()) == sorted(" ".join(documents).split())
    first = pieces.index(next(piece for piece in pieces if piece.startswith("word0x0 ")))
    assert first != 0 or not pieces[1].startswith(" word0")  # in another order than the text's
