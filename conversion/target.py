"""What a conversion writes, whatever the format: files of tensors, and what lies beside them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.plan import OutputFile, OutputTensor


@dataclass(frozen=True)
class Target:
    """A format, its files, what its manifest says of it, and how to write what is not a tensor."""

    format: str
    description: str
    files: tuple[OutputFile, ...]
    about: Mapping[str, Any]
    write_beside: Callable[[Path], None]


def groups_under(tensors: Sequence[OutputTensor], limit: int) -> list[list[OutputTensor]]:
    """The tensors in order, in groups of at most `limit` bytes, or of one tensor."""
    groups: list[list[OutputTensor]] = [[]]
    held = 0
    for tensor in tensors:
        if groups[-1] and held + tensor.size > limit:
            groups.append([])
            held = 0
        groups[-1].append(tensor)
        held += tensor.size
    return groups


def parse_size(text: str) -> int:
    """Bytes of `5GB`, `500MB`, `2GiB` or a plain number. Raises ValueError."""
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    number = "".join(itertools.takewhile(lambda character: character.isdigit() or character == ".", text.strip()))
    unit = text.strip()[len(number) :].strip().upper()
    if not number or unit not in units or float(number) <= 0:
        raise ValueError(f"{text!r} is not a size; write 5GB, 500MB or a number of bytes")
    return int(float(number) * units[unit])
