"""The text of a run: its tokenizer, its batches, and what it is scored on.

Tested in tests/train/test_resume.py, tests/train/test_main.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm.data.errors import UserError
from slm.data.stream.loader import HeldOut, Loader, at_saved_commits, calibration_blocks, validation_text
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.train.components.head_calibration import blocks_needed
from slm.train.config import RESHARD, RunConfig
from slm.train.distributed.ranks import Ranks
from slm.train.distributed.shared_state import own_loader_state
from slm.train.lora.base import remove_base
from slm.train.run import questions
from slm.train.run.resume import ResumePoint
from slm.train.run.text import prepare_text, remove_text


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What a run reads."""

    loader: Loader
    """The training batches, from where the run resumes."""
    held_out: HeldOut
    """What validations score."""
    kept_blocks: np.ndarray
    """Those of training text that is kept for the calibration of the head; none where it is not calibrated."""


def tokenizer_of(config: RunConfig, root: Path, *, new: bool) -> Tokenizer:
    """The run's tokenizer. It and the text samples for export are in ``root`` afterwards.

    A run that resumes uses what is there. A ``new`` one makes everything from its own settings: what lies there was
    left by a start that ended before its first checkpoint, perhaps with other settings.
    """
    if new:
        remove_base(root)
        remove_text(root)
        questions.remove(root)
    return prepare_text(config, root)


def open_data(config: RunConfig, tokenizer: Tokenizer, ranks: Ranks, point: ResumePoint) -> RunData:
    """The text, from where the run resumes. UserError where there is too little of it."""
    train = config.train
    position = own_loader_state(ranks, point.state, reshard=config.resume == RESHARD) if point.checkpoint else None
    saved = point.state.get("config", {}).get("data", {})
    data = at_saved_commits(config.data, point.state.get("loader"), began_with=saved.get("revision") or "")
    held_out = ranks.broadcast_from_main(
        lambda: validation_text(
            data,
            tokenizer,
            train.seq_len,
            train.eval_last_blocks or train.eval_blocks,
            train.seed,
            pairs=config.preference.on,
            position=point.state.get("loader"),
        )
    )
    if len(held_out.blocks) == 0:
        raise UserError(
            f"the validation text is shorter than one sequence of {train.seq_len} tokens: "
            "give more text, a larger data.val_fraction, data.val_files=[...], or a smaller train.seq_len"
        )
    kept_NT1 = np.empty((0, train.seq_len + 1), np.int32)
    if config.calibrates_head:
        kept_NT1 = ranks.broadcast_from_main(
            lambda: calibration_blocks(
                data,
                tokenizer,
                train.seq_len,
                blocks_needed(train.seq_len),
                train.seed,
                position=point.state.get("loader"),
            )
        )
    loader = Loader(
        data,
        tokenizer,
        seq_len=train.seq_len,
        micro_batch=train.micro_batch,
        split="train",
        seed=train.seed,
        workers=train.workers,
        rank=ranks.rank,
        world_size=ranks.size,
        pairs=config.preference.on,
        room=train.pack_tokens,
        calibrates=config.calibrates_head,
    )
    if position is not None:
        loader.load_state_dict(position)
    return RunData(loader=loader, held_out=held_out, kept_blocks=kept_NT1)
