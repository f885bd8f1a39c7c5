"""The web page at `/`: static files from this package, nothing from elsewhere."""

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

_FOLDER = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Only this server's own files run and only this server is asked; text never becomes markup.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    # Kept, but asked for each time: a newer server's page must not meet an older one's script.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page_paths() -> frozenset[str]:
    """Every path that the page's files have, which need no key: `/` and `/static/...`."""
    return frozenset(_files())


def page_router() -> APIRouter:
    """The page's routes; include it before a mount at `/`. Files are read once, here."""
    router = APIRouter(include_in_schema=False)
    for path, file in _files().items():
        _add_file(router, path, file.read_bytes(), _TYPES[file.suffix])
    return router


def _files() -> dict[str, Path]:
    """Files by the paths of their URLs."""
    files = sorted(file for file in _FOLDER.iterdir() if file.suffix in _TYPES)
    return {"/" if file.name == "index.html" else f"/static/{file.name}": file for file in files}


def _add_file(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    async def answer(request: Request) -> Response:
        known = request.headers.get("if-none-match", "").replace("W/", "").split(",")
        if any(one.strip() in {tag, "*"} for one in known):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    router.add_api_route(path, answer, methods=["GET", "HEAD"], name=path)
