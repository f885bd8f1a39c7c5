"""`POST /v1/score`: log-likelihoods of continuations given a context, which is computed once."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from serving.prompt_score import PromptScore, ScoringRefusedError, prompt_score, tokens_of

_MOST_CONTINUATIONS = 128
_LONGEST_MESSAGE = 400

Text = str | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ScoreRequest(BaseModel):
    """Texts, or token ids. A continuation is tokenised behind its context, so a space between them belongs to it."""

    model_config = ConfigDict(extra="forbid")

    model: str
    context: Text
    continuations: Annotated[list[Text], Field(min_length=1, max_length=_MOST_CONTINUATIONS)]


def score_router(engine: Callable[[], Any], refusal: Callable[[str], Response | None]) -> APIRouter:
    """The route. `engine` is the running one; `refusal` answers for a model of this name, or gives None."""
    router = APIRouter()

    @router.post("/v1/score")
    async def score(request: ScoreRequest) -> Response:
        refused = refusal(request.model)
        if refused is not None:
            return refused
        try:
            return JSONResponse(await _answer(engine(), request))
        except ScoringRefusedError as error:
            return error_response(400, str(error), "invalid_request_error")

    return router


def error_response(status: int, message: str, kind: str) -> JSONResponse:
    """An error as OpenAI's servers have them."""
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


async def invalid_request(_: Request, error: Exception) -> JSONResponse:
    """The answer to a body that is not of the form that a route here wants; an exception handler."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{where}: {first['msg']}" if where else first["msg"]
    return error_response(400, message[:_LONGEST_MESSAGE], "invalid_request_error")


async def _answer(engine: Any, request: ScoreRequest) -> dict[str, Any]:
    context, continuations = tokens_of(engine, request.context, request.continuations)
    # One first: it leaves the context in the cache for the others.
    first = await prompt_score(engine, context, continuations[0])
    others = await _together(engine, context, continuations[1:])
    scores = [first, *others]
    prompt_tokens = sum(len(context) + len(continuation) for continuation in continuations)
    return {
        "object": "scores",
        "model": request.model,
        "scores": [
            {"logprob": sum(score.logprobs), "is_greedy": score.is_greedy, "token_logprobs": score.logprobs}
            for score in scores
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(score.cached for score in scores)},
        },
    }


async def _together(engine: Any, context: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[PromptScore]:
    async with asyncio.TaskGroup() as group:  # a client that goes away cancels them all
        tasks = [group.create_task(prompt_score(engine, context, continuation)) for continuation in continuations]
    return [task.result() for task in tasks]
