"""Tasks, scoring, and the grid of tasks and numbers of shots."""
