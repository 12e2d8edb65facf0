"""What a run says of its text when it starts and when the text is used up: read, taken, left out, and how often.

Tested in tests/train/run/test_text_account.py.
"""

from collections.abc import Sequence
from typing import Any

from slm.data.account.account import Account, account, count_tokens
from slm.data.sources.plan import Plan
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.train.config import RunConfig

SEVERAL = 2.0
"""From this many times on a text is called read several times."""
MORE = "raise data.max_epochs, add text, or train fewer steps"


class TextAccount:
    """The accounts of a run's sources; without any for a process that does not print."""

    def __init__(self, accounts: Sequence[Account] = ()) -> None:
        self._accounts = accounts

    @classmethod
    def of(cls, plans: Sequence[Plan], tokenizer: Tokenizer, config: RunConfig) -> "TextAccount":
        """Count what the training ``plans`` take: a part of a second for large text, of which a sample is read."""
        found = [each for plan in plans if (each := account(plan)) is not None]
        for each in found:
            count_tokens(each, tokenizer, seq_len=config.train.seq_len, pairs=config.preference.on)
        return cls(found)

    def record(self) -> list[dict[str, Any]]:
        """The counts as plain values, for the run's record."""
        return [each.record() for each in self._accounts]

    def lines(self, config: RunConfig) -> list[str]:
        """One line for each source, and one where the rest of a source is read several times."""
        return [line for each in self._accounts for line in (each.line(), self._often(each, config)) if line]

    def _often(self, found: Account, config: RunConfig) -> str | None:
        """A line where most was taken out and the run's steps read the rest several times."""
        train = config.train
        if not found.mostly_removed or not found.tokens or train.max_minutes is not None:
            return None
        sources = config.data.all_sources()
        source = next((each for each in sources if each.label == found.source), sources[0])
        share = source.weight / sum(each.weight for each in sources)
        times = share * train.max_steps * train.tokens_per_step / found.tokens
        if times < SEVERAL:
            return None
        text = (
            f"most of {found.source} is left out, so {train.max_steps:,} steps read the rest about {times:,.0f} times"
        )
        if source.max_epochs is not None and times > source.max_epochs:
            text += f"; after {source.max_epochs} times (data.max_epochs) it is used up"
        return text

    def at_the_end(self) -> str:
        """What to do where the text is used up: not to read more often what most was taken out of."""
        removed = [each for each in self._accounts if each.mostly_removed]
        if not removed:
            return MORE
        texts = "; ".join(
            f"of {each.source} {each.removed:,} of {each.read:,} records are left out ({each.reasons(removed=True)})"
            for each in removed
        )
        return (
            f"{texts}. Other validation text, weaker filters or more text give more to learn; data.max_epochs does not"
        )
