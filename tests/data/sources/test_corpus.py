"""Corpora: one pass in the order of its files, shared out by record or by file, resumed with and without a position."""

import json

import numpy as np
import pytest

from slm.data.sources.corpus import CorpusStream, FileCorpus, SelectedCorpus
from slm.data.sources.files import Reading
from tests.helpers.documents import take, write_jsonl


@pytest.fixture
def corpus(tmp_path):
    """Three files of five records; the third record of each is empty."""
    rows = [[f"{file}.{record}" if record != 2 else " " for record in range(5)] for file in range(3)]
    return FileCorpus(
        tuple(write_jsonl(tmp_path / f"{file}.jsonl", rows[file]) for file in range(3)), Reading(text_field="text")
    )


class ByFile(FileCorpus):
    """A corpus whose shards take whole files."""

    def splits_by_file(self, n_shards):
        return True


def stream(corpus, order=(0, 1, 2), **shard):
    return CorpusStream(corpus, order=lambda n_files: list(order), **shard)


def test_a_pass_follows_the_order_of_the_files(corpus):
    assert take(stream(corpus, order=(2, 0))) == ["2.0", "2.1", "2.3", "2.4", "0.0", "0.1", "0.3", "0.4"]


def test_shards_take_every_nth_record_of_the_pass(corpus):
    """Empty records are counted, too."""
    assert take(stream(corpus, shard_index=0, num_shards=2)) == ["0.0", "0.4", "1.1", "1.3", "2.0", "2.4"]
    assert take(stream(corpus, shard_index=1, num_shards=2)) == ["0.1", "0.3", "1.0", "1.4", "2.1", "2.3"]


def test_shards_take_whole_files(corpus):
    by_file = ByFile(corpus._paths, corpus._reading)
    assert take(stream(by_file, shard_index=1, num_shards=2)) == ["1.0", "1.1", "1.3", "1.4"]
    assert len(take(stream(by_file, shard_index=0, num_shards=2))) == 8


@pytest.mark.parametrize("shard", [{}, {"shard_index": 1, "num_shards": 2}])
@pytest.mark.parametrize("known", [True, False])
def test_resumes_after_any_document(corpus, shard, known):
    """With ``at`` the file is opened at its position, without it the records before are read again."""
    whole = take(stream(corpus, **shard))
    for cut in range(len(whole) + 1):
        first = stream(corpus, **shard)
        assert take(first, cut) == whole[:cut]
        state = json.loads(json.dumps(first.state_dict()))
        assert set(state) == {"part", "record", "ordinal", "at"}  # as saved runs have it
        second = stream(corpus, **shard)
        second.load_state_dict(state if known else state | {"at": None})
        assert take(second) == whole[cut:]


def test_selected_leaves_out_records_and_rejected_texts(corpus):
    selected = SelectedCorpus(
        corpus, accepts=lambda text: text != "1.1", skipped={0: np.array([1, 4]), 2: np.array([0])}
    )
    whole = ["0.0", "0.3", "1.0", "1.3", "1.4", "2.1", "2.3", "2.4"]
    assert take(stream(selected)) == whole
    half = stream(selected)
    take(half, 2)
    rest = stream(selected)
    rest.load_state_dict(half.state_dict())
    assert take(rest) == whole[2:]


def test_a_reader_knows_how_far_it_is(corpus):
    reader = corpus.open(0, 0, None)
    fractions = [reader.fraction_read()]
    for _ in range(5):
        next(reader)
        fractions.append(reader.fraction_read())
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
