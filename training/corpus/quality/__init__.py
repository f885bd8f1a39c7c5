"""Stage 4: a fastText classifier scores documents, which are kept by chance, the better the likelier."""
