"""The server's few web pages: fixed files, read once, sent with headers that allow nothing else.

May import: nothing of ours. The page explains what this server is and how to join; it holds no
control, takes no room code and loads nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

_FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def static_folder() -> Path:
    """Inside the package when installed, beside it in a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "static"
    return installed if installed.is_dir() else here.parent / "static"


def add_pages(app: web.Application) -> None:
    """Serve each known file under its fixed path; there is no path handling to get wrong."""
    folder = static_folder()
    for path, (name, content_type) in _FILES.items():
        app.router.add_get(path, _page((folder / name).read_bytes(), content_type))
    app.on_response_prepare.append(_set_headers)


def _page(body: bytes, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handler


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
