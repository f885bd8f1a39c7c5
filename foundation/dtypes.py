"""Floating-point formats, as options of the command line."""

from enum import Enum


class Dtype(str, Enum):
    """A format of weights, or of arithmetic."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
