"""The view of a run in a terminal: headline, figures, the last sample."""

import math
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slm.report import duration, plain
from slm.train.report.event_text import describe_events
from slm.train.report.formatting import count_text, number_text
from slm.train.report.run_record import RunRecord, Validation
from slm.train.report.samples import expected_and_given
from slm.train.report.sections import STATUS

BARS = "▁▂▃▄▅▆▇█"


def headline(run: RunRecord, status: str) -> str:
    """The run in one line."""
    text = f"{plain(run.name)}: {STATUS.get(status, status)}, {_steps(run)}"
    loss, speed, left = run.recent("loss"), run.recent("tokens_per_s"), run.seconds_left()
    text += "" if loss is None else f"  loss {loss:.3f}"
    text += "" if speed is None else f"  {speed:,.0f} tok/s"
    return text + (f"  ETA {duration(left)}" if status == "running" and left is not None else "")


def validation_line(run: RunRecord, validation: Validation) -> str:
    """A validation in one line."""
    loss, bits = number_text(validation.loss), number_text(validation.bits_per_byte)
    return (
        f"step {validation.step:,}  {count_text(validation.tokens)} tokens  {duration(validation.elapsed_s or 0)}  "
        f"validation {loss} {run.loss_unit}, {bits} bits per byte"
    )


def view(run: RunRecord, status: str, console: Console, live: bool = False) -> RenderableType:
    """Everything at a glance, for the width and height of ``console``. ``live``: it will be drawn again."""
    running = status == "running"
    title = Text.assemble((plain(run.name), "bold"), "  ", (STATUS.get(status, status), _colour(status)))
    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=run.progress(), width=min(console.width, 78)))
    progress = Text(_progress_line(run, running), no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, 2))
    figures = list(_figures(run, console.width))
    # A long value shortens itself and not the labels; where it is drawn once, it takes another line.
    labels = max((len(label) for label, _ in figures), default=0)
    grid.add_column(style="dim", no_wrap=True, min_width=min(labels, console.width // 3))
    grid.add_column(overflow="ellipsis" if live else "fold", no_wrap=live)
    for label, text in figures:
        grid.add_row(label, text)
    lines: list[RenderableType] = [title, bar, progress, Text(), grid]
    if live and running and (warning := _silence(run)):
        lines.append(Text(warning, style="yellow"))
    if run.samples:
        sample = run.samples[-1]
        answers = [each.text for each in run.samples if each.step == sample.step and expected_and_given(each.text)]
        what, written = ("answers", "\n".join(answers)) if answers else ("sample", sample.text)
        room = max(3, console.height - 9 - grid.row_count) if console.is_terminal else 12
        lines += [Text(), Text(f"{what} of step {sample.step:,}", style="dim"), clipped(written, console, room)]
    if live:
        lines.append(Text("q or Ctrl-C leaves; the run goes on", style="dim"))
    return Group(*lines)


def _colour(status: str) -> str:
    return {"running": "blue", "finished": "green", "stopped": "yellow"}.get(status, "red")


def _steps(run: RunRecord) -> str:
    total = run.planned_steps()
    return f"step {run.step():,}" + (f"/{total:,}" if total else "")


def _progress_line(run: RunRecord, running: bool) -> str:
    minutes, left = run.setting("train.max_minutes"), run.seconds_left()
    limit = f" of at most {duration(60 * minutes)}" if minutes else ""
    line = f"{_steps(run)}  {100 * run.progress():.1f} %  {duration(run.elapsed())}{limit} of training"
    return line + (f"  ETA {'-' if left is None else duration(left)}" if running else "")


def _figures(run: RunRecord, width: int) -> Iterator[tuple[str, Text]]:
    """Labels and figures, one line each."""
    yield "loss", Text(f"{number_text(run.recent('loss'))} {run.loss_unit}, {run.recent_note('loss')}")
    yield from _validation_figures(run, width)
    if (forecast := run.forecast()) and run.progress() < 1:
        yield "at the end", Text(forecast)
    speed, flops, wait = run.recent("tokens_per_s"), run.model_facts().get("flops_per_token"), run.recent("data_wait")
    text = "–" if speed is None else f"{speed:,.0f} tokens/s"
    text += f", {speed * flops / 1e9:,.0f} GFLOP/s" if speed and flops else ""
    text += "" if wait is None else f", {100 * wait:.1f} % waiting for data"
    yield "speed", Text(text)
    memory = run.recent("rss_gb")
    yield "memory", Text("–" if memory is None else f"{memory:.2f} GiB resident")
    rate, norm = run.recent("lr"), run.recent("grad_norm")
    if rate is not None and norm is not None:
        yield "optimizer", Text(f"learning rate {rate:.2e}, gradient norm {norm:.3g}")
    happened = [(event, text) for event, text in describe_events(run) if event.kind != "end" and event.step > 0]
    if happened:
        event, text = happened[-1]
        yield "last event", Text(f"step {event.step:,}: {plain(text)}")


def _validation_figures(run: RunRecord, width: int) -> Iterator[tuple[str, Text]]:
    if not run.validations:
        yield "validation", Text(f"none yet; one every {run.setting('train.eval_every', '?')} steps")
        return
    first, last, best = run.validations[0], run.validations[-1], run.best()
    bits = number_text(last.bits_per_byte)
    yield "validation", Text(f"{number_text(last.loss)} {run.loss_unit}, {bits} bits per byte at step {last.step:,}")
    line = sparkline([each.bits_per_byte for each in run.validations], min(40, max(8, width - 50)))
    text = f"{number_text(first.bits_per_byte, 3)} {line} {number_text(last.bits_per_byte, 3)}"
    yield "bits per byte", Text(text + (f"  best at step {best.step:,}" if best else ""))


def _silence(run: RunRecord) -> str:
    """A warning if nothing was written for much longer than records usually take, else an empty text."""
    seconds, steps = run.curves["elapsed_s"], run.curves["step"]
    if run.last_change is None or len(steps) < 4:
        return ""
    usual = float((seconds[-1] - seconds[-4]) / 3)
    silent = time.time() - run.last_change
    if silent < max(60.0, 10 * usual):
        return ""
    return f"nothing was written for {duration(silent)}: asleep, validating, or stuck"


def clipped(text: str, console: Console, room: int) -> Text:
    """The text in at most ``room`` lines of the terminal's width."""
    width = min(console.width, 100) - 2
    lines = Text(plain(text)).wrap(console, max(10, width))
    kept = [Text("  ") + line for line in lines[:room]]
    if len(lines) > room:
        kept[-1] = Text("  …")
    return Text("\n").join(kept)


def sparkline(history: list[float | None], width: int) -> str:
    """A history as at most ``width`` bars; their heights are logarithms. A bar is the mean of neighbouring values."""
    known = [value for value in history if value is not None and value > 0]
    if not known:
        return ""
    size = -(-len(known) // width)
    groups = [known[i : i + size] for i in range(0, len(known), size)]
    means = [math.log(sum(group) / len(group)) for group in groups]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in means)
