"""What a model is told: a pure function of task, examples and feedback.

Modules, in the order in which they build on each other:

    vocabulary.py   the primitives and the schedule, generated from `coda`
    frame.py        M and N of a task, and what it gives
    needs.py        primitives and idioms that a task needs, and that an example teaches
    bank.py         which curated examples are shown, and which are withheld
    quoting.py      somebody else's words, fenced so that they cannot end the quotation
    feedback.py     what an author is told about its last reply, as records
    outcome.py      a verdict as such feedback; nothing that the judge keeps to itself
    prompt.py       all of it as a `Request`
    templates/      the words: guide, task, feedback, mistakes, skeletons; `VERSION` is recorded in every run
"""
