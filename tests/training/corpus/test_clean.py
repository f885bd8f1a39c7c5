"""The clean-up's repairs and rules."""

import pytest
from ftfy import fix_text
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import UserError
from tests.training.corpus.stages import SHARD, corpus_config, documents, reasons, texts
from training.corpus.clean import Clean, CleanConfig, Cleaner, TextFixer
from training.corpus.filters import general_cleaning, tidy
from training.corpus.language import UNKNOWN, LanguageIdentifier
from training.corpus.stage import Outcome

ENGLISH = (
    "The town had been waiting for the new bridge since the old one was carried away by the flood, and when it was "
    "opened in the spring, more people crossed it in a single day than had lived there ten years before. "
)
GERMAN = (
    "Die Stadt hatte auf die neue Brücke gewartet, seit die alte vom Hochwasser fortgerissen worden war, und als sie "
    "im Frühling eröffnet wurde, gingen an einem einzigen Tag mehr Menschen hinüber, als zehn Jahre zuvor dort lebten. "
)


def clean(*given: str, **settings: object) -> Outcome:
    return Cleaner(CleanConfig.model_validate(settings))(SHARD, documents(*given))


def test_each_rule_drops_and_is_counted() -> None:
    outcome = clean(
        ENGLISH * 5,
        ENGLISH,
        "Please enable JavaScript to see this page.",
        GERMAN * 5,
        GERMAN * 6,
        "" + "0123456789 " * 60,
    )
    assert texts(outcome) == [(ENGLISH * 5).strip()]
    assert reasons(outcome) == [
        ("set/1", "too short", f"{len(ENGLISH.strip())} characters"),
        ("set/2", "javascript", "42 characters"),
        ("set/3", "language", "de 99%"),
        ("set/4", "language", "de 99%"),
        ("set/5", "language", "un 0%"),
    ]
    rules = {name: count for name, count in outcome.counts.items() if name != "repaired"}
    assert rules == {
        "kept": 1,
        "language: de": 2,
        "language: un": 1,
        "rule: javascript": 1,
        "rule: language": 3,
        "rule: too short": 1,
    }
    assert outcome.dropped["text"][2].as_py().startswith("Die Stadt")


def test_lengths_are_as_the_paper_has_them() -> None:
    exact = (ENGLISH * 5)[:511].strip().ljust(511, "x")
    outcome = clean(exact, f"{exact}x")
    assert [reason[1] for reason in reasons(outcome)] == ["too short"]
    assert len(texts(outcome)[0]) == 512
    # From 256 characters on a text may speak of JavaScript.
    short = {"min_characters": 0}
    about = "JavaScript " + ENGLISH * 2
    assert [reason[1] for reason in reasons(clean(about[:255], about[:256] + "x", **short))] == ["javascript"]


def test_texts_are_repaired() -> None:
    broken = ENGLISH * 5 + "The schÃ¶ne MÃ¼llerin &amp; the cafe\u0301   \n\n\n\n\x07end"
    (text,) = texts(clean(broken))
    assert text.endswith("The schöne Müllerin & the café\n\nend")
    (text,) = texts(clean(broken, fix_text=False))
    assert text.endswith("The schÃ¶ne MÃ¼llerin &amp; the cafe\u0301\n\n\x07end")
    assert clean(broken, (ENGLISH * 5).strip()).counts["repaired"] == 1


def test_languages_are_configurable() -> None:
    given = (ENGLISH * 5, GERMAN * 5, (ENGLISH + GERMAN) * 3)
    assert len(texts(clean(*given, languages=[]))) == 3
    assert len(texts(clean(*given, languages=["de"], min_language_share=0.9))) == 1
    assert len(texts(clean(*given, languages=["en", "de"], min_language_share=0.3))) == 3


@pytest.mark.parametrize("text", ["", "\x00\x01", "\ud800", "\ufffe" * 5, "\U0010ffff"])
def test_texts_of_no_language(text: str) -> None:
    assert LanguageIdentifier()(text).code == UNKNOWN


@pytest.mark.parametrize("stray", ["\x00", "\x08", "\x85", "\ud83d", "\ufdd0", "\uffff", "\U0001fffe"])
def test_stray_characters_hide_no_language(stray: str) -> None:
    assert LanguageIdentifier()(ENGLISH + stray + ENGLISH).code == "en"


def test_general_cleaning_is_the_released_code_s() -> None:
    assert general_cleaning("a line\nbroken  in\n\n two.\nNext") == "a line broken in two.\nNext"
    assert texts(clean(ENGLISH.replace(" the ", "\nthe ") * 5, general_cleaning=True)) == [(ENGLISH * 5).strip()]


PIECES = [
    "a",
    " b",
    "&amp;",
    "&lt;",
    "<",
    "<p>",
    "\n",
    "\r\n",
    "\t",
    "\x1b[1m",
    "\x07",
    "Ã©",
    "â€™",
    "\u2019",
    "\ufb01",
    "\uff57",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text(st.characters(max_codepoint=0x17F)))
def test_lines_that_ftfy_would_leave_alone_are_left_alone(text: str) -> None:
    assert TextFixer()(text) == fix_text(text)


def test_tidy() -> None:
    assert tidy("\n  a \t\n\n\n\n\nb\n\nc  ") == "a\n\nb\n\nc"


def test_a_language_that_is_none_is_said_before_all_is_dropped() -> None:
    with pytest.raises(UserError, match="'english' is none of CLD2's codes; did you mean en"):
        Clean(corpus_config(clean={"languages": ["de", "english"]})).identity()
    with pytest.raises(UserError, match=r"'xx' is none of CLD2's codes; they are: .*, de, .*, zu"):
        Clean(corpus_config(clean={"languages": ["xx"]})).identity()


def test_identity_follows_settings() -> None:
    assert Clean(corpus_config()).identity() != Clean(corpus_config(clean={"min_characters": 100})).identity()
    assert any(library.startswith("ftfy ") for library in Clean(corpus_config()).identity()["libraries"])
