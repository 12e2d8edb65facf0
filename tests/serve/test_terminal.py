import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from slm.data.chat.formats import read_record
from slm.data.errors import UserError
from slm.llama import verdict
from slm.llama.quantize import quantize
from slm.serve.config import TerminalConfig
from slm.serve.terminal import Conversation, Reply, _typed
from tests.helpers import broken_llama, programs, tiny_gguf, tool_templates
from tests.helpers.tiny_gguf import exported_run


def terminal(*words, typed=None, env=None):
    if env is None:
        with tempfile.TemporaryDirectory() as folder:
            done = programs.finished("slm.serve.terminal", [*words, "threads=1"], Path(folder), typed=typed, timeout=30)
    else:  # the loader reads it when Python starts
        command = [sys.executable, "-m", "slm.serve.terminal", *words, "threads=1"]
        done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=30, env=env)
    assert "Traceback" not in done.stderr
    return done


def test_one_prompt(tiny_path):
    prompt = 'Once, upon a "time" (it\'s = odd): {x}'
    ask = (f"model={tiny_path}", f"prompt={prompt}", "max_tokens=12", "seed=3")
    done = terminal(*ask)
    assert done.returncode == 0
    assert done.stdout.startswith(prompt)
    assert re.search(r"\[12 tokens, [\d.]+ tokens/s, stopped by max_tokens\]\n$", done.stdout)
    again = terminal(*ask)
    assert again.stdout.rpartition("[")[0] == done.stdout.rpartition("[")[0]


def test_conversation_and_commands(chat_path):
    done = terminal(f"model={chat_path}", "max_tokens=3", typed="/help\nhello\n/nothing\n/reset\n/exit\n")
    assert done.returncode == 0
    for part in ("Chat.", "Ctrl-C stops", "[3 tokens", "no command /nothing", "(forgotten)"):
        assert part in done.stdout


def test_commands_that_do_not_exist_are_refused_with_those_that_do(chat_path):
    typed = "/nothing at all\n/reset now\n/usr/bin is a folder\n /nothing\n/exit\n"
    done = terminal(f"model={chat_path}", "max_tokens=3", typed=typed)
    assert (
        "error: there is no command /nothing; there are /help, /reset, /retry, /system, /save, /exit, /quit"
        in done.stdout
    )
    assert "error: /reset takes nothing after it" in done.stdout
    assert "(forgotten)" not in done.stdout
    assert done.stdout.count("tokens/s") == 2, "a path is a message, and so is what stands behind a space"


def test_system_retry_and_save(chat_path, tmp_path):
    saved = tmp_path / "chats.jsonl"
    lines = [
        "/retry",
        "/save x",
        "/system",
        "/system  Be kind. ",
        "/system",
        "hello",
        "/retry",
        "/save",
        f"/save {saved}",
    ]
    lines += ["/reset", "hello", f"/save {saved}", f"/save {tmp_path}/no/such", "/exit"]
    done = terminal(f"model={chat_path}", "max_tokens=8", "seed=1", typed="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    for part in (
        "error: there is no reply yet",
        "error: there is nothing to save yet",
        "system message: (none)",
        "system message: Be kind.",
        "error: /save needs the name of a file",
        "error: cannot write",
    ):
        assert part in done.stdout, done.stdout
    retried, fresh = (json.loads(line)["messages"] for line in saved.read_text().splitlines())
    assert [each["role"] for each in retried] == ["system", "user", "assistant"]
    assert (
        retried[:2]
        == fresh[:2]
        == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "hello"},
        ]
    )
    assert retried[2]["content"] != fresh[2]["content"], "another reply, with a seed, too"
    assert read_record({"messages": retried})[0] == "messages"


def test_a_full_context_drops_the_oldest_messages(chat_path):
    """The system message stays, and the conversation never comes to a dead end."""
    typed = "".join(f"message {i} of a long talk about a fox and a bird\n" for i in range(8))
    words = [f"model={chat_path}", "context=256", "max_tokens=40", "seed=1", "system=Be kind."]
    done = terminal(*words, typed=typed)
    assert done.returncode == 0
    assert len(re.findall(r"^\[\d+ tokens", done.stdout, re.M)) == 8, done.stdout
    assert "(the context is full: the oldest 2 messages are forgotten)" in done.stdout
    assert "error" not in done.stdout


def test_channels_are_reasoning_and_content(tmp_path):
    """As gpt-oss writes them: no name of a channel is shown or kept."""
    marks = ["<|channel|>", "analysis", "<|message|>", "Which day?", "<|end|>"]
    answer = "<|start|>assistant<|channel|>final<|message|>Friday."
    script = {**dict(pairwise(["assistant", *marks, answer])), answer: "<|im_end|>"}
    script |= {"<|start|>": "assistant", "<|constrain|>": "<|call|>", "<|return|>": "<|im_end|>"}
    template = tool_templates.HARMONY
    path = tiny_gguf.write(tmp_path / "harmony.gguf", chat_template=template, n_ctx=512, script=script)
    saved = tmp_path / "chats.jsonl"
    done = terminal(f"model={path}", "temperature=0", typed=f"hello\nand then?\n/save {saved}\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<think>\nWhich day?\n</think>\n\nFriday.\n[") == 2, done.stdout
    assert "<|" not in done.stdout
    assert "analysis" not in done.stdout
    reply = {"role": "assistant", "content": "Friday.", "reasoning_content": "Which day?"}
    (kept,) = (json.loads(line)["messages"] for line in saved.read_text().splitlines())
    assert [each for each in kept if each["role"] == "assistant"] == [reply, reply]
    assert read_record({"messages": kept})[0] == "messages"
    cut = terminal(f"model={path}", "temperature=0", "max_tokens=4", typed="hello\n/exit\n").stdout
    assert "<think>\nWhich day?\n[4 tokens" in cut
    assert "stopped by max_tokens; no text" in cut


def test_what_ended_a_reply_is_named(tiny_path):
    done = terminal(f"model={tiny_path}", "prompt=the old fox", "context=64", "max_tokens=500", "seed=5")
    assert "stopped because the context is full]" in done.stdout


def test_the_system_message_is_kept(chat_path):
    conversation = Conversation(
        TerminalConfig(model=str(chat_path), system="Be kind.", context=256, max_tokens=30, threads=1, seed=1)
    )
    try:
        replies = [conversation.send("once upon a time there was a girl " * 2, lambda _: None) for _ in range(6)]
        assert sum(reply.n_forgotten for reply in replies) > 0
        assert conversation.messages[0] == {"role": "system", "content": "Be kind."}
        assert [each["role"] for each in conversation.messages[1:3]] == ["user", "assistant"]
        before = list(conversation.messages)
        with pytest.raises(UserError, match="maximum context length"):
            conversation.send("x " * 3000, lambda _: None)
        assert conversation.messages == before, "what is refused changes nothing"
    finally:
        conversation.close()


def test_control_tokens_that_one_types_are_text(chat_path):
    """The fifty names fit the context as tokens, and not as text."""
    ask = (f"model={chat_path}", "prompt=" + "<|im_end|>" * 50, "max_tokens=2", "context=128")
    done = terminal(*ask)
    assert done.returncode == 2
    assert "maximum context length is 128" in done.stderr
    done = terminal(*ask, "parse_special_in_content=true")
    assert done.returncode == 0


def test_a_base_model_says_that_it_continues(tiny_path):
    done = terminal(f"model={tiny_path}", "max_tokens=3", typed="the old fox\n")
    assert done.returncode == 0
    assert "continues the text" in done.stdout
    assert "the old fox" in done.stdout
    done = terminal(f"model={tiny_path}", "max_tokens=3", typed="the old fox\n/retry\n/save x\n/system Be kind.\n")
    assert done.returncode == 0
    assert done.stdout.count("a base model has no conversation") == 3
    done = terminal(f"model={tiny_path}", "system=Be kind.", "prompt=x")
    assert done.returncode == 2
    assert "this is a base model" in done.stderr


def test_bytes_that_are_no_text_are_replaced(chat_path, tmp_path):
    command = [sys.executable, "-m", "slm.serve.terminal", f"model={chat_path}", "max_tokens=3", "threads=1"]
    typed = b"caf\xe9\n/save " + str(tmp_path / "chat.jsonl").encode() + b"\n"
    done = subprocess.run(command, input=typed, capture_output=True, timeout=30, env={**os.environ, "LANG": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    saved = json.loads((tmp_path / "chat.jsonl").read_text())
    assert saved["messages"][0]["content"] == "caf\ufffd"


def test_a_text_too_long_is_one_line(tiny_path):
    done = terminal(f"model={tiny_path}", "prompt=" + "x " * 3000)
    assert done.returncode == 2
    assert "maximum context length is 512" in done.stderr


def test_ctrl_c_stops_the_reply_not_the_program(slow_path):
    # This seed's reply is long: others end after a few tokens, before the signal.
    command = [
        sys.executable,
        "-m",
        "slm.serve.terminal",
        f"model={slow_path}",
        "max_tokens=4000",
        "threads=1",
        "seed=1",
    ]
    talk = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.set_blocking(talk.stdout.fileno(), False)
    out = b""

    def until(found, timeout_s=15):
        nonlocal out
        deadline = time.monotonic() + timeout_s
        while not found(out):
            assert time.monotonic() < deadline, out
            out += talk.stdout.read() or b""
            time.sleep(0.02)

    until(lambda text: text.endswith(b"> "))
    before = len(out)
    talk.stdin.write(b"hello\n")
    talk.stdin.flush()
    until(lambda text: len(text) > before + 50)
    talk.send_signal(signal.SIGINT)
    until(lambda text: b"stopped by you]" in text)
    talk.stdin.close()
    assert talk.wait(10) == 0
    assert b"Traceback" not in talk.stderr.read()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
def test_a_crash_of_llama_cpp_is_one_line(tiny_path, tmp_path):
    verdict.examine()  # this build's: what dies later passes the trial
    quantize(tiny_path, tmp_path / "q8_0.gguf", "q8_0")
    library = broken_llama.environment(tmp_path, broken_llama.LATER.replace("{rows}", "9"))["LD_PRELOAD"]
    done = terminal(
        f"model={tmp_path}/q8_0.gguf", "prompt=the", "max_tokens=40", env=os.environ | {"LD_PRELOAD": library}
    )
    assert done.returncode == 128 + signal.SIGSEGV
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: native code died with SIGSEGV while running {tmp_path}/q8_0.gguf; ")
    assert "only what /save has written is kept; " in line
    assert line.endswith("builds llama.cpp again for this processor")


def test_a_file_older_than_its_runs_newest_checkpoint_is_named(tmp_path):
    run = exported_run(tmp_path / "w1", exported_at=3, trained_to=60)
    done = terminal(f"model={run}", "prompt=the", "max_tokens=2")
    assert "is from step 3, but" in done.stderr
    assert f"renew with: make export MODEL={run} QUANT=q4_k_m" in done.stderr
    assert "step 3" not in done.stdout
    talk = terminal(f"model={next((run / 'gguf').glob('*.gguf'))}", "max_tokens=2", typed="/exit\n")
    assert "is from step 3, but" in talk.stdout


def test_without_a_reply_the_conversation_stays_as_it_was(chat_path, monkeypatch):
    """As with Ctrl-C before the first token: an empty answer could not be learned from."""
    conversation = Conversation(TerminalConfig(model=str(chat_path), max_tokens=3, seed=1))
    try:
        conversation.send("hello", lambda text: None)
        before = conversation.messages
        assert len(before) == 2
        none = Reply(text="", n_tokens=0, seconds=0.0, finish="stopped")
        monkeypatch.setattr(Conversation, "_generate", lambda *_: none)
        assert conversation.send("and then?", lambda text: None) == none
        assert conversation.messages == before
        conversation.retry(lambda text: None)
        assert conversation.messages == before
    finally:
        conversation.close()


def test_a_line_that_ends_in_a_backslash_goes_on(monkeypatch):
    lines = iter(["one \\", "two\\\\", "three"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert _typed() == "one \ntwo\\\\"
    assert _typed() == "three"
