"""Benchmarks, each with the bars it is held to: `python -m benchmarks.NAME --help`."""

import benchmarks.bare_image  # noqa: F401 - before any import of the model
