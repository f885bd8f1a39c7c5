"""How many tokens a chat request is once the model's template has been put around its messages."""

from collections.abc import Callable, Mapping
from typing import Any

ChatCounter = Callable[[Mapping[str, Any]], int]


def chat_counter(tokenizer: Any, template: str | None) -> ChatCounter | None:
    """A counter of the tokens of chat requests; None where neither `template` is given nor the tokenizer has one.

    It raises whatever the template raises, and ValueError where the template left the last message out.
    """
    if template is None and not getattr(tokenizer, "chat_template", None):
        return None

    def count(document: Mapping[str, Any]) -> int:
        messages = [_message(message) for message in document["messages"]]
        continued = bool(document.get("continue_final_message"))
        # Neither a template of the request's nor arguments for it: the server's own is of a known cost.
        text = tokenizer.apply_chat_template(
            messages,
            tools=document.get("tools"),
            chat_template=template,
            add_generation_prompt=document.get("add_generation_prompt", not continued),
            continue_final_message=continued,
            tokenize=False,
        )
        if messages[-1]["content"].strip() not in text:
            raise ValueError("the template expects messages of another form")
        return len(tokenizer.encode(text, add_special_tokens=bool(document.get("add_special_tokens"))))

    return count


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its content as one text, as most templates want it."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        texts = [part if isinstance(part, str) else part.get("text", "") for part in content]
        content = "\n".join(text for text in texts if text and isinstance(text, str))
    return {**message, "content": content}
