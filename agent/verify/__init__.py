"""The judge. Gates in order: static, trace, algebra, compile, numerics, bench; each file says what it passes and why.

Processes and what crosses their borders, in dependency order (nothing here knows a model or a prompt):

    wire.py             strict JSON between processes
    supervise.py        the watchdog process: one program from its start to the last of its descendants
    process.py          start, limit, drain, kill: the only file that starts processes
    vocabulary.py       what a kernel file may name
    static_rules.py     the rules on the syntax tree
    static.py           gate `static`, and the table of all rules
    confine.py          what the tracing process gives up before the candidate runs
    trace_child.py      the tracing process
    tracer.py           gate `trace`
    worker.py           our own functions in processes of their own; health of the GPU
"""
