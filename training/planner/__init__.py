"""What a run takes, on paper: FLOPs, parameters and memory of each rank, and which rank sits where. No torch."""
