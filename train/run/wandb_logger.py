"""Weights & Biases, where a person asked for it. Its errors never stop a run.

Tested in tests/train/test_main.py.
"""

import os
from pathlib import Path
from typing import Any

from slm.configuration import to_dict
from slm.data.errors import one_line
from slm.train.config import RunConfig
from slm.train.resolve import require_wandb

FINISH_SECONDS = 60.0
WANDB_ID = "wandb-id"
"""The file of a run with its name at Weights & Biases."""


class WandbLogger:
    """Sends each record to wandb. Online, offline or disabled as ``WANDB_MODE`` says; offline without an account.
    The project is ``WANDB_PROJECT``, or ``slm``."""

    def __init__(self, config: RunConfig, root: Path) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")  # or it asks for an account, and waits for an answer
        require_wandb()
        import wandb

        self._run = None
        mode = os.environ.get("WANDB_MODE")
        if mode is None and not _has_account(wandb):
            mode = "offline"
            print(f"wandb: no account is set up here, so this run is logged offline under {root / 'wandb'}")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "slm",
                name=config.root.name,
                id=_run_id(root),
                resume="allow",
                dir=str(root),
                config=to_dict(config),
                mode=mode,  # type: ignore[arg-type]  # wandb itself refuses an unknown WANDB_MODE
                settings=wandb.Settings(init_timeout=30, silent=True, **_ending(wandb)),
            )
            # A run that goes back to an earlier checkpoint draws these steps anew; wandb's own count only rises.
            self._run.define_metric("*", step_metric="step")
        except Exception as error:  # whatever wandb's service does, training goes on
            print(f"wandb: not logging this run ({one_line(error)}); metrics.jsonl has everything")

    def log(self, record: dict[str, Any]) -> None:
        if self._run is None:
            return
        try:
            self._run.log(record)
        except Exception as error:
            print(f"wandb: logging stopped ({one_line(error)}); metrics.jsonl goes on")
            self._run = None

    def close(self) -> None:
        if self._run is None:
            return
        try:
            self._run.finish()
        except Exception as error:
            print(f"wandb: the run was not closed cleanly ({one_line(error)}); metrics.jsonl is complete")


def _ending(wandb: Any) -> dict[str, Any]:
    """The setting for how long the end waits for uploads, where this version has one: without a network it would wait
    for ever."""
    return {"finish_timeout": FINISH_SECONDS} if "finish_timeout" in wandb.Settings.model_fields else {}


def _has_account(wandb: Any) -> bool:
    try:
        return bool(os.environ.get("WANDB_API_KEY") or wandb.Api().api_key)
    except Exception:
        return False


def _run_id(root: Path) -> str:
    """The same id for every start of one run, so that a resumed run continues its curves."""
    path = root / WANDB_ID
    if not path.exists():
        path.write_text(os.urandom(6).hex())
    return path.read_text().strip()
