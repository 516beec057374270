"""All of a comparison on one HTML page: its table, and its pictures beside the file."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Final

from callsheet.benchmarks.simulator.comparison import plots
from callsheet.benchmarks.simulator.comparison.render import render
from callsheet.benchmarks.simulator.comparison.report import ComparisonReport
from rich.console import Console

_PAGE: Final = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<style>
body { font-family: sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }
pre { background: #f6f6f6; overflow-x: auto; padding: 1em; font-size: 0.85em; }
figure { display: inline-block; margin: 0.5em; }
img { max-width: 36em; width: 100%; }
</style>
</head>
<body>
<h1>$title</h1>
<pre>$table</pre>
$figures
<h2>The figures as JSON</h2>
<pre>$figures_json</pre>
</body>
</html>
"""
)
_TABLE_WIDTH: Final = 150


def write_page(directory: Path, report: ComparisonReport) -> Path:
    """Draws the pictures of a report into a directory, made if need be, and a page that shows them.

    Returns:
        The page, `index.html`.

    Raises:
        OSError: The directory cannot be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = _draw(directory, report)
    console = Console(width=_TABLE_WIDTH, record=True, file=(directory / "tables.txt").open("w", encoding="utf-8"))
    with console.file:
        console.print(render(report))
    source = report.settings.source
    page = directory / "index.html"
    page.write_text(
        _PAGE.substitute(
            title=html.escape(f"callsheet bench sim: {source.workload}, {source.mode.value}"),
            table=html.escape(console.export_text()),
            figures="\n".join(_figure(name, caption) for name, caption in pictures.items()),
            figures_json=html.escape(json.dumps(report.as_json(), indent=1)),
        ),
        encoding="utf-8",
    )
    return page


def _figure(name: str, caption: str) -> str:
    text = html.escape(caption)
    return f'<figure><img src="{html.escape(name)}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def _draw(directory: Path, report: ComparisonReport) -> Mapping[str, str]:
    """Draws what there is, and says what each file shows."""
    pictures = {"act.png": "ACT of external actions, by policy"}
    results = list(report.applying.values())
    plots.plot_act(directory / "act.png", results)
    if report.cores:
        for result in results:
            name = f"cores-{result.name}.png"
            plots.plot_cores(directory / name, result.name, result.by_seed[0].cores, report.cores)
            pictures[name] = f"{result.name}: cores held and used over time, first seed"
    if report.by_cores:
        plots.plot_load(directory / "load.png", report.by_cores)
        plots.plot_resources(directory / "resources.png", report.by_cores)
        pictures["load.png"] = "mean ACT against load"
        pictures["resources.png"] = "cores against the mean ACT they buy"
    if report.by_ageing:
        plots.plot_frontier(directory / "frontier.png", report.by_ageing, report.span_key)
        pictures["frontier.png"] = "what the ageing setting trades"
    return pictures
