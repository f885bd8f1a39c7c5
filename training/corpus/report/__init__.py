"""A corpus folder as one page: what came in, what each stage took out, and what is left."""
