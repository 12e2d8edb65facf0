from slm.evaluate import progress


def test_without_a_terminal_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 40.0, 50.0])
    monkeypatch.setattr(progress, "perf_counter", lambda: next(clock))
    with progress.progress_bar("model.gguf", 4_000) as advance:
        for _ in range(3):
            advance(500)
    # The second call is the first one 30 seconds after the start.
    assert capsys.readouterr().out == "model.gguf: 1,000 of 4,000 tokens, 2.0 min left\n"
