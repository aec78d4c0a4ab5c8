"""What happens in a run, and the folder in which it stays: `agent.authoring` writes it, `agent.keeping` reads it.

events.py   everything that can happen, the decisions, and the last word, as records
store.py    the run folder: asked, answered, judged, decided; what `--llm replay:RUN` plays
"""
