"""The page's own files: static, of the package, with a policy that lets nothing else run.

Tested in tests/studio/test_app.py.
"""

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Trusted types: the browser refuses to parse HTML from a script, so that text of files and models stays text."""


def page_routes() -> list[Route]:
    """The routes of the page. Its files are read once, now."""
    files = {name: (content, _tag(content)) for name, content in _files()}

    def respond(request: Request, name: str) -> Response:
        if name not in files:
            return JSONResponse({"error": "there is no such file"}, status_code=404)
        content, tag = files[name]
        headers = {**HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        kind = _TYPES[name[name.rfind(".") :]]
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)

    async def page(request: Request) -> Response:
        return respond(request, "index.html")

    async def login(request: Request) -> Response:
        content = files["login.html"][0]
        if "wrong" in request.query_params:
            content = content.replace(b'id="wrong" hidden', b'id="wrong" role="alert"')
        return Response(content, media_type="text/html; charset=utf-8", headers=HEADERS)

    async def file(request: Request) -> Response:
        return respond(request, request.path_params["name"])

    return [Route("/", page), Route("/login", login), Route("/web/{name:path}", file)]


def _files() -> list[tuple[str, bytes]]:
    own, shared = resources.files("slm.studio") / "web", resources.files("slm") / "web"
    return [*_below(shared, ""), *_below(own, "")]


def _below(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for each in folder.iterdir():
        name = prefix + each.name
        if each.is_dir():
            found += _below(each, f"{name}/")
        elif name[name.rfind(".") :] in _TYPES:
            found.append((name, each.read_bytes()))
    return found


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'
