"""What the C library does with memory that torch frees on a CPU."""

import ctypes
import sys

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Up to here a block comes from the heap; the largest temporaries of a step on a laptop are below it.
_LARGEST_BLOCK = 64 << 20


def keep_freed_memory() -> None:
    """From now on keep what is freed for the next step, instead of giving it back to the kernel.

    By default glibc maps every large tensor anew, and the kernel's zeroing of its pages, 4 KiB at a time, takes a
    quarter of a training step. Call it when what stays is allocated, so that it does not lie between what comes and
    goes. Does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, -1)
