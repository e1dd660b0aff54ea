"""The measurements of public trainings behind the bridge, and the table made of them on the page about Opacus."""

import json
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

ROOT = Path(__file__).parents[2]
MEASURED: dict[str, Any] = json.loads((ROOT / "results" / "bridge-trainings.json").read_text())


def _accuracy(values: list[float]) -> str:
    error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{error}"


def ratio(row: dict[str, Any]) -> float:
    """Our processor time a step over Opacus', by the medians of the runs."""
    return median(row["ours"]["cpu_ms"]) / median(row["opacus"]["cpu_ms"])


def table(content: dict[str, Any]) -> str:
    """As the page has it."""
    lines = [
        "| training | lines by hand | epsilon | seeds | accuracy, Opacus | accuracy, here | time a step |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in content["trainings"]:
        lines.append(
            f"| [{row['repository']}/{row['path'].split('/')[-1]}]({row['link']}) | {row['lines_by_hand']} "
            f"| {row['epsilon_opacus']:.2f}, here {row['epsilon_ours']:.2f} | {len(row['seeds'])} "
            f"| {_accuracy(row['opacus']['accuracy'])} | {_accuracy(row['ours']['accuracy'])} | {ratio(row):.2f} |"
        )
    return "\n".join(lines)


def test_the_page_has_the_table_of_the_measurements() -> None:
    page = (ROOT / "docs" / "how-to" / "from-opacus.md").read_text()
    assert table(MEASURED) in page
    assert f"{median(map(ratio, MEASURED['trainings'])):.2f} in the median" in page


def test_public_trainings_need_at_most_five_lines_by_hand() -> None:
    for row in MEASURED["trainings"]:
        assert 0 <= row["lines_by_hand"] <= 5
        assert len(row["seeds"]) == len(row["ours"]["accuracy"]) == len(row["opacus"]["accuracy"]) >= 1
        assert row["substituted"] and row["shortened"] and row["link"].startswith("https://github.com/")
