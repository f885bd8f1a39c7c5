"""Task files of lm-eval 0.4, with the prompts of its own tasks of the same names and this project's data."""
