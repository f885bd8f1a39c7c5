"""What a run tells: its progress on the terminal, what ran where, and how runs compare."""
