"""Gradients summed over the ranks while the backward pass still runs.

Parameters are put into buckets in the order in which the backward pass finishes them. In the last micro-batch the
all-reduce of a bucket starts as soon as its gradients are complete (gloo, in its own threads), while autograd goes
on with the layers below. ``BucketedAllReduce.finish`` waits for the rest after the backward pass, and sums a few
numbers on which the ranks must agree.

torch's DistributedDataParallel does the same. It is not used because it wraps ``forward``, while training calls
``LanguageModel.loss`` with layers compiled one by one, and because it keeps its buckets in memory all the time.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slm.train.distributed.ranks import Ranks, lost_peer_errors
from slm.train.interrupt import STOP_SIGNALS, Interrupt, drop_lost_output
from slm.train.optim.interface import Parameters

BUCKET_BYTES = 8 * 2**20
"""A bucket is closed when it has this many bytes of f32 gradients: small enough to start early, large enough that
latency does not matter. A larger parameter is its own bucket."""


class SharedInterrupt(Interrupt):
    """A signal to one rank ends the run for all of them, after the step in which every rank has learnt of it."""

    def __init__(self) -> None:
        super().__init__()
        self.received: int | None = None
        """The signal that this process received, whether or not the others know of it."""

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Every step is finished: a rank that left at once would make the others fail."""
        yield

    def _receive(self, number: int, _frame: Any) -> None:
        if number == signal.SIGHUP:
            drop_lost_output()
        if self.received is not None and not self._saving and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


class GradientSync:
    """What a step does with the other ranks. This class is the single process's and does nothing."""

    def __init__(self, interrupt: Interrupt | None = None) -> None:
        self._interrupt = interrupt

    size = 1
    """Ranks among which a step's micro-batches are divided."""
    wait_seconds = 0.0
    """Seconds spent waiting for the others after the steps' backward passes, summed until it is set to 0."""

    def begin_last_backward(self) -> None:
        """Called before the backward pass of the step's last micro-batch."""

    def finish(self, loss_sum: float, scored: int, *more: float) -> tuple[float, int, *tuple[float, ...]]:
        """Called after that pass: gradients become their sums over the ranks. Returns the sums of the numbers."""
        return loss_sum, scored, *more

    def agreed_elapsed(self, own: float) -> float:
        """Seconds of training, the same on every rank (rank 0's as of the last step); ``own`` for a single process."""
        return own

    def signal_received(self) -> bool:
        """Whether this process received a signal to end, whether or not the others know of it."""
        return bool(self._interrupt)

    def agree_on_signal(self) -> None:
        """Let every rank know of a signal that one of them received. All ranks call it at the same place."""


NO_SYNC = GradientSync()


class BucketedAllReduce(GradientSync):
    """Sums ``param.grad`` over the ranks, bucket by bucket, and agrees on loss, signals and time."""

    def __init__(
        self,
        ranks: Ranks,
        parameters: Sequence[nn.Parameter],
        *,
        interrupt: SharedInterrupt,
        elapsed: Callable[[], float],
        start_elapsed: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.size = ranks.size
        self._ranks, self._shared, self._elapsed, self._dtype = ranks, interrupt, elapsed, dtype
        self._buckets = [_Bucket(each) for each in buckets(parameters)]
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.parameters}
        self._next = 0
        self._armed = False
        self._agreed = start_elapsed
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def begin_last_backward(self) -> None:
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)
        self._next, self._armed = 0, True

    def _ready(self, parameter: nn.Parameter) -> None:
        if not self._armed:
            return
        self._bucket_of[parameter].missing.discard(parameter)
        # Every rank must reduce its buckets in the same order, whichever is ready first.
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._start_next()

    def _start_next(self) -> None:
        with lost_peer_errors():
            self._buckets[self._next].start(self._dtype)
        self._next += 1

    def finish(self, loss_sum: float, scored: int, *more: float) -> tuple[float, int, *tuple[float, ...]]:
        self._armed = False
        began = perf_counter()
        while self._next < len(self._buckets):
            self._start_next()
        own = [
            loss_sum,
            float(scored),
            self._elapsed() if self._ranks.main else 0.0,
            *self._received(),
            *more,
        ]
        loss_sum, all_scored, self._agreed, *others = self._ranks.all_reduce_sum(own)
        receivers, summed = others[: len(STOP_SIGNALS)], others[len(STOP_SIGNALS) :]
        self._note_signals(receivers)
        with lost_peer_errors():
            for bucket in self._buckets:
                bucket.wait()
        self.wait_seconds += perf_counter() - began
        return loss_sum, round(all_scored), *summed

    def agreed_elapsed(self, own: float) -> float:
        return self._agreed

    def signal_received(self) -> bool:
        return self._shared.received is not None

    def agree_on_signal(self) -> None:
        self._note_signals(self._ranks.all_reduce_sum(self._received()))

    def _received(self) -> list[float]:
        """By stop signal, whether this process received it."""
        return [float(self._shared.received == number) for number in STOP_SIGNALS]

    def _note_signals(self, receivers: Sequence[float]) -> None:
        """The run ends where any rank has received a stop signal."""
        stopped = [int(number) for number, count in zip(STOP_SIGNALS, receivers, strict=True) if count]
        if stopped:
            self._shared.signal = stopped[0]


def make_gradient_sync(
    ranks: Ranks, model: Parameters, *, elapsed: Callable[[], float], start_elapsed: float, dtype: str
) -> tuple[Interrupt, GradientSync]:
    """This process's signal handling, and the synchronization of its steps with the other ranks'.

    ``elapsed`` gives the seconds of training, ``start_elapsed`` those before this start. ``dtype`` is the number format
    in which gradients are sent and summed, ``f32`` or ``bf16``.
    """
    if ranks.size == 1:
        interrupt = Interrupt()
        return interrupt, GradientSync(interrupt)
    shared = SharedInterrupt()
    return shared, BucketedAllReduce(
        ranks,
        list(model.parameters()),
        interrupt=shared,
        elapsed=elapsed,
        start_elapsed=start_elapsed,
        dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype],
    )


class _Bucket:
    """Parameters with gradients that are reduced together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing: set[nn.Parameter] = set()
        self._flat: Tensor | None = None
        self._sent: Tensor | None = None
        self._work: Any = None

    def start(self, dtype: torch.dtype) -> None:
        """Start the all-reduce. The gradients become views of one flat tensor, so that nothing is held twice."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        if len(gradients) == 1 and gradients[0].is_contiguous():
            flat = gradients[0].view(-1)
            self.parameters[0].grad = gradients[0]
        else:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            for p, piece in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
                p.grad = piece.view_as(p)
        self._flat = flat
        self._sent = flat if dtype == flat.dtype else flat.to(dtype)
        self._work = dist.all_reduce(self._sent, async_op=True)

    def wait(self) -> None:
        """Wait for the sum."""
        self._work.wait()
        if self._sent is not None and self._flat is not None and self._sent is not self._flat:
            self._flat.copy_(self._sent)
        # The flat tensor lives as long as the gradients that are views of it.
        self._work = self._sent = self._flat = None


def buckets(parameters: Sequence[nn.Parameter], most_bytes: int = BUCKET_BYTES) -> list[list[nn.Parameter]]:
    """Parameters in groups, the last parameter first: of at least ``most_bytes`` of f32, but for the last group and for
    one before a parameter that alone has as many."""
    groups: list[list[nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        nbytes = 4 * parameter.numel()
        if not groups or room <= 0 or nbytes >= most_bytes:
            groups.append([])
            room = most_bytes
        groups[-1].append(parameter)
        room -= nbytes
    return groups
