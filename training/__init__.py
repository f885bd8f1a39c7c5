"""Pretraining: documents to tokens, the GPT and its table of tensors, 3D parallelism, the loop."""
