"""What Python's garbage collector need not look at, again and again, for nothing."""

import contextlib
import gc
from collections.abc import Iterator

_MANY_OBJECTS = 100_000


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Look for garbage rarely: libraries that are loaded meanwhile make a million objects, and all of them stay.

    Not for what makes cycles of large things, whose memory would be given back late.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def set_heap_aside(*, anew: bool = False) -> None:
    """Keep all that was made so far out of later collections, those at the process's end among them.

    `anew` collects first, also what was set aside before and is garbage by now.
    """
    if anew:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
