"""Text out of HTML: the libraries that may do it, each behind the same function of a page's bytes.

They are called in the processes of training/corpus/page_process.py.
"""

from collections.abc import Callable

Extractor = Callable[[bytes], str]


def trafilatura(focus: str, fast: bool) -> Extractor:
    """The main text as trafilatura finds it, comments left out.

    `focus` is balanced, precision or recall; `fast` leaves out the comparison with readability and jusText.
    """
    from trafilatura import extract

    def main_text(html: bytes) -> str:
        text = extract(
            html,
            fast=fast,
            favor_precision=focus == "precision",
            favor_recall=focus == "recall",
            include_comments=False,
            # Its own removal of duplicates remembers former pages: what a page gives would depend on them.
            deduplicate=False,
        )
        return text or ""

    return main_text


def resiliparse() -> Extractor:
    """The main content by resiliparse's rules: some fifteen times as fast, with more of what surrounds the text."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    def main_text(html: bytes) -> str:
        decoded = bytes_to_str(html, detect_encoding(html, from_html_meta=True) or "utf-8", errors="replace")
        return str(extract_plain_text(decoded, main_content=True, alt_texts=False, comments=False))

    return main_text


def justext(language: str) -> Extractor:
    """The paragraphs that jusText (Pomikalek 2011) takes for text, by length, links and stop words, as MT-NLG did."""
    from justext import get_stoplist
    from justext import justext as classify

    stop_words = get_stoplist(language)

    def main_text(html: bytes) -> str:
        return "\n".join(paragraph.text for paragraph in classify(html, stop_words) if not paragraph.is_boilerplate)

    return main_text
