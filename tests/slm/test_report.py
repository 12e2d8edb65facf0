"""What is printed for people does nothing to their terminal, and the final line is JSON."""

import json
import math

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


def test_a_table_is_not_cut_where_there_is_no_terminal(capsys):
    table("Rates", ["what", "figure"], [["a" * 150, "1,234"], ["short", None]])
    lines = capsys.readouterr().out.splitlines()
    assert any("a" * 150 in line and "1,234" in line for line in lines)


def test_json_is_strict(tmp_path):
    path = tmp_path / "a.json"
    atomic_write_json(path, {"loss": math.nan, "steps": [1, 2]})
    assert json.loads(path.read_text()) == {"loss": None, "steps": [1, 2]}


def test_what_is_in_brackets_is_text(capsys):
    """And no markup, which raised an error for [/t/a.txt] and swallowed [q_proj]."""
    table("runs/[a]", ["data.files", "lora.targets"], [["[/t/a.txt]", "[q_proj]"]], caption="[b]")
    out = capsys.readouterr().out
    assert all(text in out for text in ("runs/[a]", "[/t/a.txt]", "[q_proj]", "[b]"))
