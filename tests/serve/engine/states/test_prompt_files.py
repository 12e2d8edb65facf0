"""Prompts that memory has no room for come back from files, also in another process's life."""

import pytest

from slm.serve.engine.states.displaced import Displaced, DisplacedPrompts
from slm.serve.engine.states.prompt_files import PromptFiles
from tests.helpers import tiny_checkpoint, tiny_gguf
from tests.serve.engine.states.test_displaced import ask, engine, prompt


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slm" / "prompts"


def settled(one):
    """Waits for what is being written."""
    for each in list(one._files._written):
        each.result()


@pytest.mark.parametrize("cache_ram", [0, 1])
def test_conversations_go_on_after_a_restart(tmp_path, home, cache_ram):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", n_ctx=2048)
    plain = engine(path, slots=1, prefix_cache=False)
    one = engine(path, slots=1, cache_ram=cache_ram, cache_disk=64)
    for seed in range(1, 5):
        ask(one, f"{seed}", prompt(seed))
        settled(one)
    text, cached = ask(one, "again", prompt(1))
    assert cached >= 384
    assert text == ask(plain, "again", prompt(1))[0]
    one.close()
    files = list(home.glob("*/*.prompt"))
    assert files
    assert all(each.stat().st_mode & 0o077 == 0 for each in files), "prompts are nobody else's"
    later = engine(path, slots=1, cache_ram=cache_ram, cache_disk=64)
    longer = prompt(1) + prompt(9, 20)
    text, cached = ask(later, "later", longer)
    assert cached >= 384
    assert text == ask(plain, "later", longer)[0]
    later.close()
    other = engine(path, slots=1, kv_type="f16", cache_ram=cache_ram, cache_disk=64)
    assert ask(other, "other", prompt(1))[1] < 128, "another type of cache has its own files"
    other.close()
    plain.close()


@pytest.mark.parametrize("arch", ["lfm2", "gemma3"])
def test_states_that_were_kept_are_in_the_files(tmp_path, home, arch):
    shape = {"n_layers": 4} if arch == "lfm2" else {
        "tie_embeddings": True, "n_layers": 3, "sliding_window": 12, "rope_theta": 1e6,
        "local_layers": (True, False, True),
    }  # fmt: skip
    path = tiny_checkpoint.gguf_file(tmp_path / "m.gguf", arch=arch, seq_len=1024, **shape)
    more = {"slots": 1, "ubatch": 16, "batch": 64, "cache_ram": 0, "cache_disk": 64}
    one, plain = engine(path, **more), engine(path, slots=1, prefix_cache=False)
    for key, seed in enumerate((1, 2)):
        ask(one, f"{key}", prompt(seed))
        settled(one)
    one.close()
    later = engine(path, **more)
    tokens = prompt(1) + prompt(9, 3)
    text, cached = ask(later, "later", tokens)
    assert text == ask(plain, "later", tokens)[0]
    assert cached >= 390
    later.close()
    plain.close()


def test_files_are_bounded_and_what_is_gone_or_damaged_is_computed_again(tmp_path):
    def written(files):
        files._thread.submit(int).result()
        return [each.tokens[0] for each in files.files]

    a, b, c = (Displaced(tuple(range(k, k + 300)), bytes(1000), {5: b"xyz"}) for k in (0, 1000, 2000))
    files = PromptFiles(tmp_path, "mark", 6000)
    files.keep(a)
    files.keep(b)
    assert written(files) == [0, 1000]
    assert files.read(files.files[0]) == a
    files.keep(c)
    assert written(files) == [0, 2000], "the longest unused went"
    longer = Displaced((*a.tokens, 7), bytes(1000))
    files.keep(longer)
    assert written(files) == [2000, 0], "and what is a beginning of another"
    files.keep(a)
    assert len(written(files)) == 2
    files.close()
    again = PromptFiles(tmp_path, "mark", 6000)
    assert [(each.tokens, each.kept) for each in again.files] == [(c.tokens, (5,)), (longer.tokens, ())]
    kept = DisplacedPrompts(0, lambda _: True, again)
    assert kept.wants(b.tokens, 0)
    gone, damaged = again.files
    gone.path.unlink()
    damaged.path.write_bytes(damaged.path.read_bytes()[:-1] + b"x")
    for each in (gone, damaged):
        assert kept.take(each) is None
    assert again.files == []
    again.close()
    assert PromptFiles(tmp_path, "other", 6000).files == []


def test_a_full_disk_is_told_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("slm.data.storage.RESERVE", 1 << 60)
    files = PromptFiles(tmp_path, "mark", 1 << 20)
    for k in (0, 1000):
        files.keep(Displaced(tuple(range(k, k + 300)), bytes(10)))
        files._thread.submit(int).result()
        assert files.files == []
    assert capsys.readouterr().err.count("prompts are not kept on disk") == 1
    files.close()
