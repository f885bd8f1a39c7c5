"""Casting weights to another floating-point format, keeping count of what no longer fits."""

import torch


class Cast:
    """Casting to `dtype`; `overflows` counts, by tensor, finite values that became infinite."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.overflows: dict[str, int] = {}

    def count_overflows(self, name: str, before: torch.Tensor, after: torch.Tensor) -> None:
        """Note the values that were finite before the cast and are not after it."""
        if before.dtype != after.dtype:
            overflows = int((after.isinf() & before.isfinite()).sum())
            if overflows:
                self.overflows[name] = self.overflows.get(name, 0) + overflows

    def warning(self) -> str | None:
        """One line on what overflowed, or None."""
        if not self.overflows:
            return None
        worst = max(self.overflows, key=lambda name: self.overflows[name])
        count, name = sum(self.overflows.values()), dtype_name(self.dtype)
        return (
            f"{count} finite values in {len(self.overflows)} tensors overflow {name} and are infinite now, "
            f"most in {worst}; bfloat16 has float32's range"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")
