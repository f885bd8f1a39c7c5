"""The stage: the classifier trained or fetched, then each document scored and kept or not by a draw of its own."""

import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.manifest import read_manifest
from training.corpus.documents import DROPPED
from training.corpus.quality.classifier import MODEL, Classifier, checked_manifest
from training.corpus.quality.config import QualityConfig
from training.corpus.quality.examples import Origin, find_origins, unit_hash
from training.corpus.stage import Outcome, Shard, ShardStage, Work
from training.corpus.tables import Sieve

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig

SCORES = pa.schema([pa.field("id", pa.string(), nullable=False), ("score", pa.float32()), ("kept", pa.bool_())])
_CLASSIFIER, _EXAMPLES = "classifier", "examples"


def pareto_draw(alpha: float, seed: int, identity: str) -> float:
    """The document's own draw from numpy.random.pareto's distribution (Lomax): above x with (1 + x)^-alpha."""
    return float((1.0 - unit_hash(seed, "pareto", identity)) ** (-1.0 / alpha) - 1.0)


class Quality(ShardStage):
    """Keeps a document when its Pareto draw exceeds 1 - score (Brown et al. 2020, appendix A; alpha as MT-NLG's).

    Scores go to the side table `scores`. Datasets that are the positives go on unscored, and all do when there is
    neither a classifier nor positives to train one on.
    """

    name = "quality"

    def __init__(self, config: "CorpusConfig") -> None:
        self._config: QualityConfig = config.quality
        self._seed: int = config.seed
        names = [dataset.name for dataset in config.datasets]
        for dataset in config.datasets:
            if self.name in dataset.skip and dataset.name in self._config.positives:
                raise UserError(
                    f"quality.positives names {dataset.name}, which skips the stage: take quality out of its skip; "
                    "datasets that are positives are not scored"
                )
        self._positive_datasets = frozenset(names).intersection(self._config.positives)
        self._scored = frozenset(
            dataset.name
            for dataset in config.datasets
            if self.name not in dataset.skip and dataset.name not in self._positive_datasets
        )

    def identity(self) -> dict[str, Any]:
        """Settings, seed, datasets, the hashes of the positives' files and of a classifier that was given."""
        config = self._config
        if not config.positives and config.classifier is None:
            return {"scored": []}
        try:
            library = f"fasttext-numpy2-wheel {version('fasttext-numpy2-wheel')}"
        except PackageNotFoundError:
            raise UserError("fastText is not installed; install mtnlg[corpus]") from None
        about = {"alpha": config.alpha, "seed": self._seed, "scored": sorted(self._scored), "library": library}
        if config.classifier is not None:
            return about | {"classifier": checked_manifest(config.classifier).files[MODEL].sha256}
        files = [[origin.name, sha256_file(Path(origin.path))] for origin in self._named_files()]
        return about | {
            "training": config.training.model_dump(mode="json"),
            "positives": sorted(self._positive_datasets),
            "files": files,
        }

    def prepare(self, work: Work, scratch: Path) -> None:
        """Train the classifier, where positives are named. Raises UserError when there are too few documents."""
        if not self._config.positives or read_manifest(scratch / _CLASSIFIER) is not None:
            return
        from training.corpus.quality.train import train

        origins = self._named_files()
        for shard in work.shards:
            good = shard.dataset in self._positive_datasets
            origins.append(Origin(shard.dataset, shard.name, str(shard.path.absolute()), good))
        drawn = scratch / _EXAMPLES
        training = self._config.training
        train(scratch / _CLASSIFIER, drawn, origins, training, self._seed, work.engine.map, work.report)
        shutil.rmtree(drawn)

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        """Loads the classifier, where there is one."""
        if not self._config.positives and self._config.classifier is None:
            return _pass_on
        classifier = Classifier.load(self._config.classifier or scratch / _CLASSIFIER)
        return Scorer(classifier, self._scored, self._config.alpha, self._seed)

    def _named_files(self) -> list[Origin]:
        names = [name for name in self._config.positives if name not in self._positive_datasets]
        return [origin for name in names for origin in find_origins(name, good=True)]


class Scorer:
    """Scores and draws shard by shard."""

    def __init__(self, classifier: Classifier, datasets: frozenset[str], alpha: float, seed: int) -> None:
        self._classifier = classifier
        self._datasets = datasets
        self._alpha = alpha
        self._seed = seed

    def __call__(self, shard: Shard, table: pa.Table) -> Outcome:
        """`table` has the schema DOCUMENTS. Counts the scores by tenths."""
        if shard.dataset not in self._datasets:
            return _pass_on(shard, table)
        sieve, scores = Sieve(), []
        for batch in table.to_batches(max_chunksize=256):
            documents = batch.to_pylist()
            for document, score in zip(
                documents, self._classifier.scores([document["text"] for document in documents]), strict=True
            ):
                sieve.counts[f"score {min(9, int(score * 10)) / 10:.1f}"] += 1
                draw = pareto_draw(self._alpha, self._seed, document["id"])
                kept = draw > 1.0 - score
                if kept:
                    sieve.keep(document, document["text"])
                else:
                    detail = f"score {score:.3f}, draw {draw:.3f}"
                    sieve.drop(document, "low score", detail, document["text"])
                scores.append({"id": document["id"], "score": score, "kept": kept})
        return sieve.outcome({"scores": pa.Table.from_pylist(scores, schema=SCORES)})


def _pass_on(shard: Shard, table: pa.Table) -> Outcome:
    """All documents go on, unscored."""
    counts = {"kept": table.num_rows, "not scored": table.num_rows}
    return Outcome(documents=table, dropped=DROPPED.empty_table(), counts=counts)
