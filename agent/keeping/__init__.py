"""What becomes of a passing kernel: kept, reviewed afresh, promoted by a person, compared with others.

Modules, in the order in which they build on each other:

    keep.py         writes a kernel's folder from the evidence of a run
    shelves.py      finds a kernel that a person names, and reads its folder
    measured.py     what was timed of it, wherever that was recorded
    scheduled.py    a schedule in few letters, and what a record says of its own
    ratios.py       which record counts, and ratios within a run and between two
    benchmarks.py   sweeps over many kernels: which, at which sizes, what is known already, where records go
    layers.py       whole layers: a run on this GPU, its record, the table
    layer_race.py   the process of such a run: contestants, their check against fp64, the race
    results.py      the documents' tables of tasks, and of what was measured of the curated examples
    aims.py         what the kernels are held to, and the worst that was measured of it
    reviews.py      the record of a review
    packet.py       what a reviewer reads: REVIEW.md and review.html, from templates/
    review.py       judges it again from scratch, and writes both
    promote.py      a named person vouches for it, inside an envelope
    compare.py      kernels side by side, with what was measured and what was not
    campaigns.py    authoring runs as small committed records
    absences.py     what was not measured, put together by reason
    duels.py        who is how fast at one task and size, by side
    leaderboard.py  all of that over the whole bank, and the tables of the documents
    charts.py       the geometry of its pictures
    board_page.py   its page, self-contained, from templates/
    reverify.py     proves every curated and kept kernel again

The folders themselves are the package `authored_kernels`, which imports nothing of the tool.
"""
