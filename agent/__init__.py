"""The tool that has kernels written, judged, kept, reviewed and compared.

In the order of imports: each stands on those above it alone, which `lint-imports` checks.

    errors.py     what stops a command, with its exit code and what to do next
    files.py      writing whole files or none;  records.py  the judge's words: `Status`, `GateRecord`, `Verdict`
    settings.py   what a user sets once: flags, variables, configuration files
    task.py       what a kernel must compute;  tasks/  the bank, one file per task
    verify/       the judge: knows neither models nor prompts
    llm/          asking a language model, whoever answers;  recordings/  the bundled answers
    prompting/    what a model is told: guide, examples, task, feedback
    runs/         what happens in a run, and the folder that it is recorded in
    keeping/      what becomes of a passing kernel: kept, reviewed, promoted, compared
    authoring/    the loop: prompt → model → candidate → judge → feedback
    commands/     the commands of `cli.py`, and how they speak
"""
