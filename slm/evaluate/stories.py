"""The coherence of the stories that a model writes: for models of the embedded tales (``data/tales/coherence.py``)."""

from pathlib import Path

from slm.data.tales.coherence import mean_coherence
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.generate import generate_many
from slm.model.transformer import LanguageModel
from slm.runs import Run, saved_config

TEMPERATURE = 0.6
SEED = 20_261_122
MOST_TOKENS = 400
"""Most tokens of a story. The longest tales have fewer with the vocabulary of ``tiny``."""
AT_ONCE = 64
"""Stories that are written together."""


def story_coherence(model: LanguageModel, tokenizer: Tokenizer, count: int) -> float | None:
    """The mean coherence, 0 to 1, of ``count`` stories at temperature ``TEMPERATURE``, from a fixed seed.

    The model writes each from what a document follows (``Tokenizer.document_start``). None for a tokenizer without an
    end-of-text token.
    """
    if tokenizer.eot_id is None:
        return None
    stories: list[str] = []
    while len(stories) < count:
        texts = generate_many(
            model,
            tokenizer.document_start[-1],
            min(AT_ONCE, count - len(stories)),
            max_tokens=MOST_TOKENS,
            temperature=TEMPERATURE,
            stop_id=tokenizer.eot_id,
            seed=SEED + len(stories),
        )
        stories += [tokenizer.decode(ids) for ids in texts]
    return mean_coherence(stories)


def is_of_tales(run: Run) -> bool:
    """Whether the run trained on the embedded stories."""
    return bool((saved_config(run.root).get("data") or {}).get("kind") == "tales")


def checkpoint_coherence(checkpoint: Path, count: int) -> float | None:
    """``story_coherence`` of a checkpoint directory."""
    from slm.data.tokenizers.make import load_tokenizer
    from slm.model.checkpoint import load_model

    return story_coherence(load_model(checkpoint), load_tokenizer(checkpoint), count)
