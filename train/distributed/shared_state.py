"""A run that several ranks share: how it is opened, saved and gone on with. The single process takes the same way."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.config import DataConfig
from data.errors import UserError
from data.stream.loader import EndOfTextError, Loader
from data.tokenizers.make import load_tokenizer
from data.tokenizers.tokenizer import Tokenizer
from slm.model import checkpoint
from slm.model.transformer import LanguageModel
from train.config import OptimConfig
from train.distributed.ranks import Ranks
from train.distributed.zero1 import ShardedOptimizer, collect, deal
from train.optim import load_state_tensors, make_optimizer, state_tensors
from train.run.run_dir import Start

RNG = "rng.torch"


def shared_start(ranks: Ranks, find: Callable[[], Start]) -> Start:
    """Where the run begins. Rank 0 looks; the others get what is said in JSON, and the tensors in :func:``restore``."""
    found: list[Start] = []

    def look() -> tuple[Path | None, dict[str, Any]]:
        found.append(find())
        return found[0].checkpoint, found[0].state

    path, state = ranks.first(look)
    return found[0] if found else Start(path, {}, state)


def shared_tokenizer(ranks: Ranks, make: Callable[[], Tokenizer], folder: Path) -> Tokenizer:
    """The run's tokenizer: made or loaded by rank 0, which keeps it in ``folder``; the others load its files."""
    made: list[Tokenizer] = []

    def files() -> dict[str, bytes]:
        made.append(make())
        return {path.name: path.read_bytes() for path in folder.iterdir()} if ranks.size > 1 else {}

    content = ranks.first(files)
    if made:
        return made[0]
    with tempfile.TemporaryDirectory() as copy:
        for name, data in content.items():
            (Path(copy) / name).write_bytes(data)
        return load_tokenizer(copy)


def new_optimizer(ranks: Ranks, model: LanguageModel, config: OptimConfig, *, shard: bool) -> Any:
    """The run's optimizer, its state divided over the ranks where that is wanted and there are several."""
    if shard and ranks.size > 1:
        return ShardedOptimizer(ranks, model, lambda part: make_optimizer(part, config))
    return make_optimizer(model, config)


def gather_state(ranks: Ranks, model: LanguageModel, optimizer: Any) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a checkpoint besides the weights (whole on rank 0 only), and whether the ranks had drifted apart.

    The same sums on other processors may differ in a bit. A checkpoint is one state, so that of rank 0 becomes
    everybody's: the run goes on as one resumed from the checkpoint would.
    """
    sharded = isinstance(optimizer, ShardedOptimizer)
    own = state_tensors(optimizer.part if sharded else model, optimizer)
    drifted = ranks.settle([*model.parameters(), *([] if sharded else own.values())])
    if not (sharded or ranks.main):
        own = {}
    rng = torch.get_rng_state()
    return collect(ranks, own | {_rng_name(ranks.rank): rng}), drifted


def restore(ranks: Ranks, start: Start, model: LanguageModel, optimizer: Any) -> None:
    """Put weights, optimizer state and random state of a checkpoint back on every rank."""
    if ranks.main:
        weights = checkpoint.load_weights(start.checkpoint)
        checkpoint.load_into(model, weights, where=str(start.checkpoint))
    ranks.spread(list(model.parameters()))
    part = optimizer.part if isinstance(optimizer, ShardedOptimizer) else model
    names = tuple(f"{name}." for name, _ in part.named_parameters())
    rng = _rng_name(ranks.rank)
    tensors = deal(ranks, start.tensors, lambda name: name == rng or name.startswith(names))
    load_state_tensors(part, optimizer, tensors)
    if rng in tensors:  # absent where there were fewer ranks
        torch.set_rng_state(tensors[rng])


def _rng_name(rank: int) -> str:
    return RNG if rank == 0 else f"{RNG}.{rank}"


def loader_states(ranks: Ranks, own: dict[str, Any]) -> dict[str, Any]:
    """The data positions of all ranks, as a checkpoint's state keeps them: rank 0's under the single process's name."""
    first, *others = ranks.gather(own)
    return {"loader": first} | ({"other_loaders": others} if others else {})


def loader_state(ranks: Ranks, state: dict[str, Any], *, reshard: bool) -> dict[str, Any] | None:
    """This rank's data position in a checkpoint's state; None where the text is to be read from its beginning.

    UserError where the run had another number of processes, unless ``reshard``.
    """
    states = [state["loader"], *state.get("other_loaders", [])]
    if len(states) == ranks.size:
        return states[ranks.rank]
    if not reshard:
        raise UserError(
            f"the run was saved by {len(states)} processes and cannot go on exactly with {ranks.size}: use as many "
            f"(NPROC={len(states)}), or train.reshard=true, which reads the text from its beginning again"
        )
    return None


def shared_batches(ranks: Ranks, loader: Loader, data: DataConfig, grad_accum: int) -> Iterator[np.ndarray]:
    """This rank's batches. Where the text of one rank is used up, EndOfTextError comes on all before the same step."""
    endless = all(source.max_epochs is None for source in data.all_sources())
    if ranks.size == 1 or endless:
        yield from loader
        return
    while True:
        step: list[np.ndarray] = []
        end: EndOfTextError | None = None
        try:
            step += (next(loader) for _ in range(grad_accum // ranks.size))
        except EndOfTextError as error:
            end = error
        if ranks.total([float(end is not None)])[0]:
            raise end or EndOfTextError("the training text of another process is used up")
        yield from step
