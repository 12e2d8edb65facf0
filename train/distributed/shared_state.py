"""The state that the ranks of a run share: how it is started, saved and restored. A single process does the same."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.stream.loader import EndOfTextError, Loader
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.kernels.native import Kernels
from slm.train.config import OptimConfig
from slm.train.distributed.ranks import Ranks
from slm.train.distributed.zero1 import Zero1Optimizer, gather_tensors, scatter_tensors
from slm.train.optim.interface import Optimizer, Trained
from slm.train.optim.make import make_optimizer
from slm.train.optim.state import load_state_tensors, state_tensors
from slm.train.run.resume import ResumePoint

RNG = "rng.torch"


class Stateful(Protocol):
    """What has its own tensors in a checkpoint (``slm.train.components.component``)."""

    def owns(self, name: str) -> bool:
        """Whether this tensor is one of them. Every rank gets it."""
        ...

    def shared(self) -> list[Tensor]:
        """Those on which the ranks must agree."""
        ...

    def clear(self) -> None:
        """A checkpoint is about to be loaded."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The weights are loaded, and these are its tensors."""
        ...


def broadcast_resume_point(ranks: Ranks, find: Callable[[], ResumePoint]) -> ResumePoint:
    """What ``find`` returned on rank 0. The others get it without the tensors, which ``restore`` scatters."""
    found: list[ResumePoint] = []

    def search() -> tuple[Path | None, dict[str, Any]]:
        found.append(find())
        return found[0].checkpoint, found[0].state

    path, state = ranks.broadcast_from_main(search)
    return found[0] if found else ResumePoint(path, {}, state)


def broadcast_tokenizer(ranks: Ranks, make: Callable[[], Tokenizer], folder: Path) -> Tokenizer:
    """The tokenizer that ``make`` returned on rank 0 and saved in ``folder``; the others load its files."""
    made: list[Tokenizer] = []

    def files() -> dict[str, bytes]:
        made.append(make())
        return {path.name: path.read_bytes() for path in folder.iterdir()} if ranks.size > 1 else {}

    content = ranks.broadcast_from_main(files)
    if made:
        return made[0]
    with tempfile.TemporaryDirectory() as copy:
        for name, data in content.items():
            (Path(copy) / name).write_bytes(data)
        return load_tokenizer(copy)


def make_shared_optimizer(
    ranks: Ranks,
    trained: Trained,
    config: OptimConfig,
    *,
    zero1: bool,
    precision: str = "f32",
    kernels: Kernels | None = None,
) -> Optimizer:
    """The run's optimizer; with ``zero1`` and several ranks its state is divided over them."""
    make = partial(make_optimizer, config=config, precision=precision, kernels=kernels)
    if zero1 and ranks.size > 1:
        tied = trained.model.config.tie_embeddings  # a shard may be without the head
        return Zero1Optimizer(ranks, trained, lambda shard: make(shard, tied=tied))
    return make(trained)


def gather_state(
    ranks: Ranks, trained: Trained, optimizer: Optimizer, components: Sequence[Stateful]
) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a checkpoint besides the weights and those of ``components`` (complete on rank 0 only), and
    whether a resync was needed.

    The same sums may differ in a bit on other processors. A checkpoint is one state: every rank takes rank 0's, and
    the run goes on as one that is resumed from the checkpoint would.
    """
    weights = [*trained.parameters(), *(tensor for each in components for tensor in each.shared())]
    if isinstance(optimizer, Zero1Optimizer):
        own = state_tensors(optimizer.shard, optimizer)
        resynced = ranks.resync(weights)
    else:
        own = state_tensors(trained, optimizer)
        resynced = ranks.resync([*weights, *own.values()])
        own = own if ranks.main else {}
    rng = torch.get_rng_state()
    return gather_tensors(ranks, own | {_rng_name(ranks.rank): rng}), resynced


def restore(
    ranks: Ranks, point: ResumePoint, trained: Trained, optimizer: Optimizer, components: Sequence[Stateful]
) -> None:
    """Put weights, optimizer state, random state and the tensors of ``components`` back on every rank."""
    for each in components:
        each.clear()
    if ranks.main and point.checkpoint is not None:
        trained.load(point.checkpoint)
    ranks.broadcast(list(trained.parameters()))
    part = optimizer.shard if isinstance(optimizer, Zero1Optimizer) else trained
    names = tuple(f"{name}." for name, _ in part.named_parameters())
    rng = _rng_name(ranks.rank)

    def owned(name: str) -> bool:
        return any(each.owns(name) for each in components)

    tensors = scatter_tensors(ranks, point.tensors, lambda name: name == rng or owned(name) or name.startswith(names))
    load_state_tensors(part, optimizer, {name: each for name, each in tensors.items() if not owned(name)})
    for each in components:
        each.load({name: tensor for name, tensor in tensors.items() if each.owns(name)})
    if rng in tensors:  # absent where there were fewer ranks
        torch.set_rng_state(tensors[rng])


def _rng_name(rank: int) -> str:
    return RNG if rank == 0 else f"{RNG}.{rank}"


def gather_loader_states(ranks: Ranks, own: dict[str, Any]) -> dict[str, Any]:
    """The data positions of all ranks, as a checkpoint's state holds them: rank 0's where a single process has its."""
    first, *others = ranks.gather_to_main(own)
    return {"loader": first} | ({"other_loaders": others} if others else {})


def own_loader_state(ranks: Ranks, state: dict[str, Any], *, reshard: bool) -> dict[str, Any] | None:
    """This rank's data position in a checkpoint's state; None where the text is to be read from its beginning.

    UserError where the run had another number of processes, unless ``reshard``.
    """
    states = [state["loader"], *state.get("other_loaders", [])]
    if len(states) == ranks.size:
        return states[ranks.rank]
    if not reshard:
        raise UserError(
            f"the run was saved by {len(states)} processes and cannot go on exactly with {ranks.size}: use as many "
            f"(NPROC={len(states)}), or resume=reshard, which reads the text from its beginning again"
        )
    return None


def synchronized_batches(ranks: Ranks, loader: Loader, data: DataConfig, grad_accum: int) -> Iterator[np.ndarray]:
    """This rank's batches. Where the text of one rank is used up, EndOfTextError comes on all before the same step."""
    endless = all(source.max_epochs is None and not source.prepared for source in data.all_sources())
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
        if ranks.all_reduce_sum([float(end is not None)])[0]:
            raise end or EndOfTextError("the training text of another process is used up")
        yield from step
