"""What computes log-likelihoods, each shared prefix once: transformers, vLLM, or a server."""
