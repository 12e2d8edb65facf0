"""Decontamination: whatever shares words in a row with an evaluation text goes, and nothing else does."""

import json
import random

import pytest

from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.quality.contamination import AROUND, GRAM, LONG, Contamination
from slm.data.sources.documents import iter_documents, make_plans
from slm.data.sources.filters import make_filter, options
from tests.helpers.documents import local, write_jsonl

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdklmnrst"]


def prose(chance, n_words):
    return " ".join(chance.choices(WORDS, k=n_words))


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_a_comparison_of_all_sequences_finds(seed):
    chance = random.Random(seed)
    few = WORDS[: chance.choice([4, 40, 400])]
    evaluation = [" ".join(chance.choices(few, k=chance.choice([5, 9, 13, 50]))) for _ in range(5)]
    found = Contamination(evaluation)
    grams = set()
    for text in evaluation:
        words = text.split()
        n = min(GRAM, len(words))
        grams |= {tuple(words[at : at + n]) for at in range(len(words) - n + 1) if n >= 8}
    for _ in range(30):
        words = chance.choices(few, k=chance.randint(1, 60))
        if chance.random() < 0.5:
            words[10:10] = chance.choice(evaluation).split()[: chance.randint(7, 14)]
        runs = {tuple(words[at : at + n]) for n in range(8, GRAM + 1) for at in range(len(words) - n + 1)}
        assert found.is_in(" ".join(words)) == bool(runs & grams)


def test_case_punctuation_and_line_ends_do_not_hide_a_passage():
    text = "The quick brown fox jumps over the lazy dog, and the caf\u00e9 near Stra\u00dfe 9 is open."
    found = Contamination([text])
    assert found.is_in("So: " + text.upper().replace(" ", "\n - ") + " End")
    assert found.is_in(text.replace("\u00e9", "e\u0301"))
    assert not found.is_in(text.replace("lazy", "old").replace("near", "by"))


def test_short_texts_count_as_a_whole_and_very_short_ones_do_not():
    found = Contamination(["one two three four five six seven eight", "too short", "\u6f22\u5b57" * 5])
    assert (found.texts, found.too_short) == (3, 1)
    assert found.is_in("zero one two three four five six seven eight nine")
    assert not found.is_in("too short one two three four five six seven")
    assert found.is_in("x" + "\u6f22\u5b57" * 5)  # a character is a word


def test_passages_are_cut_out_of_long_documents():
    chance = random.Random(1)
    passages = [prose(chance, 40) for _ in range(3)]
    parts = [prose(chance, 3000) for _ in range(4)]
    text = parts[0] + "".join(f"\n\n{passage.title()}.\n\n{part}" for passage, part in zip(passages, parts[1:]))  # noqa: B905
    found = Contamination(passages)
    left = found.without(text)
    assert not found.is_in(left)
    lost = len(text) - len(left)
    assert sum(map(len, passages)) < lost < sum(map(len, passages)) + 3 * (2 * AROUND + 40)
    assert found.without(parts[0]) == parts[0]
    assert found.without(passages[0]) == ""


@pytest.mark.parametrize("form", ["jsonl", "txt", "json"])
def test_a_run_reads_nothing_of_the_evaluation(tmp_path, form):
    chance = random.Random(2)
    questions = [prose(chance, 30) for _ in range(10)]
    rows = [prose(chance, 50) for _ in range(40)]
    rows[3] = f"Before. {questions[4]} After."
    book = "\n\n".join(prose(chance, 600) for _ in range(20)) + "\n\n" + questions[7] + "\n\n" + prose(chance, 100)
    assert len(book) > LONG
    write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "book.txt").write_text(book)
    path = tmp_path / f"evaluation.{form}"
    records = [{"question": each, "choices": ["a", "b"]} for each in questions]
    path.write_text(
        {"txt": "\n".join(questions), "json": json.dumps(records)}.get(form) or "\n".join(map(json.dumps, records))
    )
    config = local(tmp_path / "a.jsonl", tmp_path / "book.txt", decontaminate=[str(path)], shuffle_buffer=0)
    texts = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert not any(questions[4] in text or questions[7] in text for text in texts)
    assert sum(text in texts for text in rows) == 39
    assert sum(map(len, texts)) > sum(map(len, rows)) + len(book) - 2000


def test_validation_files_may_be_the_evaluation_itself(tmp_path):
    chance = random.Random(3)
    rows = [prose(chance, 50) for _ in range(20)]
    val = write_jsonl(tmp_path / "v.jsonl", rows[:5])
    config = local(write_jsonl(tmp_path / "a.jsonl", rows), val_files=[val], decontaminate=[val])
    assert sorted(iter_documents(config, "validation", 1)) == sorted(rows[:5])
    assert sorted(iter_documents(config, "train", 1)) == sorted(rows[5:])


def test_conversations(tmp_path):
    chance = random.Random(4)
    talks = [(prose(chance, 20), prose(chance, 20)) for _ in range(20)]
    rows = [{"instruction": a, "output": b} for a, b in talks]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "e.txt").write_text(talks[2][1])
    config = DataConfig(kind="chat", files=[str(tmp_path / "c.jsonl")], decontaminate=[str(tmp_path / "e.txt")])
    texts = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert len(texts) == 19
    assert not any(talks[2][1] in text for text in texts)


def test_the_fingerprint_follows_the_content_of_the_files(tmp_path):
    chance = random.Random(5)
    rows = write_jsonl(tmp_path / "a.jsonl", [prose(chance, 50) for _ in range(20)])
    prints = []
    for name, text in (("e.txt", prose(chance, 30)), ("f.txt", None), ("e.txt", prose(chance, 30))):
        (tmp_path / name).write_text(text or (tmp_path / "e.txt").read_text())
        (plan,) = make_plans(local(rows, decontaminate=[str(tmp_path / name)]), "train")
        prints.append(plan.fingerprint)
    assert prints[0] == prints[1] != prints[2]
    (plain,) = make_plans(local(rows), "train")
    assert plain.fingerprint not in prints
    assert len(options(plain.source)) == 5  # as before there was a choice


def test_files_without_text_to_compare(tmp_path):
    (tmp_path / "e.txt").write_text("too short")
    config = local(write_jsonl(tmp_path / "a.jsonl", ["x"]), decontaminate=[str(tmp_path / "e.txt")])
    with pytest.raises(UserError, match="hold no text of eight words or more"):
        make_filter(config)
