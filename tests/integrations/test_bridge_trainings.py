"""The measurements of public trainings behind the bridge, and the table made of them on the page about Opacus."""

import json
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

ROOT = Path(__file__).parents[2]
_FILE = ROOT / "results" / "bridge-trainings.json"
MEASURED: dict[str, Any] = json.loads(_FILE.read_text())


def _accuracy(values: list[float]) -> str:
    error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{error}"


def ratio(row: dict[str, Any]) -> float:
    """Our processor time per step over Opacus', by the medians of the runs."""
    return median(row["ours"]["cpu_ms"]) / median(row["opacus"]["cpu_ms"])


def table(content: dict[str, Any]) -> str:
    """As the page has it."""
    lines = [
        "| script | lines by hand | epsilon | seeds | accuracy, Opacus | accuracy, here | time per step |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| [{row['repository']}/{row['path'].split('/')[-1]}]({row['link']}) | {row['lines_by_hand']} "
        f"| {row['epsilon_opacus']:.2f}, here {row['epsilon_ours']:.2f} | {len(row['seeds'])} "
        f"| {_accuracy(row['opacus']['accuracy'])} | {_accuracy(row['ours']['accuracy'])} | {ratio(row):.2f} |"
        for row in content["trainings"]
    ]
    return "\n".join(lines)


def summary(content: dict[str, Any]) -> str:
    """What the page says of all of them."""
    rows = content["trainings"]
    gains = [fmean(row["ours"]["accuracy"]) - fmean(row["opacus"]["accuracy"]) for row in rows]
    error = stdev(gains) / len(gains) ** 0.5
    return (
        f"{len(rows)} of the {len(rows) + len(content['not_measured'])} were measured beside Opacus. The median "
        f"ratio is {median(map(ratio, rows)):.2f}, the mean difference in accuracy {fmean(gains):+.1f} ± {error:.1f} "
        "points."
    )


def test_the_page_has_the_table_of_the_measurements() -> None:
    page = (ROOT / "docs" / "how-to" / "from-opacus.md").read_text()
    assert table(MEASURED) in page
    assert summary(MEASURED) in page


def test_public_trainings_need_at_most_five_lines_by_hand() -> None:
    for row in MEASURED["trainings"]:
        assert 0 <= row["lines_by_hand"] <= 5
        assert len(row["seeds"]) == len(row["ours"]["accuracy"]) == len(row["opacus"]["accuracy"]) >= 1
        assert row["substituted"]
        assert row["shortened"]
        assert row["link"].startswith("https://github.com/")
