"""``samples.md``: what a model wrote at its validations, each text under a heading with its step."""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

SAMPLE_TOKENS = 96
"""The length of a text sample."""
SAMPLE_TEMPERATURE = 0.8
"""At which a run's samples are drawn."""
SAMPLES = "samples.md"
MAX_STEPS = 200
"""Samples of at most this many steps are kept. When there are more, every second step is dropped."""

_HEADING = re.compile(r"## step (\d+)")
_ANSWERED = re.compile(r"(> .*\nexpected: .*\n)(given: .*)")
_IN_TEXT = re.compile(rf"^{_HEADING.pattern}\n\n", re.MULTILINE)


def entry(step: int, text: str) -> str:
    """What the file has for a text that was written at this step."""
    return f"## step {step}\n\n{text}\n\n"


def answered(asked: str, expected: str, given: str) -> str:
    """The text of an answered question: what was asked, the expected and the given answer, each one line."""
    return f"> {asked}\nexpected: {expected}\ngiven: {given}"


def expected_and_given(text: str) -> tuple[str, str] | None:
    """The question with its expected answer, and the given one, of a text that ``answered`` wrote; None for another."""
    match = _ANSWERED.fullmatch(text)
    return (match[1], match[2]) if match else None


def before(text: str, steps: Container[int]) -> str:
    """The file's text before the first heading of one of these steps; all of it where there is none."""
    heading = next((each for each in _IN_TEXT.finditer(text) if int(each[1]) in steps), None)
    return text if heading is None else text[: heading.start()]


@dataclass(frozen=True)
class Sample:
    """A text the model wrote."""

    step: int
    text: str


class Samples(list[Sample]):
    """The samples of a run, in the order of their steps."""

    def read(self, lines: Iterable[str], validated_steps: Container[float]) -> None:
        """Add the samples in new lines of the file.

        A model may write a line that looks like a heading. So a heading counts only if its step is one of
        ``validated_steps``. Lines before the first heading continue the last sample.
        """
        step: int | None = None
        text: list[str] = []
        for line in lines:
            match = _HEADING.fullmatch(line)
            if match and int(match[1]) in validated_steps:
                self._add(step, "\n".join(text))
                step, text = int(match[1]), []
            else:
                text.append(line)
        self._add(step, "\n".join(text))
        self._thin_out()

    def _add(self, step: int | None, text: str) -> None:
        if step is not None:
            if self and self[-1].step > step:  # the run went back to an earlier checkpoint
                self[:] = [sample for sample in self if sample.step < step]
            self.append(Sample(step, text.strip("\n")))
        elif self and text.strip("\n"):
            last = self.pop()
            self.append(Sample(last.step, f"{last.text}\n{text}".rstrip("\n")))

    def _thin_out(self) -> None:
        steps = sorted({sample.step for sample in self})
        if len(steps) > MAX_STEPS:
            kept = {*steps[::2], steps[-1]}
            self[:] = [sample for sample in self if sample.step in kept]
