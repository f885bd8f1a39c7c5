"""The conversion of a training checkpoint, in a process of its own.

The server forks its engine: threads that torch computes with would not be there in the child, which would wait for them
for ever; and the memory that a conversion takes is given back.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from foundation.errors import UserError


def convert_apart(path: Path, format: str, tensor_parallel_size: int) -> Path | None:
    """`conversion.cached.cached_conversion`, which see. The process ends with this one, however that ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_convert, args=(theirs, path, format, tensor_parallel_size), name="conversion")
    process.start()
    theirs.close()
    try:
        folder: Path | UserError | None = ours.recv()
    except EOFError:
        process.join()
        raise UserError(
            f"the conversion of {path} broke off with status {process.exitcode}; the same command goes on with it"
        ) from None
    finally:
        process.terminate()  # it has answered, or Ctrl-C was pressed
        process.join()
        ours.close()
    if isinstance(folder, UserError):
        raise folder
    return folder


def _convert(connection: Connection, path: Path, format: str, tensor_parallel_size: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from conversion.cached import cached_conversion

    try:
        connection.send(cached_conversion(path, format, tensor_parallel_size))
    except UserError as error:
        connection.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
