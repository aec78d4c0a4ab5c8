"""Having a kernel written: prompt → model → candidate → judge → feedback, until the goal, a limit or Ctrl-C.

Modules, in the order in which they build on each other:

    budget.py      limits, and what was spent; asked before every call
    policy.py      what comes next, as a function of reply and verdict
    starting.py    a kept kernel that a run begins with: what is said of it, and which will not do
    prepare.py     the prompt of a task, and its run folder
    loop.py        drives a run to its end, or goes on with one
    decisions.py   derives the decisions of a recorded run again

What is recorded lies in `agent.runs`, what a model reads is made in `agent.prompting`, what passes goes to `agent.keeping`.
"""
