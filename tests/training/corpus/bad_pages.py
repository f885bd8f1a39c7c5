"""A function of pages that does what the page says: for tests of what becomes of bad ones."""

import ctypes
import os
import re
import sys
import time
from collections.abc import Callable


def obedient(greeting: str) -> Callable[[bytes], str]:
    """Makes the function; other pages come back behind the greeting."""

    def obey(page: bytes) -> str:
        order = page.decode()
        if order == "compute":
            # A regular expression that takes ages, in C code that holds the interpreter.
            return str(re.match(r"(a+)+$", "a" * 60 + "b"))
        if order == "sleep":
            time.sleep(600)
        if order == "crash":
            return str(ctypes.string_at(0))
        if order == "exit":
            os._exit(3)
        if order == "remember":
            return str(len(bytearray(1 << 40)))
        if order == "raise":
            raise ValueError("not a page\nat all")
        if order == "surrogate":
            return "half a \ud83d pair"
        if order == "print":
            os.write(1, b"noise")
            print("noise", flush=True)
        if order == "process":
            return f"{os.getpid()} {sys.executable}"
        return f"{greeting}, {order}"

    return obey


def resiliparse() -> Callable[[bytes], str]:
    """In the place of an extractor that takes no options."""
    return obedient("extracted")


def wrong_options() -> None:
    """Takes none."""
    raise ValueError("no stop words for Klingon")
