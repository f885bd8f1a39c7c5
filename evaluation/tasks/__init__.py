"""Task files of lm-eval 0.4 with this project's data; the prompts of lm-eval's own tasks, where it has them."""
