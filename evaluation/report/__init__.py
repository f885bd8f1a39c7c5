"""A run folder as tables for every reader: Markdown, CSV, LaTeX, a page, and the terminal."""
