"""An engine of ours as a model of lm-evaluation-harness, which has to be installed (``slm[tasks]``).

The harness makes requests of a task's examples and computes its metrics; the model only gives log-likelihoods. Tokens
are as in the harness's own Hugging Face model: a text begins with the beginning-of-text token where the tokenizer
adds one by itself, and an empty context is that token, else the end-of-text one.

Tested in tests/slm/evaluate/test_tasks.py.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from slm.cli import spelled
from slm.data.errors import UserError
from slm.evaluate.continuations import Answer, Request, score_continuations
from slm.evaluate.progress import progress_bar
from slm.evaluate.scorers import GGUFScorer, TorchScorer


class HarnessModel(TemplateLM):
    """A checkpoint or GGUF file that scores continuations."""

    def __init__(self, scorer: TorchScorer | GGUFScorer) -> None:
        super().__init__()
        self.scorer = scorer
        self.truncated = 0
        """Requests so far that lost the start of their context, because it is longer than the model's."""

    @property
    def eot_token_id(self) -> int:
        if self.scorer.document_start is None:
            raise UserError(
                f"{self.scorer.name} has neither a beginning-of-text nor an end-of-text token, which a task with an "
                "empty context needs; leave this task out"
            )
        return self.scorer.document_start

    @property
    def max_length(self) -> int:
        return self.scorer.max_context

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        ids: list[int] = self.scorer.tokenize(string).tolist()
        bos = self.scorer.bos
        return ids if bos is None or add_special_tokens is False else [bos, *ids]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        answers = self._score([Request(context=before, continuation=after) for _, before, after in requests])
        self.truncated += sum(each.truncated > 0 for each in answers)
        return [(each.logprob, each.greedy) for each in answers]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        whole = []
        for number, request in enumerate(requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            whole += [(number, *make_disjoint_window(window)) for window in windows]
        answers = self._score([Request(context=before, continuation=after) for _, before, after in whole])
        totals = [0.0] * len(requests)
        for (number, *_), answer in zip(whole, answers, strict=True):
            totals[number] += answer.logprob
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        raise UserError(
            "a task that lets the model write its answer cannot be run here, only those that score given answers; "
            f"serve the model ({spelled('serve')}) and let lm-eval ask it (docs/serving.md)"
        )

    def _score(self, requests: list[Request]) -> list[Answer]:
        total = sum(len(each.context) + len(each.continuation) - 1 for each in requests)
        with progress_bar(self.scorer.name, total) as progress:
            return score_continuations(self.scorer, requests, progress)
