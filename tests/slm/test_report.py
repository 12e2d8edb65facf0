"""What is printed for people does nothing to their terminal, and the final line is JSON."""

import json
import math
import os

import pytest

from slm.report import atomic_write_json, duration, final_json, finite, plain, table


def test_times_read_as_people_write_them():
    assert [duration(s) for s in (0, 61.4, 3723, 47 * 3600, 75 * 86400 + 20 * 3600)] == [
        "0:00",
        "1:01",
        "1:02:03",
        "47:00:00",
        "75 days 20 h",
    ]


def test_control_characters_become_a_visible_sign():
    assert plain("a\tb\x00\x1b[0m\x7f\n") == "a    b��[0m�\n"


def test_the_final_line_is_strict_json(capsys):
    record = {"loss": math.nan, 1: [math.inf, 2.5], "text": "é\n", "pair": (1, -math.inf)}
    final_json(record)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"loss": None, "1": [None, 2.5], "text": "é\n", "pair": [1, None]}
    assert finite(3) == 3


@pytest.fixture
def screen(capsys, monkeypatch):
    """The lines that a table takes on a screen so wide."""

    def lines(columns: int, *args, **options) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        table(*args, **options)
        printed = capsys.readouterr().out.splitlines()
        assert max(map(len, printed)) <= columns
        return printed

    return lines


def test_a_wide_cell_is_folded_and_whole(screen):
    lines = screen(80, "Rates", ["what", "figure"], [["a" * 150, "1,234"], ["short", None]])
    assert sum(line.count("a") for line in lines[4:]) == 150
    assert lines[5].startswith("aaa")
    assert lines[5].endswith(" 1,234")


COLUMNS = [f"column {letter}" for letter in "abcdefghij"]
ROWS = [[f"row {number}", *(f"{number}.{column}" for column in range(9))] for number in range(3)]


def test_a_wide_table_is_printed_in_parts_each_with_what_its_rows_are(screen):
    lines = screen(80, "Many", COLUMNS, ROWS, caption="words " * 40, chosen=[1])
    heads = [line for line in lines if "column a" in line]
    assert len(heads) == 2
    assert " ".join(heads).count("column") == len(COLUMNS) + 1
    assert [line[:8] for line in lines if "row" in line] == ["  row 0 ", "> row 1 ", "  row 2 "] * 2
    wide = screen(120, "Many", COLUMNS, ROWS)
    assert sum("column a" in line for line in wide) == 1
    assert "> " not in "".join(wide)


def test_numbers_stand_right_and_text_left(screen):
    lines = screen(80, "T", ["name", "value"], [["a", "1.5 ± 0.1"], ["bcd", "12"]])
    assert lines[-3:-1] == ["a     1.5 ± 0.1", "bcd          12"]


def test_results_are_json_for_programs_and_on_request(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    final_json({"a": 1})
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("SLM_JSON", "true")
    final_json({"a": 1})
    assert capsys.readouterr().out == '{"a": 1}\n'
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    monkeypatch.setenv("SLM_JSON", "false")
    final_json({"a": 1})
    assert capsys.readouterr().out == ""


def test_json_is_strict(tmp_path):
    path = tmp_path / "a.json"
    atomic_write_json(path, {"loss": math.nan, "steps": [1, 2]})
    assert json.loads(path.read_text()) == {"loss": None, "steps": [1, 2]}


def test_what_is_in_brackets_is_text(capsys):
    """And no markup, which raised an error for [/t/a.txt] and swallowed [q_proj]."""
    table("runs/[a]", ["data.files", "lora.targets"], [["[/t/a.txt]", "[q_proj]"]], caption="[b]")
    out = capsys.readouterr().out
    assert all(text in out for text in ("runs/[a]", "[/t/a.txt]", "[q_proj]", "[b]"))


def test_a_name_that_is_not_utf8_is_kept(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    atomic_write_json(tmp_path / "record.json", {"files": [name], "text": "café"})
    assert json.loads((tmp_path / "record.json").read_text(encoding="utf-8")) == {"files": [name], "text": "café"}
