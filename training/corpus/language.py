"""Which language a text is in, by CLD2 (as MT-NLG's Common Crawl was identified)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from foundation.errors import UserError

# CLD2 refuses a text that holds any of these: control characters other than white space, surrogates, non-characters.
_REFUSED = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
UNKNOWN = "un"


@dataclass(frozen=True)
class Language:
    """A text's main language (ISO 639-1 code, `un` for unknown) and the share of the text that is in it, 0 to 1."""

    code: str
    share: float


def check_codes(codes: Iterable[str]) -> None:
    """Raises UserError for a code that CLD2 never gives."""
    import pycld2

    known = {code for _, code in pycld2.LANGUAGES}
    for code in codes:
        if code not in known:
            like = [given for name, given in pycld2.LANGUAGES if name.lower() == code.lower()]
            hint = f"did you mean {like[0]}?" if like else f"they are: {', '.join(sorted(known))}"
            raise UserError(f"clean.languages: {code!r} is none of CLD2's codes; {hint}")


class LanguageIdentifier:
    """Identifies languages; opened once in a process."""

    def __init__(self) -> None:
        import pycld2

        self._detect: Any = pycld2.detect
        self._error: type[Exception] = pycld2.error

    def __call__(self, text: str) -> Language:
        """The main language of the whole text."""
        try:
            _, _, found = self._detect(text.encode("utf-8"), True)
        except (self._error, UnicodeEncodeError):
            try:
                _, _, found = self._detect(_REFUSED.sub(" ", text).encode("utf-8"), True)
            except self._error:
                return Language(UNKNOWN, 0.0)
        _, code, percent, _ = found[0]
        return Language(code, percent / 100)
