"""Where ranks sit (layout, process groups) and the collectives of tensor slicing."""
