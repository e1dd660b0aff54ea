"""Facts: a mouse does everything on the page, wrong input is said where it was typed, and nothing leaves."""

import re
import runpy
from pathlib import Path

import pytest
from browser import Browser

import decrescendo as dc
from decrescendo.plans import Plan
from decrescendo.studio.settings import read
from decrescendo.training import Store
from decrescendo.training.run import Run

from .conftest import Open
from .test_server import FORM

pytestmark = pytest.mark.browser

SETTLED = "!document.body.classList.contains('stale') && document.querySelector('#promise').textContent !== ''"
CERTIFIED = "document.querySelector('#status').textContent === 'certified'"
SMALL = {"dataset_size": "1000", "batch": "100", "steps": "30"}


def shown(browser: Browser, selector: str) -> str:
    return browser.value(f"document.querySelector({selector!r}).textContent")


def start(browser: Browser, url: str, *, wide: int = 1400) -> None:
    """The page with a plan small enough for a test."""
    browser.size(wide)
    browser.go(url)
    for name, text in SMALL.items():
        browser.type(f"#{name}", text)
    browser.until(f"{SETTLED} && document.querySelector('#figures').innerText.includes('30')")


def moved(browser: Browser, before: str) -> None:
    browser.until(f"{SETTLED} && document.querySelector('#figures').textContent !== {before!r}")


def faultless(browser: Browser, url: str) -> None:
    """Nothing was asked of anybody but the studio, and nothing went wrong in the page."""
    assert all(asked.startswith((url, "blob:", "data:", "about:")) for asked in browser.requested)
    assert not [line for line in browser.complaints if "422" not in line]
    assert browser.value("document.cookie") == ""
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")


def test_every_control_moves_the_plan(opened: Open, browser: Browser) -> None:
    studio = opened()
    start(browser, studio.url)
    for name in (
        "epsilon",
        "delta",
        "dataset_size",
        "batch",
        "steps",
        "noise_fall",
        "clip_start",
        "clip_fall",
    ):
        before, value = shown(browser, "#figures"), browser.value(f"document.querySelector('#{name}').value")
        at = browser.value(f"document.querySelector('[data-field={name}] input[type=range]').value / 1000")
        up = name == "dataset_size" or at < 0.5
        browser.drag(
            f"[data-field={name}] input[type=range]",
            0.02 + 0.96 * at,
            0.02 + 0.96 * (at + (0.06 if up else -0.06)),
        )
        moved(browser, before)
        assert browser.value(f"document.querySelector('#{name}').value") != value, name
    for kind, shapes in (
        ("noise", ("linear", "cosine", "optimal", "constant", "hand")),
        ("clip", ("linear", "cosine", "constant", "hand")),
    ):
        for shape in shapes:
            before = shown(browser, "#figures")
            browser.choose(f"#{kind}", shape)
            moved(browser, before)
        before = shown(browser, "#figures")
        browser.drag(f"[data-hand={kind}] label:nth-child(2) input", 0.5, 0.1, upright=True)
        moved(browser, before)
    for shape in ("linear", "exponential"):
        before = shown(browser, "#figures")
        browser.choose("#batches", shape)
        browser.type("#batch_end", "300")
        moved(browser, before)
        assert "→ 300" in shown(browser, "#charts")
    browser.choose("#batches", "constant")
    for shape, words in (("auto", "Batches are truncated to"), ("hand", "100,000 examples at most")):
        browser.choose("#cap", shape)
        if shape == "hand":
            browser.type("#max_batch_size", "100000")
        browser.until(f"{SETTLED} && document.querySelector('main').textContent.includes({words!r})")
    browser.choose("#cap", "any")
    browser.choose("#unit", "person")
    browser.until(
        f"{SETTLED} && document.querySelector('#promise').textContent.includes('per person with at most 2 examples')"
    )
    browser.choose("#unit", "client")
    browser.until(f"{SETTLED} && document.querySelector('#promise').textContent.includes('per client')")
    browser.until(CERTIFIED)
    assert browser.value("document.querySelectorAll('#charts svg').length") == 5
    assert "Central limit theorem" in shown(browser, "#claims")
    at = browser.place("#charts svg", 0.6, 0.5)
    browser.mouse("mouseMoved", at)
    assert re.match(r"step \d+: [\d.]+", shown(browser, "#charts small"))
    faultless(browser, studio.url)


def test_from_the_page_to_saved_files_by_mouse_alone(opened: Open, browser: Browser, tmp_path: Path) -> None:
    studio = opened()
    start(browser, studio.url)
    for i, name in enumerate(("plan.json", "train.py", "statement.md"), start=1):
        browser.until(SETTLED)
        browser.click(f"#files button:nth-child({i})")
        for _ in range(200):
            if (tmp_path / name).exists():
                break
            browser.until("true")
            browser.value("new Promise(done => setTimeout(done, 50))")
    plan = Plan.load(tmp_path / "plan.json")
    assert (plan.steps, plan.budget.epsilon) == (30, 2)
    assert str(plan.guarantee) == shown(browser, "#promise")
    made = runpy.run_path(str(tmp_path / "train.py"), run_name="looked_at")
    assert made["plan"]() == plan
    assert made["task"]().count == 1000
    assert "nothing was trained yet" in (tmp_path / "statement.md").read_text(encoding="utf-8")
    faultless(browser, studio.url)


def test_what_the_controls_do_not_say_is_not_saved(opened: Open, browser: Browser, tmp_path: Path) -> None:
    studio = opened()
    start(browser, studio.url, wide=400)
    browser.until(CERTIFIED)
    disabled = "[...document.querySelectorAll('#files button')].map(button => button.disabled)"
    assert browser.value(disabled) == [False] * 3
    brief = "getComputedStyle(document.querySelector('#brief'), '::before').content"
    browser.type("#epsilon", "-1")
    browser.until("!document.querySelector('#error').hidden")
    assert browser.value(disabled) == [True] * 3
    browser.click("#files button")
    browser.type("#epsilon", "1")
    assert browser.value(disabled) == [True] * 3
    assert "computing" in browser.value(brief)
    browser.click("#files button")
    browser.until(f"{SETTLED} && document.querySelector('#promise').textContent.startsWith('(1, ')")
    assert not list(tmp_path.glob("plan*"))
    # Back to what is shown before anything was asked: nothing is computing, and nothing is waited for.
    browser.until(CERTIFIED)
    browser.value(
        "for (const text of ['3', '1']) { const e = document.querySelector('#epsilon'); e.value = text;"
        "e.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    browser.until(f"{SETTLED} && {CERTIFIED}")
    browser.click("#files button")
    browser.until("true")
    for _ in range(200):
        if (tmp_path / "plan.json").exists():
            break
        browser.value("new Promise(done => setTimeout(done, 50))")
    assert Plan.load(tmp_path / "plan.json").budget.epsilon == 1
    faultless(browser, studio.url)


def test_an_answer_that_comes_late_is_not_saved(opened: Open, browser: Browser) -> None:
    """A control that moves while a plan is computed: that plan is shown when it comes, and is not what is asked for."""
    studio = opened()
    start(browser, studio.url)
    browser.until(CERTIFIED)
    browser.value(
        "window.held = []; const sent = window.fetch; window.fetch = async (to, ...rest) => {"
        "if (to === 'api/plan') await new Promise(done => held.push(done)); return sent(to, ...rest); }; true"
    )
    browser.type("#epsilon", "1")
    browser.until("held.length === 1")
    browser.type("#epsilon", "3")
    browser.value("held[0](), true")
    browser.until("document.querySelector('#promise').textContent.startsWith('(1, ') && held.length === 2")
    assert browser.value("[...document.querySelectorAll('#files button')].every(button => button.disabled)")
    browser.until("document.querySelector('#status').textContent.trim() === 'computing …'")
    browser.value("held[1](), true")
    browser.until(f"{SETTLED} && document.querySelector('#promise').textContent.startsWith('(3, ')")
    assert not browser.value("document.querySelector('#files button').disabled")
    faultless(browser, studio.url)


def test_two_plans_side_by_side(opened: Open, browser: Browser) -> None:
    studio = opened()
    start(browser, studio.url)
    browser.until(CERTIFIED)
    browser.click("#keep")
    browser.until("document.querySelectorAll('svg .b').length === 5")
    browser.type("#epsilon", "1")
    browser.until("document.querySelector('#promise').textContent.startsWith('(1, ') && " + CERTIFIED)
    heads = browser.value("[...document.querySelectorAll('#figures thead th')].map(cell => cell.textContent)")
    assert heads == ["", "now", "kept"]
    rows = browser.value(
        "[...document.querySelectorAll('#figures tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    now, kept = next((now, kept) for name, now, kept in rows if name.startswith("Noise multiplier"))
    assert float(now.split()[0]) > 1.5 * float(kept.split()[0])
    browser.click("#drop")
    browser.until("document.querySelectorAll('svg .b').length === 0")
    faultless(browser, studio.url)


def test_wrong_input_is_said_beside_its_control(opened: Open, browser: Browser) -> None:
    studio = opened()
    start(browser, studio.url)
    for name, wrong in (
        ("epsilon", "-1"), ("epsilon", "two"), ("epsilon", ""), ("delta", "3"), ("dataset_size", "10.5"),
        ("batch", "5000"), ("steps", "0"), ("steps", "1e9"), ("noise_fall", "0"), ("clip_start", "-2"),
        ("clip_fall", "x"),
    ):  # fmt: skip
        right = browser.value(f"document.querySelector('#{name}').value")
        browser.type(f"#{name}", wrong)
        browser.until(f"document.querySelector('[data-field={name}] em').textContent.includes('must')")
        assert browser.value(f"document.querySelector('#{name}').ariaInvalid") == "true"
        assert not browser.value("document.querySelector('#error').hidden")
        browser.type(f"#{name}", right)
        browser.until(f"{SETTLED} && document.querySelector('#error').hidden")
        assert shown(browser, f"[data-field={name}] em") == ""
    faultless(browser, studio.url)


@pytest.mark.parametrize("wide", [400, 1400])
def test_a_store_of_a_thousand_runs(opened: Open, browser: Browser, tmp_path: Path, wide: int) -> None:
    plan = read(FORM | {"epsilon": 0.01}).plan(quick=True)
    store = Store.create(tmp_path / "ledger.db", dc.Budget(20, 0.5), dataset="patients", rows=1000)
    with store._writing() as connection:  # a thousand at once: `start` writes each of them to the disk
        cost, text = ",".join(map(str, store.composition.cost(plan))), plan.to_json()
        same = ("me", "2026-11-23", "plan", text, plan.sha256, cost, "open")
        rows = [(f"{i:032x}", f"run <{i}>", *same) for i in range(1000)]
        query = "INSERT INTO runs (id, label, who, started, kind, agreed, sha256, cost, state) "
        query += "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        connection.executemany(query, rows)
    store.close()
    studio = opened()
    start(browser, studio.url, wide=wide)
    browser.give("#open", [tmp_path / "ledger.db"])
    browser.until("document.querySelectorAll('tr.pick').length === 1000")
    browser.until("document.querySelector('#title').textContent === 'run <999>'")
    browser.click("tr.pick:nth-child(500)")
    browser.until("document.querySelector('#title').textContent === 'run <499>'")
    assert shown(browser, "#promise") == str(plan.guarantee)
    for dark in (False, True):
        browser.dark(dark)
        paper, ink = browser.value(
            "(() => { const s = getComputedStyle(document.body);"
            "return [s.backgroundColor, s.color].map(c => Number(c.match(/\\d+/)[0])); })()"
        )
        assert (paper < 60 and ink > 200) if dark else (paper > 200 and ink < 60)
    browser.click("#back")
    browser.until("document.querySelector('#title').textContent === 'Plan'")
    faultless(browser, studio.url)


def test_a_run_and_what_is_none(opened: Open, browser: Browser, tmp_path: Path) -> None:
    plan = read(FORM).plan(quick=True)
    Run(plan, plan.ledger, plan.guarantee, weights={}, metrics={"accuracy": 0.5}).save(tmp_path / "run")
    (tmp_path / "nonsense.txt").write_text("these are no numbers")
    studio = opened()
    start(browser, studio.url, wide=400)
    browser.give("#open", [tmp_path / "run/run.json", tmp_path / "run/plan.json"])
    browser.until("document.querySelector('#notes').textContent.includes('accuracy: 0.5')")
    browser.give("#folder", [tmp_path / "run"])
    browser.until("document.querySelector('#title').textContent === 'run'")
    browser.give("#open", [tmp_path / "nonsense.txt"])
    browser.until("document.querySelector('#error').textContent.includes('nonsense.txt must hold numbers')")
    assert shown(browser, "#title") == "run"
    faultless(browser, studio.url)


def test_a_file_opened_while_the_accountants_are_asked_waits_for_its_turn(
    opened: Open, browser: Browser, tmp_path: Path
) -> None:
    """Two requests at once: the judgement that comes next would drop the opening."""
    read(FORM).plan(quick=True).save(tmp_path / "given.json")
    studio = opened()
    start(browser, studio.url)
    browser.until(CERTIFIED)
    browser.value(
        "window.held = []; window.most = window.open_now = 0; const sent = window.fetch;"
        "window.fetch = async (to, ...rest) => { most = Math.max(most, ++open_now); try {"
        "if (to === 'api/judge' && !held.length) await new Promise(done => held.push(done));"
        "return await sent(to, ...rest); } finally { open_now--; } }; true"
    )
    browser.type("#epsilon", "1")
    browser.until("held.length === 1")
    browser.give("#open", [tmp_path / "given.json"])
    browser.value("new Promise(done => setTimeout(done, 500))")
    browser.value("held[0](), true")
    browser.until("document.querySelector('#title').textContent === 'given.json' && " + CERTIFIED)
    assert browser.value("most") == 1
    faultless(browser, studio.url)
