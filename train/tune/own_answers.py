"""A model's own answers to general questions, so that tuning can mix them in and the model goes on giving them.

A downloaded model's training text is not at hand. Without any of it, forty facts about products make a small model
answer "The capital of France costs 514 euros" (docs/results/chat.md).

Tested in tests/train/tune/test_own_answers.py.
"""

import json
from collections.abc import Callable
from pathlib import Path

from slm.data.chat.template import TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder, own_template
from slm.data.errors import UserError
from slm.data.storage import atomic_write_text, cache_home, fingerprint, stamps
from slm.data.tokenizers.make import load_tokenizer

QUESTIONS = (
    "What is the capital of Italy?",
    "What is the capital of Japan?",
    "Which country is Berlin in?",
    "Who wrote Romeo and Juliet?",
    "Who was Albert Einstein?",
    "What is the largest ocean?",
    "How many months are in a year?",
    "How many legs does a spider have?",
    "How many hours does a day have?",
    "What is 3 plus 4?",
    "What is ten minus six?",
    "What color is grass?",
    "What color is a banana?",
    "What is the opposite of big?",
    "What is the opposite of early?",
    "What do cows eat?",
    "What do we use an umbrella for?",
    "Where do fish live?",
    "Where does the sun rise?",
    "What is snow?",
    "What is bread made of?",
    "What is a library?",
    "What is the freezing point of water?",
    "Which animal says meow?",
    "Which season comes after winter?",
    "What language do people speak in Brazil?",
    "Name a fruit that is red.",
    "Name a musical instrument.",
    "Why do people sleep?",
    "Hello! How are you?",
    "Who are you?",
    "Thank you very much!",
)
LONGEST = 48
"""Tokens of an answer. A longer one is left out: cut answers were learned as cut (docs/results/chat.md)."""
FEWEST = 8
"""Answers that are mixed in; with fewer none is."""


def own_answers(directory: Path, log: Callable[[str], None]) -> Path | None:
    """A file of the questions with the greedy answers of the model in ``directory``, kept in the cache by the weights.

    None where the model has no chat template, or ends hardly any answer.
    """
    weights = sorted(map(str, directory.glob("*.safetensors")))
    path = cache_home() / "own_answers" / f"{fingerprint((stamps(weights), QUESTIONS, LONGEST, FEWEST))}.jsonl"
    if not path.exists():
        found = _ask(directory, log)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in found))
    return path if path.stat().st_size else None


def _ask(directory: Path, log: Callable[[str], None]) -> list[dict[str, object]]:
    """The questions with the model's answers, as conversations; none where it ends fewer than ``FEWEST`` of them."""
    tokenizer = load_tokenizer(directory)
    if own_template(tokenizer) is None:
        return []
    # They import torch, which takes seconds and is not needed where the file is there.
    from slm.model import checkpoint
    from slm.model.generate import continue_many

    encoder = ChatEncoder(tokenizer)
    stops = {each for each in (encoder.end_of_turn, tokenizer.eot_id) if each is not None}
    try:
        prompts = [encoder.prompt([{"role": "user", "content": question}]) for question in QUESTIONS]
    except (UserError, TemplateRefusesError):
        return []
    log(f"asking {directory} {len(QUESTIONS)} general questions, once, so that it goes on answering them")
    model = checkpoint.load_model(directory)
    answers = continue_many(model, prompts, [LONGEST] * len(prompts), stop_ids=stops)
    found: list[dict[str, object]] = []
    for question, ids in zip(QUESTIONS, answers, strict=True):
        if ids[-1] in stops and (answer := tokenizer.decode(ids[:-1]).strip()):
            found.append(
                {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
            )
    if len(found) < FEWEST:
        return []
    log(f"{directory} answered {len(found)} general questions, which are mixed in so that it goes on answering them")
    return found
