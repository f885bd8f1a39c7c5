"""Two runs side by side, document by document."""
