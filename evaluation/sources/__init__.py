"""Where a task's rows come from: a folder that the user names, the Hub, a registry package, or a generator.

lm-eval calls `open_task_data` for every task file in `evaluation/tasks`; plain lm-eval can name a folder
with `--metadata '{"data": "FOLDER"}'`. `catalogue.py` says which data a task has, `readers.py` reads them.
"""

from evaluation.sources.dataset import SplitSource, TaskDataset, open_task_data

__all__ = ["SplitSource", "TaskDataset", "open_task_data"]
