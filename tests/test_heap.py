"""What the garbage collector is kept from."""

import gc
import weakref

from foundation.heap import few_collections, set_heap_aside


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_collections_are_rare_within_and_as_before_after() -> None:
    before = gc.get_threshold()
    with few_collections():
        collections = gc.get_stats()[0]["collections"]
        kept = [[number] for number in range(20_000)]
        assert gc.get_stats()[0]["collections"] == collections
    assert gc.get_threshold() == before
    assert len(kept) == 20_000


def test_what_was_set_aside_is_looked_at_only_anew() -> None:
    gc.disable()  # no collection of its own meanwhile
    garbage = weakref.ref(Cycle())
    try:
        set_heap_aside()
        gc.collect()
        assert garbage() is not None
        set_heap_aside(anew=True)
        assert garbage() is None
    finally:
        gc.enable()
        gc.unfreeze()
