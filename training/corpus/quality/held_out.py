"""How well a classifier does on documents that it was not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """Held-out documents' scores with what follows from them. `thresholds` fall; recall rises along them."""

    documents: int
    accuracy: float  # a score of 0.5 or more is taken for good
    average_precision: float
    thresholds: Numbers
    precision: Numbers
    recall: Numbers

    def as_json(self) -> dict[str, Any]:
        """The numbers, without the curve."""
        return {
            "documents": self.documents,
            "accuracy": round(self.accuracy, 6),
            "average_precision": round(self.average_precision, 6),
        }


def measure(good: Sequence[bool], scores: Sequence[float]) -> HeldOut:
    """Accuracy, and precision and recall at every score that occurs; average precision is the sum over them of
    precision times the gain in recall.

    Raises ValueError when there is no positive among them.
    """
    labels, values = np.array(good, dtype=bool), np.array(scores, dtype=np.float64)
    if not labels.any():
        raise ValueError("no positive among the held-out documents")
    order = np.argsort(-values, kind="stable")
    labels_by_score, falling = labels[order], values[order]
    # Documents of one score are above a threshold together: a point at the last of each.
    last = np.append(np.flatnonzero(np.diff(falling)), len(falling) - 1)
    found = np.cumsum(labels_by_score)[last]
    precision, recall = found / (last + 1), found / labels.sum()
    gains = np.diff(recall, prepend=0.0)
    return HeldOut(
        documents=len(labels),
        accuracy=float(((values >= 0.5) == labels).mean()),
        average_precision=float((gains * precision).sum()),
        thresholds=falling[last],
        precision=precision,
        recall=recall,
    )


def draw(held_out: HeldOut, path: Path) -> None:
    """The precision-recall curve as a PNG, the same bytes for the same numbers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.step([0.0, *held_out.recall], [held_out.precision[0], *held_out.precision], where="pre", color="#2f6db5")
    place = int(np.searchsorted(-held_out.thresholds, -0.5, side="right")) - 1
    if place >= 0:
        recall, precision = held_out.recall[place], held_out.precision[place]
        axes.plot([recall], [precision], "o", color="#c4452f", label=f"score 0.5: {precision:.3f} at {recall:.3f}")
        axes.legend(loc="lower left", frameon=False)
    axes.set(xlabel="Recall", ylabel="Precision", xlim=(0, 1.01), ylim=(0, 1.02))
    axes.set_title(
        f"{held_out.documents:,} held-out documents: accuracy {held_out.accuracy:.3f}, "
        f"average precision {held_out.average_precision:.3f}",
        fontsize=9,
    )
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})
