"""The judge: is a candidate right, does it run, is it fast? It knows neither who wrote the candidate nor how.

In the order in which a candidate meets them, each gate with what it stands on:

    vocabulary.py      what a kernel file may name
    static_rules.py    rules on the syntax tree
    identity.py        what a word depends on, as digests
    static.py          gate `static`: reads the text, runs nothing
    wire.py            strict documents across a process border;  plain.py  text that is safe to show and to store
    blame.py           whose fault an exception is: the candidate's, the task's or the machine's
    process.py         a child under limits;  supervise.py  its watchdog;  confine.py  what a candidate's process gives up
    trace_child.py     the throw-away process that runs a candidate's Python once
    tracer.py          gate `trace`: source in, program out
    worker.py          our own functions in processes of their own; health of the GPU
    inputs.py          every draw and distribution, from the run's seed
    sizes.py           visible and hidden sizes
    subject.py         a traced program beside its task; does the interface match?
    patterns.py        what a wrong result looks like
    branches.py        which ways through a program were taken;  probes.py  inputs that no distribution draws, to take the others
    algebra.py         gate `algebra`: the formula, in fp64 on a CPU
    runner.py          a program on a backend, in the judge's own buffers
    compile.py         gate `compile`: a kernel for the target, and its resources
    numerics.py        gate `numerics`: as right as eager, written completely, repeatable
    tuning.py          a program's schedules by measurement, the author's among them
    floors.py          what a task costs, whoever computes it
    entrants.py        what races: kernels, peers, ceilings;  racing.py  times it and says the word
    bench.py           gate `bench`: against every peer, on a GPU
    suite.py           many kernels on many shapes, in waves;  bench_worker.py  its process;  journal.py  who killed it
    judge.py           all gates in order -> `Verdict`
    feedback.py        verdict -> what an author may know
    lint.py            is a task able to refuse wrong kernels?
    exploits.py        known cheats and honest controls; hidden_branches.py those that wait for a value, faults.py of machines
    selftest.py        runs them through the judge
"""
