# SPDX-License-Identifier: GPL-2.0
"""Tables and plots for reports in HTML; matplotlib draws the plots."""

import html
import io

from . import tables

STYLE = """body { font: 15px/1.45 sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
td, th { border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left }
.scroll { overflow-x: auto } svg { max-width: 100%; height: auto }"""
# Units of which less is better.
LESS = ("us", "ms")


def _cells(tag: str, line: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell.strip())}</{tag}>"
                            for cell in line.strip("|").split("|")) + "</tr>"


def table(markdown: str) -> str:
    """A table in Markdown as one in HTML."""
    head, _, *rows = markdown.splitlines()
    return ('<div class="scroll"><table>' + _cells("th", head) + "".join(_cells("td", row) for row in rows)
            + "</table></div>")


def pyplot():
    """Imported where something is drawn: the package is not needed for anything else."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bench", "axes.spines.top": False,
                                "axes.spines.right": False})
    from matplotlib import pyplot
    return pyplot


def svg(figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot().close(figure)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def bars(title: str, unit: str, values: dict[str, float]) -> str:
    """One bar for each target."""
    figure, axes = pyplot().subplots(figsize=(9, 0.9 + 0.3 * len(values)))
    names = list(values)[::-1]
    drawn = axes.barh(names, [values[name] for name in names],
                      color=["#c8501e" if name.startswith("ibnbd") else "#7a8ca0" for name in names])
    axes.bar_label(drawn, [tables.number(values[name]) for name in names], padding=3, fontsize=8)
    axes.set_title(f"{title}, {unit} ({'less' if unit in LESS else 'more'} is better)", loc="left", fontsize=10)
    axes.margins(x=0.12)
    return svg(figure)


def document(title: str, parts: list[str]) -> str:
    """A page of these parts, which are HTML."""
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
            f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>" + "\n".join(parts) + "</html>\n")
