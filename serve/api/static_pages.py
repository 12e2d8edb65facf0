"""The web pages at ``/`` and ``/docs``: static files of the package, without anything from other sites or secrets.

The colours are the training report's: ``slm/web/colors.css``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slm.serve.api.errors import ApiError

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""``no-cache``: a browser keeps the files, and asks with their ETag whether they are still the same. Trusted types: the
browser refuses to parse HTML from a script (``innerHTML`` and the like), so that a model's text stays text."""
_DOCS_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": _POLICY.replace("img-src 'self'", "img-src 'self' data:"),
}
"""Swagger UI makes HTML from texts, after DOMPurify, and has pictures in its styles. It gets the schema, which is ours,
and what a person sends from there; a script in a text would not run."""


def is_page(path: str) -> bool:
    """Whether a path belongs to a page. Pages load without a key, since they ask the user for it."""
    return path in ("/", "/docs") or path.startswith("/web/")


def page_routes() -> list[Route]:
    """The routes of the pages. Their files are read once, now."""
    folders = resources.files("slm.serve.api") / "web", resources.files("slm") / "web"
    files = {name: content for folder in folders for name, content in _below(folder)}
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in files.items()}

    def respond(request: Request, name: str) -> Response:
        headers = {**(_DOCS_HEADERS if name == "docs.html" else _HEADERS), "ETag": tags[name]}
        if tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(files[name], media_type=_TYPES[_suffix(name)], headers=headers)

    async def page(request: Request) -> Response:
        return respond(request, "index.html")

    async def docs(request: Request) -> Response:
        return respond(request, "docs.html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise ApiError(404, f"GET /web/{name[:100]}: Not Found.")
        return respond(request, name)

    return [Route("/", page), Route("/docs", docs), Route("/web/{name:path}", file)]


def _below(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{prefix}{each.name}/")
        elif _suffix(each.name) in _TYPES:
            yield prefix + each.name, each.read_bytes()


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
