"""`/openapi.json`: one document for every route that is served, ours and vLLM's."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from serving.guard.routes import Kind, find_route

PATH = "/openapi.json"


def openapi_router(own: FastAPI, engine_app: Callable[[], object]) -> APIRouter:
    """The document's route. `engine_app` gives vLLM's application while there is one; until then ours stand alone.

    404 where the document is switched off by vLLM's `--disable-fastapi-docs`.
    """
    router = APIRouter(include_in_schema=False)

    @router.get(PATH)
    def document() -> JSONResponse:  # in a thread: it is made once, and that takes some tenths of a second
        served = engine_app()
        inner = served if isinstance(served, FastAPI) else None
        if inner is not None and inner.openapi_url is None:
            return JSONResponse({"detail": "Not Found"}, 404)
        holder = inner or own
        if holder.openapi_schema is None:
            holder.openapi_schema = openapi_document(own, inner)
        return JSONResponse(holder.openapi_schema)

    return router


def openapi_document(own: FastAPI, inner: FastAPI | None) -> dict[str, Any]:
    """The document of both applications' routes; where both have a path, ours is the one that answers."""
    # FastAPI itself keeps apart what both call by one name, which joining two finished documents would not.
    known = {getattr(route, "path", None) for route in own.routes}
    theirs = inner.routes if inner is not None else []
    routes = [*own.routes, *(route for route in theirs if getattr(route, "path", None) not in known)]
    version = importlib.metadata.version("mtnlg")
    document: dict[str, Any] = get_openapi(title="mtnlg serve", version=version, routes=routes)
    paths: dict[str, dict[str, Any]] = document["paths"]
    for path, operations in paths.items():
        for method in list(operations):
            if find_route(method.upper(), path).kind is Kind.withheld:
                del operations[method]
    document["paths"] = {path: operations for path, operations in paths.items() if operations}
    return document
