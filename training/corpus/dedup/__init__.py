"""Documents that say the same: MinHash, bands, exact Jaccard on candidates, components, one kept of each."""
