"""The task bank: one file per task, named after its id, each with a `TASK`. See `agent/task.py`."""
