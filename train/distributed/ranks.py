"""Several processes that train one model, as the rest of training sees them: their number and their collectives.

``Ranks`` is the single process: its collectives do nothing. ``GlooRanks`` is several processes that
talk over gloo; ``train/distributed/join.py`` makes it.

Rank 0 alone reads and writes the run's directory. What the others need of it comes from rank 0, so that machines
without a common disk can train together.

Tested in tests/train/test_distributed.py.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from slm.data.errors import UserError

T = TypeVar("T")


class LostPeerError(UserError):
    """Another rank is gone: this one cannot go on, a restart can."""


class MainRankError(Exception):
    """A UserError was raised on rank 0, which reports it; the other ranks end silently."""


class Ranks:
    """The processes of this run. This class is the single process; ``GlooRanks`` is several."""

    rank, size = 0, 1
    threads = 0
    """Compute threads that are this process's share of its machine; 0: every core it may use."""

    @property
    def main(self) -> bool:
        """Whether this process is rank 0, which writes the run's directory and prints."""
        return self.rank == 0

    def broadcast_from_main(self, function: Callable[[], T]) -> T:
        """What ``function`` returned on rank 0. Where it raises UserError there, every rank ends."""
        return function()

    def main_first(self, make: Callable[[], T]) -> T:
        """What ``make`` returns on this rank, rank 0's before the others': a mistake of all is reported once."""
        return make()

    def gather_to_main(self, value: T) -> list[T]:
        """On rank 0 every rank's value, in order of rank; elsewhere ``[value]``."""
        return [value]

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """The sums of the values over the ranks, the same on every rank to the bit."""
        return list(values)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with rank 0's."""

    def resync(self, tensors: Sequence[Tensor]) -> bool:
        """Overwrite ``tensors`` with rank 0's where some rank's differ in a bit. True where they did."""
        return False

    def close(self) -> None:
        """Leave the group."""


SINGLE_PROCESS = Ranks()


class GlooRanks(Ranks):
    """Several processes, connected by torch's default process group over gloo."""

    def __init__(self, threads: int) -> None:
        self.rank, self.size, self.threads = dist.get_rank(), dist.get_world_size(), threads

    def broadcast_from_main(self, function: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        failure = None
        if self.main:
            try:
                outcome[0] = function()
            except UserError as error:
                failure, outcome[1] = error, str(error)
        with lost_peer_errors():
            dist.broadcast_object_list(outcome, src=0)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            raise MainRankError
        return outcome[0]

    def main_first(self, make: Callable[[], T]) -> T:
        made: list[T] = []
        self.broadcast_from_main(lambda: made.append(make()))
        return made[0] if made else make()

    def gather_to_main(self, value: T) -> list[T]:
        values: list[Any] | None = [None] * self.size if self.main else None
        with lost_peer_errors():
            dist.gather_object(value, values, dst=0)
        return values if values is not None else [value]

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor(list(values), dtype=torch.float64)
        with lost_peer_errors():
            dist.all_reduce(sums)
        return sums.tolist()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        with lost_peer_errors(), torch.no_grad():
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                dist.broadcast(whole, src=0)
                if whole.data_ptr() != tensor.data_ptr():
                    tensor.copy_(whole)

    def resync(self, tensors: Sequence[Tensor]) -> bool:
        own = torch.tensor([fingerprint(tensor) for tensor in tensors], dtype=torch.int64)
        lowest, highest = own.clone(), own.clone()
        with lost_peer_errors():
            dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
            dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        if torch.equal(lowest, highest):
            return False
        self.broadcast(tensors)
        return True

    def close(self) -> None:
        dist.destroy_process_group()


def fingerprint(tensor: Tensor) -> int:
    """The sum of the bits of ``tensor`` as whole numbers: different weights practically never share it."""
    words = torch.int32 if tensor.element_size() == 4 else torch.uint8
    return int(tensor.detach().contiguous().view(words).sum(dtype=torch.int64))


@contextmanager
def lost_peer_errors() -> Iterator[None]:
    """Turn gloo's errors about a peer that is gone into one line."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _NETWORK.search(str(error)):
            raise
        raise LostPeerError(
            "lost contact with another process of this run (it ended, or its machine cannot be reached): the same "
            "command goes on from the last checkpoint"
        ) from error


_NETWORK = re.compile(r"gloo|connect|socket|timed? ?out|peer|broken pipe", re.IGNORECASE)
