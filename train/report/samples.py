"""The texts that a model wrote at its validations, read from ``samples.md`` as the file grows."""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

MAX_STEPS = 200
"""Samples of at most so many steps are kept. When there are more, every second step is dropped."""

_HEADING = re.compile(r"## step (\d+)")


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
            if match and int(match.group(1)) in validated_steps:
                self._add(step, "\n".join(text))
                step, text = int(match.group(1)), []
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
