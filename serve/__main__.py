"""``python -m slm.serve model=PATH [port=8080 host=127.0.0.1 serve.KEY=VALUE ...]``: the server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import ipaddress
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slm.cli import run
from slm.data.errors import UserError
from slm.exported import stale_lines
from slm.llama.verdict import require_working_build
from slm.machine.hardware import share_cores
from slm.serve.config import ServeConfig, load
from slm.serve.pool.autotune import stop_measuring
from slm.serve.pool.engine_process import preload
from slm.serve.pool.model_files import named_adapters, named_models

if TYPE_CHECKING:
    from slm.serve.engine.messages import ModelInfo
    from slm.serve.pool.model_pool import Pool


def main(argv: list[str]) -> int:
    """Serves until a signal stops it. Raises ``UserError`` for what the caller can mend."""
    # As process 1 of a container, a program without a handler is not ended by SIGTERM. The HTTP server takes it over.
    signal.signal(signal.SIGTERM, _end)
    # With several models, ``share_cores`` first changes the environment that the engines see.
    if not any(word.startswith(("serve.models", "serve.lora")) for word in argv):
        preload()
    config = load(
        ServeConfig,
        "serve",
        argv,
        literal=("model", "serve.models", "serve.lora", "serve.draft_model", "serve.api_keys"),
    )
    paths, notes = named_models(config.model, config.serve.name, config.serve.models)
    adapters = named_adapters(config.serve.lora, next(iter(paths.items())), paths)
    for note in [*notes, *stale_lines([*paths.values(), *adapters.values()])]:
        print(note, flush=True)
    listener = _listen(config.host, config.port)
    form = config.serve.access_form
    if config.serve.access_log_file is not None and form != "off":
        from slm.serve.api.access_log import Writer

        Writer(form, config.serve.access_log_file)  # what is wrong with it is said before the work
    with contextlib.closing(listener):
        require_working_build()
        try:
            return asyncio.run(_serve(config, paths, adapters, listener))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _end(number: int, _: object) -> None:
    stop_measuring()  # its thread would be waited for
    sys.exit(128 + number)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. It is bound before the model is loaded, so that a port in use is reported at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns off Nagle's algorithm only where the protocol is named. With it, each part of an answer after
        # the first would wait for the client's delayed acknowledgment: 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening now makes a second server on this port fail, even while the first is still loading.
        listener.listen()
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"host={host} is not known ({reason}); use 127.0.0.1 or 0.0.0.0") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} on {host} is in use; choose another with port=...") from None
        if error.errno == errno.EACCES:
            raise UserError(f"port {port} needs more rights; choose one above 1023 with port=...") from None
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


async def _serve(
    config: ServeConfig, paths: dict[str, Path], adapters: dict[str, Path], listener: socket.socket
) -> int:
    from slm.serve.pool.engine_settings import engine_config
    from slm.serve.pool.memory_plan import budget_bytes, fit_slots
    from slm.serve.pool.model_pool import Pool, Served

    _cancel_on_interrupt()
    options = config.serve
    of_environment = os.environ.get("SLM_API_KEY")
    if of_environment and not of_environment.strip():
        raise UserError("SLM_API_KEY holds blanks only: give a key, or unset it for a server without one")
    # A key from a file often ends with a line end, which no header has.
    keys = [key.strip() for key in (*options.api_keys, of_environment) if key]
    # In threads: measuring a model takes seconds, and a signal must end it.
    engines = {name: await asyncio.to_thread(engine_config, options, path) for name, path in paths.items()}
    base = next(iter(engines.values()))
    # Each adapter has an engine of its own: its KV caches hold nothing that was computed without it.
    engines |= {name: replace(base, adapter=path) for name, path in adapters.items()}
    budget = None
    if len(engines) > 1:
        share_cores()  # or engines that compute at the same time would wait for each other's spinning threads
        budget = budget_bytes(options.memory_budget_gb)
        if not options.slots:
            engines = fit_slots(engines, budget=budget)
    parent = next(iter(paths))
    models = [Served(name, each, parent if name in adapters else None) for name, each in engines.items()]
    pool = Pool(models, budget=budget, max_waiting=options.queue, idle_s=options.idle_unload_s or None)
    try:
        # Importing the routes' libraries takes a third of a second. It is done while the engine loads the model.
        info, http = await asyncio.gather(
            pool.start(), asyncio.to_thread(importlib.import_module, "slm.serve.api.server")
        )
        port = listener.getsockname()[1]

        def show() -> None:
            _banner(pool, info, config.host, port, keyed=bool(keys))

        return await http.serve_http(pool, options, keys, listener, show)
    finally:
        await pool.close()


def _cancel_on_interrupt() -> None:
    """The first Ctrl-C ends the loading of a model in an orderly way; further ones change nothing. The HTTP server
    takes the signal over."""
    this, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert this is not None
    seen: list[int] = []

    def interrupt(number: int, _: object) -> None:
        seen.append(number)
        stop_measuring()
        if len(seen) == 1 and not loop.is_closed():
            loop.call_soon_threadsafe(this.cancel)

    signal.signal(signal.SIGINT, interrupt)


def _banner(pool: Pool, info: ModelInfo, host: str, port: int, *, keyed: bool) -> None:
    assert pool.default.loaded is not None
    chat = pool.default.loaded.chat
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    print(f"page     {url}/")
    print(f"model    {pool.default.name}: {info.architecture}, {info.n_params / 1e6:.1f}M parameters, ", end="")
    print(f"{info.size_bytes / 2**20:.1f} MiB, loaded in {info.load_s:.2f} s")
    if pool.several:
        budget = (pool.budget or 0) / 2**30
        others = [f"{each.name} ({each.needed() / 2**30:.2f} GiB)" for each in list(pool.models.values())[1:]]
        print(f"others   {', '.join(others)}: loaded when asked for, {budget:.2f} GiB for all")
    print(f"context  {info.context} tokens per request, {info.slots} at a time, {info.kv_tokens} cached in all")
    if info.context > info.n_ctx_train:
        print(f"warning  the model was trained for {info.n_ctx_train} tokens, and serve.context={info.context} allows")
        print("         more: what lies beyond them is likely to be nonsense")
    if not keyed and not _is_loopback(host):
        print(f"warning  host={host} lets other machines in, and no key is needed; set serve.api_keys or SLM_API_KEY")
    if pool.idle_s is not None:
        print(f"memory   a model is unloaded after {pool.idle_s:g} s without a request; the next one loads it again")
    print(f"threads  {info.threads}")
    template = "the model's own template" if chat.own else "the plain form (the file has no template)"
    print(f"chat     {chat.problem or template}")
    print(f"url      {url}/v1 (schema at {url}/docs)")
    print("try\n  " + _example(url, keyed=keyed, chat=chat.own and not chat.problem), flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _example(url: str, *, keyed: bool, chat: bool) -> str:
    """A request that fits the model: a question for one with a chat template, else the beginning of a text."""
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    if chat:
        body = '{"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 60}'
        return f"curl -s {url}/v1/chat/completions{key} -d '{body}'"
    body = '{"prompt": "Once upon a time", "max_tokens": 60}'
    return f"curl -s {url}/v1/completions{key} -d '{body}'"


if __name__ == "__main__":
    run(main)
