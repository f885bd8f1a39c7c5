"""Tokens of chat requests, after the template."""

from typing import Any

import pytest

from serving.chat_tokens import ChatCounter, chat_counter

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


class Tokenizer:
    """A token a character, and transformers' own template engine."""

    chat_template: str | None = None

    def apply_chat_template(self, messages: Any, *, chat_template: str | None, tokenize: bool, **options: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize
        options.pop("tools")
        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=chat_template or self.chat_template, **options
        )
        text: str = rendered[0]
        return text

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0] * (len(text) + add_special_tokens)


def counter(template: str) -> ChatCounter:
    found = chat_counter(Tokenizer(), template)
    assert found is not None
    return found


def test_without_a_template_there_is_no_counter() -> None:
    assert chat_counter(Tokenizer(), None) is None


def test_the_template_is_counted() -> None:
    count = counter(TEMPLATE)
    messages = [{"role": "user", "content": "abc"}]
    assert count({"messages": messages}) == len("<user>abc>")
    assert count({"messages": messages, "add_generation_prompt": False}) == len("<user>abc")
    assert count({"messages": messages, "add_special_tokens": True}) == len("<user>abc>") + 1


def test_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "c"}]
    assert counter(TEMPLATE)({"messages": [{"role": "user", "content": parts}]}) == len("<user>ab\nc>")
    assert counter(TEMPLATE)({"messages": [{"role": "user", "content": None}]}) == len("<user>>")


def test_what_the_template_refuses_or_loses_is_an_error() -> None:
    with pytest.raises(Exception, match="no such role"):
        counter("{{ raise_exception('no such role') }}")({"messages": [{"role": "user", "content": "a"}]})
    with pytest.raises(ValueError, match="another form"):
        counter("{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}")(
            {"messages": [{"role": "user", "content": "abc"}]}
        )
