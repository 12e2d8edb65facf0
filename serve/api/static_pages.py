"""The web pages at ``/`` and ``/docs``: static files of the package, without anything from other sites or secrets.

The colours are those of the training report: ``slm/web/colors.css``.
"""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve.api.errors import ApiError

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def is_page(path: str) -> bool:
    """Whether a path belongs to a page. Pages load without a key, since they ask the user for it."""
    return path in ("/", "/docs") or path.startswith("/web/")


def page_routes() -> list[Route]:
    """The routes of the pages. Their files are read once, now."""
    folders = resources.files("serve.api") / "web", resources.files("slm") / "web"
    paths = {path.name: path for folder in folders for path in folder.iterdir()}
    suffix = {name: name[name.rfind(".") :] for name in paths}
    files = {name: paths[name].read_bytes() for name, kind in suffix.items() if kind in _TYPES}

    def respond(name: str) -> Response:
        return Response(files[name], media_type=f"{_TYPES[suffix[name]]}; charset=utf-8", headers=_HEADERS)

    async def page(_: Request) -> Response:
        return respond("index.html")

    async def docs(_: Request) -> Response:
        return respond("docs.html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise ApiError(404, f"GET /web/{name[:100]}: Not Found.")
        return respond(name)

    return [Route("/", page), Route("/docs", docs), Route("/web/{name}", file)]
