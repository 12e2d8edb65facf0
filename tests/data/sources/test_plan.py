"""Plans: what is read and held out, and the errors where there is no text."""

import tracemalloc

import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources.contents import unit_hash
from slm.data.sources.documents import iter_documents, make_plans, open_documents
from tests.helpers.documents import local, take, write_jsonl


def test_a_small_text_file_can_be_split(tmp_path):
    text = "\n\n".join(f"Paragraph {i}. " + "Some words follow. " * 20 for i in range(200))
    (tmp_path / "a.txt").write_text(text)
    train, validation = (list(iter_documents(local(tmp_path / "a.txt"), s, 1)) for s in ("train", "validation"))
    size = sum(map(len, validation))
    assert 4000 < size < len(text) / 4
    assert size + sum(map(len, train)) == len(text)


def test_validation_files_are_kept_apart(tmp_path):
    a, b = (write_jsonl(tmp_path / f"{n}.jsonl", [f"{n}{i}" for i in range(20)]) for n in "ab")
    config = local(str(tmp_path / "*.jsonl"), val_files=[b])
    assert sorted(iter_documents(config, "train", 1)) == sorted(f"a{i}" for i in range(20))
    assert sorted(iter_documents(config, "validation", 1)) == sorted(f"b{i}" for i in range(20))
    with pytest.raises(UserError, match=r"also in data\.val_files"):
        make_plans(local(a, val_files=[a]), "train")


def test_a_changed_corpus_has_another_selection(tmp_path):
    """The fingerprint leaves what is in local files to ``slm.data.stream.read_so_far``."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    before = make_plans(local(path), "train")[0].selection
    assert before == make_plans(local(path), "train")[0].selection
    write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three", "four"])
    assert make_plans(local(path), "train")[0].selection != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the corpus is empty"),
        (b" \n \n", "the corpus is empty"),
        (b"one short line", "is one document"),
    ],
)
def test_a_corpus_without_text(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        make_plans(local(tmp_path / "a.txt"), "train")


def test_no_files_named():
    with pytest.raises(UserError, match=r"add data\.files="):
        make_plans(DataConfig(kind="files"), "train")


def test_a_large_corpus_is_not_read_to_split_it(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(1000)])
    monkeypatch.setattr("slm.data.sources.plan.SMALL_CORPUS", 100)
    monkeypatch.setattr("slm.data.sources.plan.hold_out", None)  # calling it would fail
    assert make_plans(local(path), "train")[0].held_out == 0.01


def book(number, paragraphs=800):
    return "\n\n".join(
        f"Book {number}, paragraph {i}. " + " ".join(f"word{number}.{i}.{j}" for j in range(50))
        for i in range(paragraphs)
    )


def test_a_file_is_one_document(tmp_path):
    """Two books were 512 documents, each with an end-of-text token after 2 KB."""
    texts = [book(1), book(2)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    config = local(tmp_path)
    train, validation = (list(iter_documents(config, s, 1)) for s in ("train", "validation"))
    assert len(train) == len(validation) == 2
    for text in texts:
        (passage,) = (each for each in validation if each in text)
        assert text.replace(passage, "") in train
    held_out = sum(map(len, validation)) / sum(map(len, texts))
    assert 0.01 <= held_out < 0.02


def test_one_short_file_can_be_split(tmp_path):
    (tmp_path / "a.txt").write_text(book(1, paragraphs=5))
    (train,), (passage,) = (list(iter_documents(local(tmp_path), s, 1)) for s in ("train", "validation"))
    assert 0.05 < len(passage) / (len(train) + len(passage)) < 0.25
    assert passage not in train


def test_document_chars_cuts_a_small_file_too(tmp_path):
    (tmp_path / "a.txt").write_text(book(1))
    config = local(tmp_path, document_chars=20_000)
    found = [text for s in ("train", "validation") for text in iter_documents(config, s, 1)]
    assert len(found) == pytest.approx(len(book(1)) / 20_000, abs=2)
    assert all(20_000 <= len(text) < 22_000 for text in found if "paragraph 799." not in text)


def test_a_separator_of_ones_own(tmp_path):
    notes = [f"Note {i} with some words." for i in range(50)]
    (tmp_path / "a.txt").write_text("\n=====\n".join(notes))
    config = local(tmp_path, separator="=====")
    found = [text for s in ("train", "validation") for text in iter_documents(config, s, 1)]
    assert sorted(found) == sorted(notes)
    assert list(iter_documents(config, "validation", 1))
    plans = [make_plans(each, "train")[0].fingerprint for each in (config, local(tmp_path))]
    assert plans[0] != plans[1]


def test_many_files_are_held_out_as_a_whole_or_not_at_all(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(book(number, paragraphs=6))
    train, validation = (list(iter_documents(local(tmp_path), s, 1)) for s in ("train", "validation"))
    assert sorted(train + validation) == sorted(book(number, paragraphs=6) for number in range(60))
    assert 4 <= len(validation) <= 8  # 16 KB


def held_out_share(config):
    """The share of characters that is held out; the splits have no document in common, and lose none."""
    train, validation = (list(iter_documents(config, s, 1)) for s in ("train", "validation"))
    assert not set(train) & set(validation)
    n_validation = sum(map(len, validation))
    return n_validation / (n_validation + sum(map(len, train)))


@pytest.mark.parametrize("total", [10_000, 50_000, 144_000, 1_000_000])
@pytest.mark.parametrize("form", ["equal", "uneven", "jsonl", "one"])
def test_at_least_16_kb_but_at_most_about_a_tenth(tmp_path, total, form):
    """One long note with a small hash was 56 % of 50 KB of uneven notes."""
    sizes = {
        "equal": [total // 40] * 40,
        "uneven": [total // 2, total // 5, *[total // 100] * 30],
        "jsonl": [total // 4, total // 4, *[total // 100] * 50],
        "one": [total],
    }[form]
    # The longest ones get the smallest hashes.
    texts = [book(number, 1 + size // 400)[:size] for number, size in enumerate(sizes)]
    for i in range(2 if form in ("uneven", "jsonl") else 0):
        texts[i] = next(text for n in range(10_000) if unit_hash(text := f"{n} {texts[i][6:]}") < 0.002)
    if form == "jsonl":
        config = local(write_jsonl(tmp_path / "a.jsonl", texts))
    else:
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.txt").write_text(text)
        config = local(tmp_path)
    rule = min(16384, total / 10) / total
    share = held_out_share(config)
    assert 0.9 * rule <= share <= 1.3 * max(rule, 0.1), share


def test_documents_that_are_too_long_to_hold_out_stay_out_of_other_sources_too(tmp_path):
    """Each of two sources has texts of the other; what one of them holds out, none trains on."""
    texts = [book(number, 3) for number in range(40)]
    long = next(text for n in range(10_000) if unit_hash(text := f"{n} {book(50, 60)}") < 0.002)
    a = write_jsonl(tmp_path / "a.jsonl", [long, *texts[:30]])
    b = write_jsonl(tmp_path / "b.jsonl", [long, *texts[10:], *[book(number, 2) for number in range(60, 200)]])
    sources = [SourceConfig(kind="files", files=[path], max_epochs=1) for path in (a, b)]
    assert make_plans(local(a), "validation")[0].longest_held_out
    config = DataConfig(kind="mixture", sources=sources)
    train, validation = (set(iter_documents(config, s, 1)) for s in ("train", "validation"))
    assert not train & validation
    assert train | validation == {long, *texts, *[book(number, 2) for number in range(60, 200)]}


def test_few_documents_of_which_most_are_too_short_to_divide(tmp_path):
    """The long ones give what the short ones do not."""
    for number, size in enumerate([4000, *[900] * 7]):
        (tmp_path / f"{number}.txt").write_text(book(number, 10)[:size])
    assert 0.09 < held_out_share(local(tmp_path)) < 0.13


def test_no_passage_of_one_source_is_trained_on_in_another(tmp_path):
    """The larger source holds out 1 %, the smaller one, which has a copy of a book, 4 %."""
    for number in range(12):
        (tmp_path / "many").mkdir(exist_ok=True)
        (tmp_path / "many" / f"{number}.txt").write_text(book(number, paragraphs=600))
    (tmp_path / "copy.txt").write_text(book(3, paragraphs=600))
    sources = [SourceConfig(kind="files", files=[str(tmp_path / name)]) for name in ("many", "copy.txt")]
    config = DataConfig(kind="mixture", sources=sources)
    validation = list(iter_documents(config, "validation", 1))
    assert len(validation) == 13
    shares = sorted(len(each) for each in validation if each.startswith("Book 3,"))
    assert shares[1] > 2 * shares[0]
    words = [set(" ".join(iter_documents(config, split, 1)).split()) for split in ("train", "validation")]
    assert len(words[1]) > 1000
    assert not {word for word in words[0] & words[1] if word.startswith("word")}


def test_a_large_file_stays_streamed(tmp_path, monkeypatch):
    """Beyond ``document_chars`` a file is cut at blank lines, and the memory that reading takes is bounded."""
    monkeypatch.setattr("slm.data.sources.plan.SMALL_CORPUS", 1 << 20)
    (tmp_path / "a.txt").write_text(book(1) * 30)
    config = local(tmp_path, document_chars=1 << 20)
    size = (tmp_path / "a.txt").stat().st_size
    train, validation = (list(iter_documents(config, s, 1)) for s in ("train", "validation"))
    assert len(train) == pytest.approx(size / (1 << 20), abs=2)
    assert len(train) - len(validation) in (0, 1)  # what is left at the end may be short
    assert max(map(len, train)) < 1.2 * (1 << 20)
    assert sum(map(len, train + validation)) == size
    tracemalloc.start()
    for text in iter_documents(local(tmp_path, document_chars=1 << 20, shuffle_buffer=0), "train", 1):
        assert text
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20 < size


def kept_for_calibration(config):
    """What the training text of ``config`` keeps, what is left of it, and all of it, as lists of documents."""

    def of(split, **more):
        return take(open_documents(make_plans(config, split, **more), seed=1))

    return of("calibration"), of("train", calibrates=True), of("train")


def test_some_documents_are_kept_for_calibration_and_none_of_validation(tmp_path):
    config = local(write_jsonl(tmp_path / "a.jsonl", [f"Document {i}." for i in range(1000)]))
    kept, trained, all_of_it = kept_for_calibration(config)
    assert 8 < len(kept) < 40
    assert sorted(kept + trained) == sorted(all_of_it)
    assert not set(kept) & set(iter_documents(config, "validation", 1))
    apart = local(*config.files, val_files=[write_jsonl(tmp_path / "b.jsonl", kept[:3])])
    assert set(kept_for_calibration(apart)[0]) == set(kept[3:])


def test_long_documents_give_a_part_of_their_middle_for_calibration(tmp_path):
    books = [book(number, 100) for number in range(20)]
    (tmp_path / "a.txt").write_text(book(1))
    for config in (local(tmp_path / "a.txt"), local(write_jsonl(tmp_path / "a.jsonl", books))):
        kept, trained, all_of_it = kept_for_calibration(config)
        validation = list(iter_documents(config, "validation", 1))
        assert len(kept) == len(trained) == len(all_of_it)
        for own, rest, text in zip(*map(sorted, (kept, trained, all_of_it)), strict=True):
            assert 0.01 < len(own) / len(text) < 0.06
            assert len(own) + len(rest) == len(text)
            beginning = own[: len(own) // 4]
            assert beginning in text
            assert not any(beginning in each for each in (*trained, *validation))


def test_positions_of_text_with_and_without_calibration_differ(tmp_path):
    config = local(write_jsonl(tmp_path / "a.jsonl", [f"Document {i}." for i in range(100)]))
    (plain,), (keeping,) = make_plans(config, "train"), make_plans(config, "train", calibrates=True)
    assert plain.fingerprint != keeping.fingerprint
    assert plain.selection != keeping.selection
