"""The leaderboard's page: self-contained, whole without a script, harmless whatever others wrote, and drawn by a real browser where there
is one."""

from __future__ import annotations

import functools
import html
import json
import re
import resource
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import authoring_support as authoring
import board_support as support
import pytest

import authored_kernels
from agent.keeping import board_page, campaigns, charts, duels, leaderboard, measured
from agent.keeping.measured import Measurements

pytestmark = pytest.mark.null

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
VOID = {"meta", "link", "br", "hr", "img", "input", "circle", "rect", "path", "line"}


class Page(HTMLParser):
    """Structure of a page; unbalanced tags raise."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section filled."""
    folder = tmp_path_factory.mktemp("board")
    support.populate(folder / "kept")
    done = authoring.author(folder, [authoring.reply("trace COMPILE_ERROR"), authoring.reply("PASS")])
    campaigns.collect([done.run.folder], folder / "kept" / campaigns.FOLDER, campaign="trial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "of_example", lambda digest: Measurements())
        board = leaderboard.build([folder / "kept"])
    path = folder / "out.html"
    path.write_text(board_page.html(board), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


def test_it_parses_its_ids_are_unique_and_every_reference_leads_somewhere(text: str) -> None:
    page = Page(text)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    wanted = {attrs["href"][1:] for attrs in page.of("a")}
    wanted |= {name for _, attrs in page.tags for name in attrs.get("aria-labelledby", "").split()}
    assert wanted <= set(ids)
    assert set(dict(board_page.SECTIONS)) <= {attrs.get("id") for attrs in page.of("section")}


def stands_alone(text: str) -> None:
    """Nothing in it is fetched from anywhere: no element, attribute, style or script can ask for another file."""
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object", "embed", "base", "form")]
    assert not [attrs for _, attrs in page.tags if {"src", "srcset", "action", "data", "xlink:href"} & attrs.keys()]
    assert all(attrs["href"].startswith("#") for _, attrs in page.tags if "href" in attrs)
    assert not re.findall(r"(?i)https?:|//[a-z0-9.]+/|url\(|@import|fetch\(|XMLHttpRequest|import\(|sendBeacon", text)


def test_it_needs_no_network(text: str) -> None:
    stands_alone(text)


@pytest.mark.parametrize(
    "added",
    [
        '<link rel="stylesheet" href="https://x.example/a.css">',
        '<script src="a.js"></script>',
        '<img src="a.png">',
        "<style>p { background: url(a.png) }</style>",
        '<a href="a.html">a</a>',
        '<svg><use href="a.svg#b"></use></svg>',
    ],
)
def test_what_would_need_one_is_noticed(text: str, added: str) -> None:
    with pytest.raises(AssertionError):
        stands_alone(text.replace("</body>", f"{added}</body>"))


def test_the_page_of_the_committed_records_stands_alone_and_is_built_in_time(tmp_path: Path) -> None:
    """As a person builds it, in a process of its own: every kernel of the checkout, every record."""
    command = [sys.executable, "-c", "import cli; cli.main()", "compare", "--all", "--html", str(tmp_path / "out.html")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 30, "seconds of one processor, whatever else runs on this machine"
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    stands_alone(text)
    known = {entry.task for entry in authored_kernels.catalog()}
    assert known
    assert all(f">{task}<" in text for task in known)


def test_every_picture_has_a_title_and_every_table_can_be_scrolled_by_keyboard(text: str) -> None:
    page = Page(text)
    pictures = [attrs for attrs in page.of("svg") if "aria-hidden" not in attrs]
    assert len(pictures) == 18 + 1 + 1  # bars, roofline, overhead
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in pictures)
    regions = [attrs for _, attrs in page.tags if attrs.get("class") == "scroll"]
    assert len(regions) == len(page.of("table"))
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in regions)
    assert page.of("html")[0]["lang"] == "en"


def test_losses_are_as_plain_as_wins(text: str) -> None:
    shown = html.unescape(re.sub(r"<[^>]+>", "|", text))
    assert "human faster than LLM, ×1.284" in shown  # rms_swiglu
    assert "LLM faster than human, ×1.066" in shown  # swiglu_backward
    assert "LLM and human: no difference" in shown
    assert "LLM 3, human 2" in shown
    assert "rms_swiglu: quack at 4096, ×0.779 of the time" in shown
    tones = [attrs["class"] for attrs in Page(text).of("span") if attrs.get("class") in ("win", "loss")]
    assert tones.count("win") == 9 + 12 + 1  # against people, against torch.compile, and the run that passed
    assert tones.count("loss") == 6 + 3


def test_without_any_record_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "of_example", lambda digest: Measurements())
    found = board_page.html(leaderboard.build([tmp_path]))
    Page(found)
    for said in ("No times: no record", "Nothing was measured.", "no authoring run was collected"):
        assert said in found


def test_what_others_wrote_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "of_example", lambda digest: Measurements())
    evil = '<script>alert(1)</script>"onload="x'
    record = support.record(
        "gemm_rope", support.digest_of("rms_rope"), {"triton": 100.0, "quack": 90.0}, absent={"liger": evil}
    )
    support.keep_as(tmp_path, "gemm_rope", program="rms_rope", model=evil, name="evil", records=[record])
    found = board_page.html(leaderboard.build([tmp_path]))
    Page(found)
    assert found.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in found


# geometry -------------------------------------------------------------------------------------------------------------


@functools.cache
def _rows() -> tuple[duels.Row, ...]:
    from agent.keeping.compare import Subject

    found = []
    for size, dims in support.SIZES.items():
        times = {"triton": 100.0, "quack": 90.0, "compile": 300.0, "cublas": 80.0}
        (record,) = measured.records([support.record("rms_scale", "1" * 64, times, dims=dims)])
        assert not isinstance(record, str)
        kept = Subject("rms_scale/m", "rms_scale", "llm", "m", "1" * 64, Measurements((record,)))
        found += [row for row in duels.rows_of("rms_scale", [kept], None) if row.size == size]
    return tuple(found)


def test_bars_start_at_zero_and_stay_inside() -> None:
    picture = charts.bars(_rows()[0], "x")
    by_side = {bar.side: bar for bar in picture.bars}
    assert by_side["compile"].width / by_side["llm"].width == pytest.approx(3.0, abs=0.01)
    assert all(bar.low <= picture.left + bar.width <= bar.high for bar in picture.bars)
    assert all(picture.left <= bar.high <= bar.text < charts.WIDTH - 50 for bar in picture.bars)
    assert (picture.floor - picture.left) / by_side["llm"].width == pytest.approx(0.8, abs=0.01)


def test_the_roof_is_above_every_point_and_everything_is_inside() -> None:
    (picture,) = charts.rooflines(_rows())
    highest = min(y for _, y in picture.roof)
    for point in picture.points:
        assert picture.left <= point.x <= picture.right
        assert highest <= point.y <= picture.bottom
    assert len(picture.xs) >= 2
    assert len(picture.ys) >= 3


def test_overheads_share_one_axis_and_are_cut_at_the_edge() -> None:
    (picture,) = charts.overheads(_rows())
    assert picture.sizes == ("4096", "8192", "M = 512")
    (line,) = picture.lines
    assert [p.kind for p in line.points] == ["0", "1", "2"]
    assert all(picture.left <= p.x <= picture.right for p in line.points)
    assert "×1.250 of cuBLAS" in line.points[0].title


# in a browser ---------------------------------------------------------------------------------------------------------

PROBE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg") &&
    !e.classList.contains("skip") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5);
  const button = [...document.querySelectorAll("#table th button")].find(b => b.textContent === "human ÷ LLM");
  button.click();
  const column = [...button.closest("tr").cells].indexOf(button.closest("th"));
  parent.postMessage(JSON.stringify({
    inner: innerWidth, scroll: document.documentElement.scrollWidth, wide: wide.map(e => e.tagName + "." + e.className),
    sections: [...document.querySelectorAll("section")].map(s => [s.id, s.getBoundingClientRect().height]),
    paper: getComputedStyle(document.body).backgroundColor,
    sorted: [...document.querySelectorAll("#table tbody tr")].map(r => r.cells[column].dataset.key),
  }), "*");
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_every_section_without_overflow(text: str, tmp_path: Path, width: int, dark: bool) -> None:
    """In a frame of that width: a browser's own window has a least width that is larger than a phone's."""
    (tmp_path / "page.html").write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    frame = (
        f'<body><pre id="told"></pre><iframe src="page.html" width="{width}" height="900"></iframe><script>'
        'addEventListener("message", e => { document.getElementById("told").textContent = e.data; });</script></body>'
    )
    (tmp_path / "frame.html").write_text(frame, encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", *scheme,
            "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told is not None
    assert told[1], done.stderr[-2000:]
    seen = json.loads(html.unescape(told[1]))
    assert seen["inner"] == width
    assert seen["scroll"] <= width
    assert seen["wide"] == []
    assert [name for name, _ in seen["sections"]] == [name for name, _ in board_page.SECTIONS]
    assert all(height > 40 for _, height in seen["sections"])
    numbers = [float(key) for key in seen["sorted"] if key]
    assert len(numbers) == 18
    assert numbers == sorted(numbers)
    assert (sum(map(int, re.findall(r"\d+", seen["paper"])[:3])) < 200) is dark
