"""A stop signal is heard at once, also where the main thread is in a computation that knows no signals."""

import ctypes
import os
import signal
import threading

from slm.train.interrupt import Interrupt, Watcher, signal_name


def test_a_signal_is_heard_while_the_main_thread_computes():
    """Python's handler waits until the main thread is back from C code, which here waits for the acknowledgement."""
    read, write = os.pipe()
    heard: list[tuple[int, int | None]] = []
    interrupt, ticked = Interrupt(), threading.Event()

    def hear(number: int) -> None:
        heard.append((number, interrupt.signal))
        os.write(write, b".")

    def send() -> None:
        ticked.wait()
        for _ in range(2):  # once is enough
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with interrupt, Watcher(hear, ticked.set, seconds=0.01):
        sender = threading.Thread(target=send)
        sender.start()
        count = ctypes.CDLL(None).read(read, ctypes.create_string_buffer(1), 1)
        sender.join()
    assert count == 1
    assert heard == [(signal.SIGTERM, None)]
    assert interrupt.signal == signal.SIGTERM
    os.close(read)
    os.close(write)


def test_a_childs_signal_is_not_the_parents():
    numbers: list[int] = []
    before = signal.set_wakeup_fd(-1)  # a command that ran in this process may have left one
    signal.set_wakeup_fd(before)
    with Watcher(numbers.append, lambda: None, seconds=0.01):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, lambda *_: None)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        os.waitpid(child, 0)
    assert numbers == []
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    assert after == before


def test_signals_have_names_that_people_know():
    assert [signal_name(each) for each in (signal.SIGINT, signal.SIGTERM)] == ["Ctrl-C", "SIGTERM"]
