"""A schedule in few letters, and what a record says of it."""

from __future__ import annotations

from typing import Any

import board_support as support
import pytest

from agent.keeping import board_page, compare, leaderboard, measured
from agent.keeping.measured import Measurements
from agent.keeping.scheduled import short, told
from coda.bench.record import BenchRecord
from coda.problem import Schedule

pytestmark = pytest.mark.null

TIMES = {"cutedsl": 100.0, "quack": 110.0, "cublas": 90.0}
PP = Schedule(backend="cutedsl", tile_n=192, cluster_m=2, pingpong=True).to_dict()


def plain(config: dict[str, Any], origin: str = "", digest: str = "") -> dict[str, Any]:
    made = support.record("gemm_rope", digest or support.digest_of("rms_rope"), TIMES)
    made["measured"][0] |= {"config": config, **({"origin": origin} if origin else {})}
    return made


def record(config: dict[str, Any], origin: str = "") -> BenchRecord:
    (found,) = measured.records(plain(config, origin))
    assert isinstance(found, BenchRecord), found
    return found


def test_a_schedule_in_few_words() -> None:
    assert short(Schedule()) == "128×128×64"
    assert short(Schedule(tile_n=256, split=4, persistent=False)) == "128×256×64 grid e4"
    assert short(Schedule(backend="cutedsl", pingpong=True, cluster_m=2)) == "128×128×64 cm2 pp"


@pytest.mark.parametrize(
    ("config", "origin", "said"),
    [
        ({"f": PP}, "tuned", "cutedsl 128×192×64 cm2 pp, tuned"),
        ({"f": PP}, "", "cutedsl 128×192×64 cm2 pp"),  # as older records have it
        ({"f": PP, "g": PP}, "shipped", "cutedsl 128×192×64 cm2 pp, shipped"),
        (
            {"f": PP, "g": Schedule().to_dict()},
            "partly tuned",
            "f cutedsl 128×192×64 cm2 pp; g triton 128×128×64, partly tuned",
        ),
        ({}, "", ""),
        ({"f": {**PP, "waves": 3}}, "tuned", "cutedsl (of another version), tuned"),
        ({"f": 7}, "", "a schedule that cannot be read"),
    ],
)
def test_a_record_says_what_its_kernel_ran_with(config: dict[str, Any], origin: str, said: str) -> None:
    assert told(record(config, origin)) == said


def test_tables_and_the_page_show_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    support.keep_as(tmp_path, "gemm_rope", program="rms_rope", records=[plain({"f": PP}, "tuned")])
    found = compare.gather(["gemm_rope/model-x"], folders=[tmp_path], runs=tmp_path / "runs")
    rows = [row for row in compare.compare(found).rows if row.kernel == "gemm_rope/model-x"]
    assert [row.schedule for row in rows] == ["cutedsl 128×192×64 cm2 pp, tuned"]
    monkeypatch.setattr(measured, "of_example", lambda digest: Measurements())
    board = leaderboard.build([tmp_path])
    (row,) = board.rows
    assert row.times["llm"].schedule == "cutedsl 128×192×64 cm2 pp, tuned"
    assert row.times["human"].schedule == ""
    assert board.to_dict()["rows"][0]["times"]["llm"]["schedule"] == "cutedsl 128×192×64 cm2 pp, tuned"
    cells = board_page._cells(board, row)
    assert cells[board_page.COLUMNS.index("schedule")].text == "cutedsl 128×192×64 cm2 pp, tuned"
    assert "cutedsl 128×192×64 cm2 pp, tuned" in board_page.html(board)
