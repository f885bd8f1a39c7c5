"""The GPT: its configuration, its table of tensors, and layers that know tensor slicing."""
