"""Items of a `/v1/responses` input that vLLM (0.32) does not read: it would answer 500 to each."""

from collections.abc import Mapping
from typing import Any

from serving.guard.refusal import invalid


def check_input_items(document: Mapping[str, Any]) -> None:
    """Refuse an assistant's message without text, and a tool's output that is no text."""
    items = document.get("input")
    for number, item in enumerate(items if isinstance(items, list) else []):
        if not isinstance(item, dict):
            continue
        content = item.get("content")
        if item.get("role") == "assistant" and isinstance(content, list) and not _all_text(content):
            raise invalid(f"input {number}: an assistant's content must be text, and not a refusal", "input")
        if "output" in item and not isinstance(item["output"], str):
            raise invalid(f"input {number}: the output of a tool must be a string", "input", "invalid_type")
        if "output" in item and not isinstance(item.get("call_id"), str):
            raise invalid(f"input {number}: call_id must say which call the output is of", "input", "invalid_type")


def _all_text(content: list[Any]) -> bool:
    return bool(content) and not any(isinstance(part, dict) and part.get("type") == "refusal" for part in content)
