"""A worker process: it reads, tokenizes and packs, and sends each block with the position after it.

Tested in tests/data/stream/test_loader.py.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any


def main(arguments: bytes, blocks: Connection) -> None:
    """Send ``("block", ids, state)`` until the stream ends, then ``("end",)``; ``("bad", news)`` of a tally between.

    ``("user_error", text)`` or ``("error", text)`` is sent where it fails. It waits while the pipe is full and exits
    silently when nobody reads.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent handles Ctrl-C and a closed terminal, and ends this process
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=exit_with_parent, daemon=True).start()
    try:
        for message in _messages(arguments):
            blocks.send(message)
    except (BrokenPipeError, ConnectionResetError):
        pass
    # Without the interpreter's shutdown, which threads of libraries (downloads, for example) could delay.
    sys.stderr.flush()
    os._exit(0)


def _messages(arguments: bytes) -> Any:
    from slm.data.bad_records import TALLY
    from slm.data.errors import UserError

    try:
        from slm.data.stream.pipeline import open_pipeline

        options, state = pickle.loads(arguments)
        pipeline = open_pipeline(**options)
        if state is not None:
            pipeline.load_state_dict(state)
        for block in pipeline:
            if news := TALLY.news():
                yield "bad", news
            yield "block", block, pipeline.state_dict()
        if news := TALLY.news():
            yield "bad", news
        yield ("end",)
    except UserError as error:
        yield "user_error", str(error)
    except GeneratorExit:
        raise
    except BaseException:
        yield "error", traceback.format_exc()


def exit_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however it did."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
