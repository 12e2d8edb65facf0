"""``python -m slm.serve model=PATH [port=8080 host=127.0.0.1 serve.KEY=VALUE ...]``: the server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slm.cli import run
from slm.data.errors import UserError, one_line
from slm.exported import stale_lines
from slm.llama.verdict import require_working_build
from slm.machine.hardware import share_cores
from slm.serve.config import ServeConfig, load
from slm.serve.keys import Key, all_keys
from slm.serve.listening import Place, check_certificate, is_name, listen, listen_on_path
from slm.serve.pool.autotune import stop_measuring
from slm.serve.pool.engine_process import preload
from slm.serve.pool.model_files import named_adapters, named_models

if TYPE_CHECKING:
    from slm.serve.pool.model_files import ScaledAdapter
    from slm.serve.pool.model_pool import Loaded, Pool


_SERVE = ("models", "lora", "draft_model", "api_keys", "chat_template", "pull")
_LITERAL = ("model", *(f"serve.{name}" for name in _SERVE))
"""Options that are taken as they were typed."""


def main(argv: list[str]) -> int:
    """Serves until a signal stops it. Raises ``UserError`` for what the caller can mend."""
    # As process 1 of a container, a program without a handler is not ended by SIGTERM. The HTTP server takes it over.
    signal.signal(signal.SIGTERM, _end)
    if any(word.startswith(("serve.models", "serve.lora", "serve.pull")) for word in argv):
        share_cores()  # before: engines see the environment of this moment
    preload()
    config = load(
        ServeConfig,
        "serve",
        argv,
        literal=_LITERAL,
    )
    paths, notes = named_models(config.model, config.serve.name, config.serve.models)
    adapters = named_adapters(config.serve.lora, next(iter(paths.items())), paths)
    for note in [*notes, *stale_lines([*paths.values(), *(each.path for each in adapters.values())])]:
        print(note, flush=True)
    options = config.serve
    keys = all_keys(options.api_keys, options.api_key_file, os.environ.get("SLM_API_KEY"))
    if options.chat_template is not None:
        check_template(options.chat_template)
    if options.cert is not None and options.key_pem is not None:
        check_certificate(options.cert, options.key_pem)
    listener = (
        listen(config.host, config.port) if options.unix_socket is None else listen_on_path(Path(options.unix_socket))
    )
    form = config.serve.access_form
    if config.serve.access_log_file is not None and form != "off":
        from slm.serve.api.access_log import Writer

        Writer(form, config.serve.access_log_file)  # what is wrong with it is said before the work
    with contextlib.closing(listener):
        require_working_build()
        try:
            return asyncio.run(_serve(config, paths, adapters, listener, keys))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            if options.unix_socket is not None:
                Path(options.unix_socket).unlink(missing_ok=True)


def check_template(path: str) -> None:
    """Raises ``UserError`` for a chat template that cannot be read or is not valid."""
    from slm.data.chat.template import ChatTemplate

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"serve.chat_template={path} cannot be read: {one_line(error)}") from None
    ChatTemplate(text, bos="", eos="", control_tokens=(), name=f"serve.chat_template={path}")


def _end(number: int, _: object) -> None:
    stop_measuring()  # its thread would be waited for
    sys.exit(128 + number)


async def _serve(
    config: ServeConfig,
    paths: dict[str, Path],
    adapters: dict[str, ScaledAdapter],
    listener: socket.socket,
    keys: Sequence[Key],
) -> int:
    from slm.serve.engine.process import GIL_S
    from slm.serve.pool.engine_settings import engine_config, measured_config, wants_measuring
    from slm.serve.pool.idle_tuning import IdleTuning
    from slm.serve.pool.memory_plan import budget_bytes, fit_slots
    from slm.serve.pool.model_pool import Pool, Served
    from slm.serve.pool.pull import Puller

    _cancel_on_interrupt()
    sys.setswitchinterval(GIL_S)  # templates and schemas are read in threads, and must not hold up the loop
    options = config.serve
    if is_name(config.host):
        options = replace(options, hosts=[*options.hosts, config.host])
    # In threads: with serve.tune=force this takes seconds, and a signal must end it.
    engines = {name: await asyncio.to_thread(engine_config, options, path) for name, path in paths.items()}
    base = next(iter(engines.values()))
    if options.chat_template is not None:
        base = replace(base, chat_template=Path(options.chat_template).read_text(encoding="utf-8"))
    # A request to any of these engines may choose adapters; each adapter has one in which it need not be chosen.
    base = replace(base, adapters=tuple(dict.fromkeys(each.path for each in adapters.values())))
    engines[next(iter(paths))] = base
    engines |= {name: replace(base, adapter=each.path, adapter_scale=each.scale) for name, each in adapters.items()}
    budget = None
    if len(engines) > 1 or options.pull:
        share_cores()  # or engines that compute at the same time would wait for each other's spinning threads
        budget = budget_bytes(options.memory_budget_gb)
        if not options.slots:
            engines = fit_slots(engines, budget=budget)
    parent = next(iter(paths))
    models = [Served(name, each, parent if name in adapters else None) for name, each in engines.items()]
    tuning: IdleTuning | None = None
    pool = Pool(
        models,
        budget=budget,
        max_waiting=options.queue,
        idle_s=options.idle_unload_s or None,
        grows=bool(options.pull),
    )
    puller: Puller | None = None
    if options.pull:
        most_bytes = round(options.pull_gb * 1e9)
        puller = Puller(pool, options.pull, most_bytes, lambda path: engine_config(options, path))
        pool.source = puller
    try:
        # Importing the routes' libraries takes a third of a second. It is done while the engine loads the model.
        loaded, http = await asyncio.gather(
            pool.start(), asyncio.to_thread(importlib.import_module, "slm.serve.api.server")
        )
        place = Place(config, listener)
        tuning = IdleTuning(
            pool,
            lambda engine: wants_measuring(options, engine.model_path),
            lambda engine: measured_config(options, engine.model_path),
        )
        tuning.start()

        def show() -> None:
            _banner(pool, loaded, place, keyed=bool(keys))
            pool.unload_when_idle()  # not before: importing the routes may take longer than a model may idle

        return await http.serve_http(pool, options, keys, listener, show)
    finally:
        if tuning is not None:
            await tuning.close()
        if puller is not None:
            await puller.close()
        await pool.close()


def _cancel_on_interrupt() -> None:
    """The first Ctrl-C ends the loading of a model in an orderly way; further ones change nothing. The HTTP server
    takes the signal over."""
    this, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert this is not None
    seen: list[int] = []

    def interrupt(number: int, _: object) -> None:
        seen.append(number)
        if len(seen) == 1:
            print("stopping", file=sys.stderr, flush=True)
        stop_measuring()
        if len(seen) == 1 and not loop.is_closed():
            loop.call_soon_threadsafe(this.cancel)

    signal.signal(signal.SIGINT, interrupt)


def _banner(pool: Pool, loaded: Loaded, place: Place, *, keyed: bool) -> None:
    info, chat = loaded.info, loaded.chat
    if place.pages and place.unix_socket is None:
        print(f"page     {place.url}/")
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
    if not keyed and not place.private:
        print(f"warning  host={place.host} lets other machines in, and no key is needed;", end="")
        print(" set serve.api_keys or SLM_API_KEY")
    if pool.idle_s is not None:
        print(f"memory   a model is unloaded after {pool.idle_s:g} s without a request; the next one loads it again")
    print(f"threads  {info.threads}")
    template = "the model's own template" if chat.own else "the plain form (the file has no template)"
    print(f"chat     {chat.problem or template}")
    over = f", over the Unix socket {place.unix_socket}" if place.unix_socket else ""
    schema = f"schema at {place.url}/docs" if place.pages else f"schema at {place.url}/openapi.json"
    print(f"url      {place.url}/v1 ({schema}{over})")
    print("try\n  " + _example(place, keyed=keyed, chat=chat.own and not chat.problem), flush=True)


def _example(place: Place, *, keyed: bool, chat: bool) -> str:
    """A request that fits the model: a question for one with a chat template, else the beginning of a text."""
    url, curl = place.url, "curl -s" + (f" --unix-socket {place.unix_socket}" if place.unix_socket else "")
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    if chat:
        body = '{"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 60}'
        return f"{curl} {url}/v1/chat/completions{key} -d '{body}'"
    body = '{"prompt": "Once upon a time", "max_tokens": 60}'
    return f"{curl} {url}/v1/completions{key} -d '{body}'"


if __name__ == "__main__":
    run(main)
