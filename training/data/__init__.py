"""Documents to tokens to samples: sources, GPT-2's BPE, Megatron indexes, and their order."""
