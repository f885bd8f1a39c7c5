"""The names of the folder formats that rooms hand to each other, as their manifests carry them."""

TOKENS = "mtnlg-tokens"
TRAINING = "mtnlg-training-checkpoint"
HF = "mtnlg-hf"
VLLM = "mtnlg-vllm-sharded"
MEGATRON = "megatron-classic"
