"""llama-server's own tests against this server; docs/results/llama-server-suite.md has what they found.

It is run by hand: ``python -m tests.serve.llama_server_suite [WORDS OF PYTEST ...]``, such as ``-n 2`` or
``-k tokenize``. The tests lie in llama-cpp-python's source package, which pip fetches (``SLM_LLAMA_CPP`` names another
tree of llama.cpp). They start a llama-server for each test. Loaded into their pytest as a plug-in, this file starts the
server of this repository in its place, with its options translated. The models that they download are replaced by
random weights of the same kind, so what a test expects of the original's words and numbers of tokens is left out
(``relaxed``). Tests of images, of several models and of tools that the server runs are left out whole (``ELSEWHERE``).
"""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TextIO

from requests.structures import CaseInsensitiveDict

from slm.data.storage import cache_home
from slm.setup.llama import requirement
from tests.helpers import REPOSITORY, programs
from tests.helpers.llama_server_models import FILES, MODELS, write_models

ELSEWHERE = ("vision_api", "mcp_servers", "tools_builtin", "proxy", "router", "stream")
FRESH = ("basic", "metrics", "slot_save", "sleep", "kv_keep_only_active", "compat_gcp", "lora")
"""Modules that need a new server for each test; the others share servers with equal options."""
_KEPT = 4
_WANTED = ("tools/server/tests/", "models/templates/")
_TESTS = "tools/server/tests"
_MODELS = "SLM_SUITE_MODELS"
"""The variable that names the folder of the stand-ins to their pytest."""
_NUMBERS = {"n_prompt", "n_tokens", "n_cache", "n_predicted", "n_token_output", "original_prompt_n", "batch_count"}
"""Variables of the tests with numbers that follow from the original model and its vocabulary."""
_OWN_NUMBERS = ("cached_tokens", "prompt_n'] ==", "n_saved'] ==", "n_restored'] ==", "== 2 * 9")
_TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{% set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}"
    "{% for m in messages %}<|START_OF_TURN_TOKEN|><|{{ names[m.role] }}_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
}
"""Templates that llama-server knows by name."""


def source() -> Path:
    """A tree of llama.cpp with the tests."""
    if named := os.environ.get("SLM_LLAMA_CPP"):
        return Path(named)
    kept = cache_home() / "llama-server-suite" / requirement().partition("==")[2]
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=kept.parent) as new:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, requirement(), "--dest", new], check=True)
        (package,) = Path(new).glob("*.tar.gz")
        with tarfile.open(package) as packed:
            for member in packed:
                _, _, inner = member.name.partition("/vendor/llama.cpp/")
                if member.isfile() and inner.startswith(_WANTED):
                    member.name = inner
                    packed.extract(member, Path(new) / "tree", filter="data")
        (Path(new) / "tree").replace(kept)
    return kept


class _Relaxed(ast.NodeTransformer):
    """Leaves out the assertions of one test module that only the original's weights and vocabulary can meet."""

    def __init__(self) -> None:
        self.n_left_out = 0

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        said = ast.unparse(node.test)
        names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        of_words = "match_regex(" in said or "['index'] ==" in said or "re_test in" in said
        own_number = any(word in said for word in _OWN_NUMBERS)
        if "system_fingerprint" in said:
            either = said.replace("startswith('b')", "startswith(('b', 'fp_'))")
            return ast.parse(f"assert {either}").body[0]
        if of_words or own_number or names & _NUMBERS:
            self.n_left_out += 1
            return ast.Pass()
        return node


def relaxed(text: str) -> tuple[str, int]:
    """A test module without what it expects of the original model's weights, and how many assertions it lost."""
    transformer = _Relaxed()
    return ast.unparse(ast.fix_missing_locations(transformer.visit(ast.parse(text)))), transformer.n_left_out


def options(words: list[str], models: Path) -> list[str]:
    """llama-server's command line as this server's."""
    given: dict[str, list[str]] = {}
    words = list(words)
    while words:
        name = words.pop(0).lstrip("-")
        values = given.setdefault(name, [])
        if words and not words[0].startswith("--") and words[0] not in ("-ctk", "-ctv", "-fa"):
            values.append(words.pop(0))

    def one(name: str, default: str = "") -> str:
        return given[name][-1] if given.get(name) else default

    n_slots, context = int(one("parallel", "4")), int(one("ctx-size", "0"))
    shared = "kv-unified" in given or "parallel" not in given
    hosts = one("host").split(",")
    made = [
        f"model={_model(given, models)}",
        f"host={hosts[0]}",
        f"serve.sampling.temperature={one('temp')}",
        f"serve.sampling.seed={one('seed')}",
        f"serve.thinking={'false' if one('reasoning') == 'off' else 'true'}",
        f"serve.slots={n_slots}",
        f"serve.context={context if shared else context // n_slots}",
        *([f"serve.kv_tokens={context}"] if shared and context else []),
        "serve.threads=2",
        "serve.tune=off",
        *(['serve.cors_origins=["*"]'] if "cors-origins" not in given else []),
        "serve.stream_ms=0",
        f"serve.batch={max(int(one('batch-size', '512')), n_slots)}",
    ]
    for name, ours in {
        "slot-save-path": "slot_save_path",
        "ctk": "kv_type",
        "ctv": "kv_type_v",
        "cache-ram": "cache_ram",
        "sleep-idle-seconds": "idle_unload_s",
    }.items():
        if one(name):
            made.append(f"serve.{ours}={one(name)}")
    if one("chat-template-file"):
        made.append(f"serve.chat_template={Path(one('chat-template-file')).resolve()}")
    for name, ours in {"alias": "name", "api-key": "api_keys", "cors-origins": "cors_origins", "lora": "lora"}.items():
        if given.get(name):
            values = ",".join(given[name]) if name != "alias" else given[name][0].split(",")[0]
            made.append(f"serve.{ours}={values if ours == 'name' else f'[{values}]'}")
    if one("fa"):
        made.append(f"serve.flash_attn={'true' if one('fa') == 'on' else 'false'}")
    if one("chat-template"):
        template = models / f"{one('chat-template').partition(' ')[0]}.jinja"
        template.write_text(_TEMPLATES.get(one("chat-template"), one("chat-template")))
        made.append(f"serve.chat_template={template}")
    if given.get("model-draft"):
        made += ["serve.speculate=draft", f"serve.draft_model={one('model-draft')}"]
        made.append(f"serve.draft_tokens={one('spec-draft-n-max', '4')}")
    if "context-shift" in given:
        made.append("serve.context_shift=true")
    if "no-ui" in given:
        made.append("serve.ui=false")
    return made


def _model(given: dict[str, list[str]], models: Path) -> Path:
    if given.get("model"):
        return Path(given["model"][-1])
    wanted = " ".join(given.get("hf-repo", []) + given.get("hf-file", []))
    pooling = given.get("pooling", [""])[-1]
    if not wanted:
        return models / "stories.gguf"  # tests of the router that ask nothing of a model
    found = [each for each in MODELS if each.of in wanted and each.pooling in ("", pooling or "cls")]
    return models / found[0].file


def run(words: list[str]) -> int:
    """The tests, with pytest's exit status."""
    tree = source()
    with tempfile.TemporaryDirectory(prefix="llama-server-suite-") as folder:
        work = Path(folder)
        models = work / "models"
        write_models(models)
        n_left_out = 0
        for path in sorted((tree / _TESTS).rglob("*")):
            copy = work / "tree" / path.relative_to(tree)
            if path.is_file() and not any(path.name == f"test_{each}.py" for each in ELSEWHERE):
                copy.parent.mkdir(parents=True, exist_ok=True)
                if path.parent.name == "unit" and path.suffix == ".py":
                    text, n = relaxed(path.read_text())
                    copy.write_text(text)
                    n_left_out += n
                else:
                    copy.write_bytes(path.read_bytes())
        (work / "tree" / "models").symlink_to(tree / "models")
        print(f"{n_left_out} assertions about the original model are left out", flush=True)
        (work / "wget.py").write_text("")
        paths = f"{work}:{work / 'tree' / _TESTS}:{REPOSITORY}"
        environment = {**os.environ, "PYTHONPATH": paths, _MODELS: str(models)}
        command = [sys.executable, "-m", "pytest", "-p", "tests.serve.llama_server_suite", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", "--timeout=300", *words]
        command += [] if any(word.startswith("unit") for word in words) else ["unit"]
        return subprocess.run(command, cwd=work / "tree" / _TESTS, env=environment, check=False).returncode


class _LlamaServer(programs.Program):
    """What the tests take for their ``subprocess.Popen`` of llama-server, at another port."""

    kept: ClassVar[dict[tuple[str, ...], _LlamaServer]] = {}
    """Those that go on after the test that wanted them, by their options: to start one takes longer than most tests."""
    fresh: ClassVar[bool] = True
    """Whether the running test wants a server that nobody has used."""

    def __new__(cls, words: list[str], **_: object) -> _LlamaServer:
        found = None if cls.fresh else cls.kept.get(tuple(options(words[1:], Path(os.environ[_MODELS]))))
        return found if found is not None and found.poll() is None else super().__new__(cls)

    def __init__(self, words: list[str], *, stdout: TextIO, **_: object) -> None:
        if hasattr(self, "port"):
            return
        self.port = int(words[words.index("--port") + 1])
        if not self.fresh:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        folder = Path(os.environ[_MODELS])
        self._options = tuple(options(words[1:], folder))
        log = folder / f"{self.port}.log" if stdout is sys.stdout else Path(stdout.name)
        log.write_bytes(b"")
        super().__init__("slm.serve", [*self._options, f"port={self.port}"], folder, session=True, log=log)
        if not self.fresh:
            while len(self.kept) >= _KEPT:
                self.kept.pop(next(iter(self.kept))).send_signal(signal.SIGTERM)
            self.kept[self._options] = self

    def terminate(self) -> None:
        if self.kept.get(self._options) is not self:
            self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        return 0 if self.kept.get(self._options) is self else super().wait(timeout)


def pytest_configure() -> None:
    """In their pytest: nothing is downloaded, and what is started is this repository's server."""
    import utils  # type: ignore[import-not-found]

    models = Path(os.environ[_MODELS])
    programs.CONTEXT.set_forkserver_preload(["slm.serve.__main__", "slm.serve.api.server", "slm.serve.engine.engine"])
    utils.download_file = lambda url, *_: str(models / FILES[url.rpartition("/")[2]])
    utils.subprocess = SimpleNamespace(Popen=_LlamaServer, TimeoutExpired=subprocess.TimeoutExpired)
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    process = utils.ServerProcess

    def make_url(self: Any, path: str, host: str | None = None) -> str:
        self.server_port = self.process.port
        return f"http://{host or self.server_host.split(',')[0]}:{self.server_port}{path}"

    process.make_url = make_url
    original = process.make_request

    def make_request(self: Any, *words: Any, **more: Any) -> Any:
        if "data" in more:
            words = (*words, more.pop("data"))
        if self.debug and len(words) > 2 and "messages" in words[2]:
            words = (*words[:2], {**words[2], "verbose": True}, *words[3:])  # the option --verbose is a field here
        made = original(self, *words, **more)
        made.headers = CaseInsensitiveDict(made.headers)  # names of headers have no case
        return made

    process.make_request = make_request


def pytest_runtest_setup(item: Any) -> None:
    _LlamaServer.fresh = item.path.stem.removeprefix("test_") in FRESH


def pytest_unconfigure() -> None:
    for each in _LlamaServer.kept.values():
        each.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
