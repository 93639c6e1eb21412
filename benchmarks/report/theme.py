"""How plots look: matplotlib draws with placeholders for colours, which become CSS variables, for light and dark.

In a page the variables are the page's (page.html); a picture of its own brings the same ones along.
"""

from __future__ import annotations

import io
import re
from typing import Any

from common.errors import UserError

COLOURS = 8  # of runs or series; there is a variable --s0 ... for each
INK, SOFT, LINE, GOOD, PANEL = "#0a0c00", "#0a0c01", "#0a0c02", "#0a0c03", "#0a0c04"
_PLACEHOLDER = re.compile(r"#0a0([bc])0([0-9])")
_SHADES = {  # variable: light, dark
    "--ink": ("#16201b", "#e6eee9"),
    "--soft": ("#56665e", "#9aaca2"),
    "--line": ("#dde4df", "#2c3732"),
    "--good": ("#1c7c50", "#43bd87"),
    "--panel": ("#ffffff", "#141a17"),
    "--s0": ("#1c7c50", "#43bd87"),
    "--s1": ("#2767ad", "#74b3f2"),
    "--s2": ("#c2571a", "#f0954f"),
    "--s3": ("#7047b3", "#b99af0"),
    "--s4": ("#b3312f", "#f17f72"),
    "--s5": ("#0f8a94", "#4fc7d1"),
    "--s6": ("#8a6d00", "#d9bd48"),
    "--s7": ("#a83279", "#ec86bf"),
}
_NAMES = tuple(_SHADES)
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'


def colour(index: int) -> str:
    """Of a run or series."""
    return f"#0a0b0{index % COLOURS}"


def styles(*, dark: bool) -> str:
    """The variables as CSS declarations."""
    return " ".join(f"{name}: {shades[dark]};" for name, shades in _SHADES.items())


def pyplot(command: str) -> Any:
    """matplotlib's, set up. Raises UserError without matplotlib; `command` is what needs it."""
    try:
        import matplotlib
    except ImportError:
        raise UserError(f"{command} needs matplotlib; install 'canopy-serve[plots]'.") from None
    matplotlib.use("svg")
    from matplotlib import pyplot as found

    found.rcParams.update(
        {
            "svg.hashsalt": "canopy",  # same figures, same picture
            "svg.fonttype": "none",
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "axes.edgecolor": LINE,
            "axes.labelcolor": SOFT,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": INK,
            "xtick.color": SOFT,
            "ytick.color": SOFT,
            "xtick.minor.size": 0,
            "ytick.minor.size": 0,
            "legend.frameon": False,
            "font.size": 9.5,
        }
    )
    return found


def label(axis: Any, title: str, x: str, y: str) -> None:
    """Words and grid of a panel."""
    axis.set_title(title, loc="left", fontsize=11, color=INK)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(color=LINE, linewidth=0.8)


def element(figure: Any) -> str:
    """As an element for a page: no size of its own, no metadata, colours by the page's variables."""
    text = _drawn(figure)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return _PLACEHOLDER.sub(lambda found: f"var({_variable(found)})", text)


def picture(figure: Any) -> str:
    """As a file of its own, light or dark as its reader likes it. Programs that know no variables show it light."""
    text = re.sub(
        r"(fill|stroke): ?(#0a0[bc]0[0-9])",
        lambda found: f"{found[1]}: {_value(found[2])}; {found[1]}: {_PLACEHOLDER.sub(_reference, found[2])}",
        _drawn(figure),
    )
    style = (
        f"svg {{ {styles(dark=False)} background: var(--panel); }} text {{ font-family: {_FONT} !important; }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {styles(dark=True)} }} }}"
    )
    end = text.index(">") + 1
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text[:end]}\n<style>{style}</style>{text[end:]}'


def _variable(found: re.Match[str]) -> str:
    return f"--s{found[2]}" if found[1] == "b" else _NAMES[int(found[2])]


def _reference(found: re.Match[str]) -> str:
    return f"var({_variable(found)})"


def _value(placeholder: str) -> str:
    found = _PLACEHOLDER.fullmatch(placeholder)
    assert found is not None
    return _SHADES[_variable(found)][0]


def _drawn(figure: Any) -> str:
    """SVG text from its element on, without styles and metadata. The figure is closed."""
    from matplotlib import pyplot as plots

    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plots.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
