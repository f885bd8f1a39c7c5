"""What a request asks of the engine: the tokens of its prompts and those it may generate."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serving.guard.fields import check_fields, check_token_ids, integer, kind_of
from serving.guard.input_items import check_input_items
from serving.guard.refusal import Refused, invalid
from serving.guard.routes import Kind
from serving.guard.settings import EngineFacts, RequestLimits

_THREAD_CHARACTERS = 8192  # longer texts are tokenised outside the event loop
_CHARACTERS_PER_TOKEN = 4  # of English, roughly
_MESSAGE_TOKENS = 8  # what a template adds to a message, roughly
_NAMES = frozenset({"model", "user", "encoding_format", "request_id", "priority", "cache_salt"})
_GENERATED = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Demand:
    """Tokens of all prompts together, tokens that may be generated for one choice, and choices of all prompts."""

    model: str
    prompt_tokens: int
    max_tokens: int
    choices: int
    stream: bool

    @property
    def cost(self) -> int:
        """Tokens that the engine has to hold for it at most."""
        return self.prompt_tokens + self.max_tokens * self.choices


def least_cost(length: int, facts: EngineFacts) -> int:
    """Tokens that a prompt of so many characters certainly has, before anything was tokenised."""
    return length // facts.token_characters


def find_model(document: Mapping[str, Any], facts: EngineFacts, allowed: tuple[str, ...] | None) -> str:
    """The model that is asked for. Raises Refused: 404 where there is none such, 403 where the key may not use it."""
    model = document.get("model")
    if model is None:
        model = facts.models[0]
    if not isinstance(model, str):
        raise invalid(f"model must be a string, not {kind_of(model)}", "model", "invalid_type")
    if model not in facts.models:
        message = f"there is no model {model[:64]!r} here; there is {', '.join(facts.models[:8])}"
        raise Refused(404, message, "model_not_found", "model")
    if allowed is not None and model not in allowed:
        raise Refused(403, f"this key may not use the model {model!r}", "model_not_allowed", "model")
    return model


async def find_demand(
    kind: Kind, document: Mapping[str, Any], model: str, limits: RequestLimits, facts: EngineFacts
) -> Demand:
    """Check every field of a request and count its tokens. Raises Refused."""
    if kind in (Kind.completion, Kind.chat):
        check_fields(document, limits, facts, chat=kind is Kind.chat)
        counts = await (_completion_prompts if kind is Kind.completion else _chat_prompt)(document, limits, facts)
        max_tokens = _max_tokens(kind, document, max(counts), limits, facts)
        choices = max(document.get("n") or 1, document.get("best_of") or 1) * len(counts)
        return Demand(model, sum(counts), max_tokens, choices, bool(document.get("stream")))
    texts = list(_strings(document))
    _check_characters(sum(map(len, texts)), limits)
    if kind is Kind.texts:
        return Demand(model, max(1, await _count(" ".join(texts), facts)), 0, 0, stream=False)
    check_input_items(document)
    asked = [integer(document, name, 1, limits.max_tokens or facts.max_model_len) for name in _GENERATED]
    nested = document.get("sampling_params")
    if isinstance(nested, dict):
        asked.append(integer(nested, "max_tokens", 1, limits.max_tokens or facts.max_model_len))
    max_tokens = max((count for count in asked if count is not None), default=limits.default_chat_max_tokens)
    numbers = sum(len(value) for value in document.values() if isinstance(value, list))
    prompt_tokens = max(1, numbers, sum(map(len, texts)) // _CHARACTERS_PER_TOKEN)
    choices = integer(document, "n", 1, limits.n) or 1
    return Demand(model, prompt_tokens, max_tokens, choices, bool(document.get("stream")))


def check_texts(document: Mapping[str, Any], limits: RequestLimits) -> None:
    """Refuse more text than is taken, where no tokens are counted."""
    _check_characters(sum(map(len, _strings(document))), limits)


async def _completion_prompts(document: Mapping[str, Any], limits: RequestLimits, facts: EngineFacts) -> list[int]:
    prompt = document.get("prompt")
    if prompt is None and document.get("prompt_embeds") is not None:
        return [facts.max_model_len]
    if not isinstance(prompt, str | list):
        problem = "is missing" if "prompt" not in document else f"must be a string or a list, not {kind_of(prompt)}"
        raise invalid(f"prompt {problem}", "prompt", "invalid_type")
    if len(prompt) == 0:
        raise invalid("prompt is empty", "prompt")
    is_one = isinstance(prompt, str) or type(prompt[0]) is int
    prompts: list[Any] = [prompt] if is_one else list(prompt)
    if len(prompts) > limits.prompts:
        raise invalid(f"{len(prompts)} prompts; at most {limits.prompts} are taken in one request", "prompt")
    kinds = {type(entry) for entry in prompts}
    if len(kinds) > 1 or not kinds <= {str, list}:
        raise invalid("prompt must be one string, a list of strings, or token ids", "prompt", "invalid_type")
    _check_characters(sum(len(entry) for entry in prompts if isinstance(entry, str)), limits)
    return [await _prompt_tokens(entry, facts) for entry in prompts]


async def _prompt_tokens(prompt: str | list[Any], facts: EngineFacts) -> int:
    if len(prompt) == 0:
        raise invalid("a prompt is empty", "prompt")
    if isinstance(prompt, list):
        check_token_ids(prompt, "prompt", facts)
        return len(prompt)
    least = least_cost(len(prompt), facts)
    if least > facts.max_model_len:
        raise _too_long(f"at least {least}", facts)
    return max(1, await _count(prompt, facts))


async def _chat_prompt(document: Mapping[str, Any], limits: RequestLimits, facts: EngineFacts) -> list[int]:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        problem = "is missing" if messages is None else "must be a list of at least one message"
        raise invalid(f"messages {problem}", "messages", "invalid_type")
    if len(messages) > limits.messages:
        raise invalid(f"{len(messages)} messages; at most {limits.messages} are taken", "messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid(f"message {number} must be an object with a role", "messages", "invalid_type")
        if not isinstance(message.get("content"), str | list | None):
            raise invalid(
                f"content of message {number} must be a string or a list of parts", "messages", "invalid_type"
            )
    texts = list(_strings({"messages": messages, "tools": document.get("tools")}))
    length = sum(map(len, texts))
    _check_characters(length, limits)
    if (least := least_cost(length, facts)) > facts.max_model_len:
        raise _too_long(f"at least {least}", facts)
    if facts.count_chat is not None:
        # A template may refuse messages in any way it likes; the engine then says why.
        with contextlib.suppress(Exception):
            if length <= _THREAD_CHARACTERS:
                return [facts.count_chat(document)]
            return [await asyncio.to_thread(facts.count_chat, document)]
    return [await _count(" ".join(texts), facts) + _MESSAGE_TOKENS * len(messages)]


def _max_tokens(
    kind: Kind, document: Mapping[str, Any], longest: int, limits: RequestLimits, facts: EngineFacts
) -> int:
    """Tokens to generate at most, where the longest prompt leaves room for them."""
    bound = min(limits.max_tokens or facts.max_model_len, facts.max_model_len)
    name = "max_tokens"
    if kind is Kind.chat and document.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    asked = integer(document, name, 1, bound)
    if document.get("truncate_prompt_tokens") is not None:
        longest = min(longest, facts.max_model_len - 1)
    room = facts.max_model_len - longest
    if room < 1:
        raise _too_long(str(longest), facts)
    if asked is None:
        default = limits.default_max_tokens if kind is Kind.completion else limits.default_chat_max_tokens
        asked = min(default, bound, room)
    if asked > room:
        message = f"the prompt has {longest} tokens and {name} is {asked}: together more than the model's context"
        raise invalid(f"{message} of {facts.max_model_len} tokens", name, "context_length_exceeded")
    least = integer(document, "min_tokens", 0, bound)
    if least is not None and least > asked:
        raise invalid(f"min_tokens is {least}, more than {name}, {asked}", "min_tokens")
    return asked


async def _count(text: str, facts: EngineFacts) -> int:
    if len(text) <= _THREAD_CHARACTERS:
        return facts.count_tokens(text)
    return await asyncio.to_thread(facts.count_tokens, text)


def _check_characters(length: int, limits: RequestLimits) -> None:
    if length > limits.prompt_characters:
        message = f"{length} characters of text; at most {limits.prompt_characters} are taken"
        raise invalid(message, "prompt", "prompt_too_long")


def _too_long(tokens: str, facts: EngineFacts) -> Refused:
    message = f"the prompt has {tokens} tokens; the model's context is {facts.max_model_len}, of which one must be left"
    return invalid(message, "prompt", "context_length_exceeded")


def _strings(value: Any) -> Iterator[str]:
    """Every text in a document, without names. Its depth is bounded by now."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in _NAMES:
                yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
