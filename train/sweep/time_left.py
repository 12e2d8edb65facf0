"""How long a sweep will still take: the arithmetic that is left at the speed of steps so far, and the set-ups ahead.

Setting up, validating and saving count apart from steps. So the time left falls while a run computes, and stands still
while it does something else: it does not grow by itself.
"""


class TimeLeft:
    """Is told of each run's start, steps and end: seconds of one clock, and the FLOPs that the run has done."""

    def __init__(self) -> None:
        self._step_seconds = self._step_flops = 0.0
        self._other_seconds, self._ended = 0.0, 0
        self._began = self._at = 0.0
        self._flops = 0.0
        self._stepped: float | None = None
        """Seconds of this run's steps after its first; None before that one."""

    def start(self, now: float, flops: float) -> None:
        """A run begins, which has done so much in an earlier process."""
        self._began = self._at = now
        self._flops, self._stepped = flops, None

    def step(self, now: float, flops: float) -> None:
        """The run has done so much. It may be called as often as one likes."""
        if flops <= self._flops:
            return
        if self._stepped is None:  # the time until the first step is set-up
            self._stepped = 0.0
        else:
            self._step_seconds += now - self._at
            self._step_flops += flops - self._flops
            self._stepped += now - self._at
        self._flops, self._at = flops, now

    def end(self, now: float) -> None:
        """The run's process has ended."""
        self._other_seconds += max(0.0, now - self._began - (self._stepped or 0.0))
        self._ended += 1

    def left(self, now: float, flops: float, starts: float) -> float | None:
        """Seconds for this many FLOPs and this many runs that have yet to begin; None while no speed is known."""
        if not self._step_flops:
            return None
        each = self._other_seconds / self._ended if self._ended else 0.0
        set_up = max(0.0, each - (now - self._began)) if self._stepped is None else 0.0
        return flops * self._step_seconds / self._step_flops + starts * each + set_up
