"""What tune finds in files of conversations."""

import json
from pathlib import Path

import pytest

from slm.data.chat.tokens import with_chatml
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.train.tune.look import Look, look
from tests.helpers import chat_model


@pytest.fixture
def base(tmp_path) -> Path:
    with_chatml(chat_model.base_tokenizer()).save(tmp_path)
    return tmp_path


def found(base: Path, rows: list[dict], longest: int = 512, **options) -> Look:
    path = base / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    seen = look(DataConfig(kind="chat", files=[str(path)], **options), base, longest=longest, seed=1)
    assert isinstance(seen, Look)
    return seen


def test_copies_are_counted_once(base):
    rows = [{"prompt": f"Say {number % 6}", "completion": "a cat"} for number in range(600)]
    seen = found(base, rows)
    assert (seen.records, seen.distinct, len(seen.lengths)) == (600, 6, 6)
    assert "6 different ones of 600" in seen.line
    assert seen.copied
    assert 0 < seen.scored < 0.5


def test_some_copies_may_be_meant_to_weigh_more():
    for records, copied in ((80, False), (200, True)):
        assert Look(line="", records=records, distinct=40, lengths=(60,), scored=0.2).copied is copied


def test_copies_in_a_row_are_no_shared_beginning(base):
    questions = ["Where is the red lamp?", "Who has a key?", "When do you open?"]
    rows = [{"prompt": question, "completion": "a cat"} for question in questions for _ in range(50)]
    assert found(base, rows).shared == found(base, rows[::50]).shared


def test_what_is_held_out_too_is_counted(base):
    rows = [{"prompt": f"Say {number}", "completion": "a cat"} for number in range(10)]
    held_out = base / "held_out.jsonl"
    held_out.write_text("\n".join(map(json.dumps, [*rows[:3], rows[0], {"prompt": "Who?", "completion": "me"}])))
    seen = found(base, rows, val_files=[str(held_out)])
    assert (seen.records, seen.distinct, seen.held_out) == (7, 7, 4)
    assert "3 more are in the held-out files, too, and are not learned" in seen.line
    with pytest.raises(UserError, match=r"all 2 conversations of data.files are in data.val_files, too"):
        found(base, rows[:2], val_files=[str(held_out)])


def test_all_are_looked_at_whatever_share_is_held_out(base):
    rows = [{"prompt": f"Say {number}", "completion": "a cat"} for number in range(50)]
    assert found(base, rows).distinct == found(base, rows, val_fraction=0.5).distinct == 50


def test_a_beginning_that_conversations_share_is_measured(base):
    system = {"role": "system", "content": "You answer for a shop that sells lamps, in one short sentence."}

    def talk(number: int, *before: dict) -> dict:
        turns = [{"role": "user", "content": f"{number} cats?"}, {"role": "assistant", "content": "a cat"}]
        return {"messages": [*before, *turns]}

    alike = found(base, [talk(number, system) for number in range(20)])
    apart = found(base, [talk(number) for number in range(20)])
    assert 30 < alike.shared < alike.mean_length
    assert apart.shared < 0.5 * alike.shared
    few = found(base, [talk(number, *([system] if number < 5 else [])) for number in range(20)])
    assert few.shared == apart.shared


def test_what_loses_its_end_is_counted(base):
    rows = [{"prompt": f"{number}", "completion": "a cat " * (100 if number < 3 else 2)} for number in range(20)]
    seen = found(base, rows, longest=64)
    assert "3 of 20 looked at lose their ends after train.seq_len=64 tokens" in seen.line
    assert max(seen.lengths) == 65
    assert "lose their ends" not in found(base, rows).line


def test_answers_that_come_too_late_are_one_line(base):
    rows = [{"prompt": "who is it " * 100, "completion": "a cat"}] * 3
    with pytest.raises(UserError, match=r"no conversation has an answer in its first train.seq_len=64 tokens .*raise"):
        found(base, rows, longest=64)


def test_conversations_that_are_in_no_file_are_not_looked_at(base):
    assert look(DataConfig(kind="story_chat"), base, longest=512, seed=1) is None
