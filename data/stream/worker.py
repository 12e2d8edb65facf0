"""What runs in a worker process: read, tokenize, pack, send; each block with the position after it."""

import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any


def main(arguments: bytes, blocks: Connection) -> None:
    """Send ``("block", ids, state)`` until the stream ends, then ``("end",)``; ``("user_error", text)`` and
    ``("error", text)`` where it fails. Waits while the pipe is full; leaves quietly when nobody reads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes us
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        for message in _messages(arguments):
            blocks.send(message)
    except (BrokenPipeError, ConnectionResetError):
        pass
    # Not through interpreter shutdown: libraries' threads (downloads, say) must not delay or disturb it.
    sys.stderr.flush()
    os._exit(0)


def _messages(arguments: bytes) -> Any:
    from data.errors import UserError

    try:
        from data.stream.pipeline import open_pipeline

        options, state = pickle.loads(arguments)
        pipeline = open_pipeline(**options)
        if state is not None:
            pipeline.load_state_dict(state)
        for block in pipeline:
            yield "block", block, pipeline.state_dict()
        yield ("end",)
    except UserError as error:
        yield "user_error", str(error)
    except GeneratorExit:
        raise
    except BaseException:
        yield "error", traceback.format_exc()


def _leave_with_parent() -> None:
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
