"""The objective that a run's configuration asks for.

Tested in tests/train/objective/test_preference_run.py, tests/train/objective/test_distilled_run.py.
"""

from pathlib import Path

from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.transformer import LanguageModel
from slm.train.backend import make_frozen_backend
from slm.train.config import RunConfig
from slm.train.distributed.ranks import Ranks
from slm.train.environment import Environment
from slm.train.objective.distillation import DistillObjective, Teacher
from slm.train.objective.objective import Objective
from slm.train.objective.preference import PreferenceObjective
from slm.train.objective.reference import FILE, KeptReference, digest_of, frozen_copy
from slm.train.objective.sampled_softmax import plain_text
from slm.train.objective.teacher import Named, frozen_teacher
from slm.train.objective.teacher_cache import CachedTeacher

CACHE_TOP = 16
"""The likeliest tokens of a teacher's prediction that its cache keeps with their probabilities."""
CACHE_SAMPLES = 16
"""Tokens drawn from all others, which share those's probability: so nothing is left out on average."""
SELF = "self"
"""``distill.teacher``: the model that the run starts from."""


def make_objective(
    config: RunConfig,
    model: LanguageModel,
    tokenizer: Tokenizer,
    environment: Environment,
    root: Path,
    ranks: Ranks,
    *,
    new: bool,
) -> Objective:
    """The objective. ``model`` is what the run starts from, also where it is resumed later.

    ``new``: the run has no checkpoint; what another start left is removed.
    """
    if config.distill.teacher:
        teacher, digest = _make_teacher(config, model, tokenizer, environment)
        return DistillObjective(
            config.distill,
            teacher,
            sampled=config.train.sampled_softmax,
            n_ids=tokenizer.vocab_size,
            teacher_digest=digest,
        )
    preference = config.preference
    if preference.loss is None:
        return plain_text(config.train.sampled_softmax, model.config.vocab_size)
    if preference.loss == "orpo":
        return PreferenceObjective(preference)
    if new:
        (root / FILE).unlink(missing_ok=True)
    frozen = frozen_copy(model)
    # Other ranks than 0 have no directory that stays.
    path = root / FILE if ranks.size == 1 else None
    return PreferenceObjective(
        preference, KeptReference(make_frozen_backend(frozen, environment), digest_of(frozen), path)
    )


def _make_teacher(
    config: RunConfig, model: LanguageModel, tokenizer: Tokenizer, environment: Environment
) -> tuple[Teacher, str]:
    """The teacher, and what identifies its weights."""
    distill, train = config.distill, config.train
    eot_id = tokenizer.eot_id if train.mask_documents else None
    if distill.teacher == SELF:
        frozen = frozen_copy(model)
        digest = digest_of(frozen).hex()

        def load():
            return frozen_teacher(frozen, environment, tokenizer.vocab_size, eot_id)
    else:
        named = Named(
            distill.teacher or "",
            tokenizer,
            train,
            environment,
            eot_id=eot_id,
            short=config.data.has_chat,
        )
        digest, load = named.digest(), named.load
    if not distill.cache:
        return load(), digest
    facts = {
        "teacher": digest,
        "tokenizer": tokenizer.vocab_size,
        "temperature": 1.0,  # of caches that there are
        "cache_top": CACHE_TOP,
        "cache_samples": CACHE_SAMPLES,
    }
    cached = CachedTeacher(
        Path(distill.cache),
        facts,
        load,
        n_ids=tokenizer.vocab_size,
        top=CACHE_TOP,
        samples=CACHE_SAMPLES,
        eot_id=eot_id,
    )
    return cached, digest


def objective_line(config: RunConfig) -> str | None:
    """A line on what is minimized, where that is not the cross-entropy."""
    distill, preference = config.distill, config.preference
    if distill.teacher:
        teacher = "the model that the run starts from" if distill.teacher == SELF else distill.teacher
        kept = f"; its predictions are kept in {distill.cache}" if distill.cache else ""
        return (
            f"distillation: {1 - distill.alpha:g} times the cross-entropy, plus {distill.alpha:g} times KL from "
            f"{teacher}{kept}"
        )
    if preference.loss == "dpo":
        more = f", plus {preference.sft:g} times the chosen answers' cross-entropy" if preference.sft else ""
        return f"DPO on pairs: beta {preference.beta:g}{more}; the reference is the model that the run starts from"
    if preference.loss == "orpo":
        return f"ORPO on pairs: the chosen answers' cross-entropy, plus {preference.beta:g} times the odds ratio's loss"
    return None
