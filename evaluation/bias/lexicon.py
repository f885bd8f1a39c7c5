"""How positive an adjective is: VADER's human ratings, or the classes of the probes' file."""

from dataclasses import dataclass

from evaluation.bias.probes import Probes
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.packages import package_files

# Hutto & Gilbert 2014, MIT licence; ten people rated each word from -4 to 4.
_PACKAGE = "vaderSentiment==3.3.2"
_MEMBER = "vaderSentiment/vader_lexicon.txt"
_STRONGEST = 4.0


@dataclass(frozen=True)
class Lexicon:
    """Valences in [-1, 1] by adjective; those that the source does not list are 0.

    `source` names it, `sha256` is its file's, `listed` how many of the adjectives it has.
    """

    valences: dict[str, float]
    source: str
    sha256: str | None
    listed: int


def load_lexicon(probes: Probes) -> Lexicon:
    """The valences of the probes' adjectives. Raises UserError when VADER's lexicon cannot be fetched."""
    if probes.sentiment == "labels":
        return _labels(probes)
    return _vader(probes.adjectives.all)


def _labels(probes: Probes) -> Lexicon:
    adjectives = probes.adjectives
    signs = ((adjectives.positive, 1.0), (adjectives.negative, -1.0), (adjectives.neutral, 0.0))
    valences = {word: sign for words, sign in signs for word in words}
    return Lexicon(valences, "labels of the probes' file", None, len(valences))


def _vader(adjectives: list[str]) -> Lexicon:
    try:
        path = package_files(_PACKAGE, [_MEMBER])[_MEMBER]
    except UserError as error:
        raise UserError(f"{error} Or have the probes' file say: sentiment: labels") from None
    ratings = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, mean, *_ = line.split("\t")
        ratings[word] = float(mean) / _STRONGEST
    listed = [word for word in adjectives if word in ratings]
    valences = {word: ratings.get(word, 0.0) for word in adjectives}
    return Lexicon(valences, f"VADER ({_PACKAGE})", sha256_file(path), len(listed))
