"""The prompt for filling in the middle: its form, and what has no room."""

import pytest

from slm.serve.engine.protocol import FimTokens
from slm.serve.infill import infill_prompt, other_file, room_for_prompt

FIM = FimTokens(prefix=1, suffix=2, middle=3, file=4)
BEFORE, BEHIND, OTHERS = [*range(10, 20)], [*range(30, 40)], [*range(50, 55)]


def test_everything_fits():
    made = infill_prompt(FIM, before=BEFORE, behind=BEHIND, others=OTHERS, bos=0, room=100)
    assert made.tokens == (0, *OTHERS, 1, *BEFORE, 2, *BEHIND, 3)
    assert made.n_dropped == 0
    assert infill_prompt(FIM, before=[], behind=[], room=100).tokens == (1, 2, 3)


@pytest.mark.parametrize(
    ("room", "others", "before", "behind"),
    [
        (25, OTHERS[-2:], BEFORE, BEHIND),  # other files lose their beginning first
        (23, [], BEFORE, BEHIND),
        (19, [], BEFORE, BEHIND[:6]),  # then the end
        (11, [], BEFORE[-6:], BEHIND[:2]),  # a quarter of the room stays for it
        (3, [], [], []),
        (1, [], [], []),
    ],
)
def test_what_has_no_room(room, others, before, behind):
    made = infill_prompt(FIM, before=BEFORE, behind=BEHIND, others=OTHERS, room=room)
    assert made.tokens == (*others, 1, *before, 2, *behind, 3)
    assert made.n_dropped == 25 - len(others) - len(before) - len(behind)


def test_files_and_room():
    assert other_file(FIM, [7], [8, 9]) == [4, 7, 8, 9]
    assert other_file(FimTokens(prefix=1, suffix=2, middle=3), [7], [8]) == [7, 8]
    assert room_for_prompt(100, None) == 75
    assert room_for_prompt(100, 10) == 90
    assert room_for_prompt(100, 99) == 50
    assert room_for_prompt(100, 0) == 99
