"""Figures by matplotlib, for files, reports and TensorBoard."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.image import AxesImage
from torch import Tensor

from translator.metrics.metric import METRICS
from translator.metrics.scores import LengthScore
from translator.runs.training_state import History
from translator.runtime.errors import UserError

DPI = 150
COLOURS = ("#1f5fa8", "#d9772b")  # of a run, and of a run to compare it with
# Of an attention map: inches of a cell and of a letter; points of labels, of a panel's title and of the figure's; inches of a
# letter per point.
CELL, LETTER, LABEL_SIZE, PANEL_TITLE_SIZE, TITLE_SIZE, LETTER_PER_POINT = 0.17, 0.09, 7, 8, 10, 0.0085
WEIGHTS = (0, 0.05, 0.2, 0.5, 1)  # marked on their scale

MANY = {"linewidth": 0.7, "alpha": 0.6}
MARKERS = "sv^dx+"  # of the scores of single corpora
FEW = {"marker": "o", "markersize": 3}
LINES = {"bleu": "-", "exact": "-", "chrf": "--"}  # of other metrics ":"
SCORES, LOSSES = "Score on validation", "Loss"
# The panels of the curves by title; in each, label and style by measurement.
PANELS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    LOSSES: {"train/loss": ("training", MANY), "validation/loss": ("validation", FEW)},
    SCORES: {
        f"validation/{name}": (cls.label or cls.name, FEW | {"linestyle": LINES.get(name, ":")})
        for name, cls in METRICS.items()},
    "Learning rate": {"train/learning_rate": ("", {})},
    "Target tokens a second": {"train/tokens_per_second": ("", MANY)}}


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def draw_curves(runs: Mapping[str, History]) -> Figure:
    """Draw the measurements of one training, or compare two."""
    figure = Figure(figsize=(10, 6), dpi=DPI, layout="constrained")
    for axes, (title, measurements) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for (run, history), colour in zip(runs.items(), COLOURS, strict=False):
            for name, (label, style) in measurements.items():
                of_run = f"{label} of {run}".strip() if len(runs) > 1 else label
                if points := history.get(name):
                    axes.plot(*zip(*points, strict=True), color=colour, label=of_run, **style)
                corpora = sorted(other.removeprefix(f"{name}.") for other in history if other.startswith(f"{name}."))
                for corpus, marker in zip(corpora, itertools.cycle(MARKERS)):
                    axes.plot(*zip(*history[f"{name}.{corpus}"], strict=True), color=colour, label=f"{of_run}, {corpus}",
                              **style | {"marker": marker, "linewidth": 0.7})
        _style(axes, title)
        axes.set_xlabel("update", fontsize=8)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure


def draw_scores_by_length(runs: Mapping[str, Sequence[LengthScore]], metric: str) -> Figure:
    """Draw a score by source length of one run, or of two on the same sentences."""
    figure = Figure(figsize=(10, 3), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    width = 0.7 / len(runs)
    for number, ((run, parts), colour) in enumerate(zip(runs.items(), COLOURS, strict=False)):
        places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(parts))]
        bars = axes.bar(places, [part.value for part in parts], width, color=colour, label=f"of {run}" if len(runs) > 1 else "")
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(range(len(parts)), [f"{part.lengths}\n{part.count:,} sentences" for part in parts])
    axes.set_xlim(-0.6, max(len(parts), 5) - 0.4)  # keeps a few bars narrow
    axes.margins(y=0.12)
    _style(axes, f"{metric} by words of the source")
    return figure


def draw_attention(panels: Mapping[str, Tensor | None], source: Sequence[str], target: Sequence[str], *, columns: int,
                   title: str = "") -> Figure:
    """Draw weights (T, S) by panel, with a row for each piece of `target`. None leaves a panel empty.

    Raises UserError where the picture would be too large.
    """
    families, labels = _drawable([*source, *target])
    source, target = labels[: len(source)], labels[len(source) :]
    rows = -(-len(panels) // columns)
    longest = LETTER * max(map(len, labels))
    panel = max(CELL * len(source), PANEL_TITLE_SIZE * LETTER_PER_POINT * max(map(len, panels)))
    width = 1 + longest + columns * (0.15 + panel)
    title = textwrap.fill(title, max(1, int(width / (TITLE_SIZE * LETTER_PER_POINT))))
    height = 0.5 + 0.2 * title.count("\n") + rows * (0.35 + longest + CELL * len(target))
    if width * height * DPI**2 > 100_000_000:
        raise UserError(f"{len(panels)} attention maps of {len(target)} x {len(source)} pieces: a picture of "
                        f"{width * DPI:,.0f} x {height * DPI:,.0f} pixels is too large. Choose a shorter sentence.")
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, (axes, (name, weights)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        if weights is None:
            axes.set_axis_off()
            continue
        image = _draw_map(axes, weights, source, target if number % columns == 0 else (), families)
        axes.set_title(name, fontsize=PANEL_TITLE_SIZE)
    bar = figure.colorbar(image, ax=grid, fraction=0.3 / width, pad=0.15 / width, aspect=30, shrink=min(1, 3 / height),
                          ticks=WEIGHTS, format="{x:g}")
    bar.ax.tick_params(labelsize=LABEL_SIZE)
    figure.suptitle(title, fontsize=TITLE_SIZE)
    return figure


def draw_summary(attention: Tensor, source: Sequence[str], target: Sequence[str], entropy: Mapping[str, Sequence[Tensor]],
                 dead: Mapping[str, Sequence[Collection[int]]], *, above: Sequence[str], below: Sequence[str]) -> Figure:
    """Draw a mean attention (T, S) beside the entropy of heads (H,) by kind and layer, with a cross over dead heads.

    above, below: lines of text.
    """
    families, texts = _drawable([*source, *target, *above, *below])
    rest = iter(texts)
    source, target, above, below = ([*itertools.islice(rest, len(part))] for part in (source, target, above, below))
    longest = LETTER * max(map(len, [*source, *target]))
    map_width = max(3, longest + 1.3 * CELL * len(source))
    heads, layers = max(len(layer) for kind in entropy.values() for layer in kind), sum(map(len, entropy.values()))
    width = map_width + 1.5 + 0.4 * heads
    wrap = int(0.95 * width / (PANEL_TITLE_SIZE * LETTER_PER_POINT))
    above, below = ([line for text in part for line in textwrap.wrap(text, wrap)] for part in (above, below))
    tall = max(0.5 + longest + 1.3 * CELL * len(target), 0.7 * len(entropy) + 0.3 * layers)
    figure = Figure(figsize=(width, tall + 0.5 + 0.15 * len([*above, *below])), dpi=DPI, layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[map_width + 0.5, width - map_width - 0.5]).flat
    axes = left.subplots()
    image = _draw_map(axes, attention, source, target, families)
    axes.set_title("Mean cross-attention of the heads that align", fontsize=PANEL_TITLE_SIZE)
    left.colorbar(image, ticks=WEIGHTS, format="{x:g}", fraction=0.02).ax.tick_params(labelsize=LABEL_SIZE)
    grid = right.subplots(len(entropy), 1, squeeze=False, height_ratios=[len(kind) + 1.5 for kind in entropy.values()])
    for axes, (kind, values) in zip(grid.flat, entropy.items(), strict=True):
        _draw_grid(axes, f"Entropy: {kind}", dict(enumerate(values, start=1)), dead[kind], range(1, heads + 1))
    style = {"fontsize": PANEL_TITLE_SIZE, "fontfamily": families, "x": 0.01, "ha": "left"}
    figure.suptitle("\n".join(above), **style).set_parse_math(False)
    figure.supxlabel("\n".join(below), **style).set_parse_math(False)
    return figure


def draw_heads(importance: Mapping[Any, Mapping[int, Tensor]], kept: Mapping[Any, Sequence[Sequence[int]]]) -> Figure:
    """Draw the importance of heads (H,) by layer, a panel for each kind of attention, with a cross over the removed ones."""
    most = max(len(values) for layers in importance.values() for values in layers.values())
    tallest = max(map(len, importance.values()))
    figure = Figure(figsize=(1 + len(importance) * (0.9 + 0.35 * most), 1.2 + 0.35 * tallest), dpi=DPI, layout="constrained")
    for axes, (kind, layers) in zip(figure.subplots(1, len(importance), squeeze=False).flat, importance.items(), strict=True):
        removed = [set(range(len(heads))) - set(of_layer) for heads, of_layer in zip(layers.values(), kept[kind], strict=True)]
        image = _draw_grid(axes, kind, layers, removed, range(most))
    figure.colorbar(image, ax=figure.axes).ax.tick_params(labelsize=LABEL_SIZE)
    figure.suptitle("Importance of heads; a cross: removed", fontsize=TITLE_SIZE)
    return figure


def _draw_map(axes: Axes, weights: Tensor, source: Sequence[str], target: Sequence[str], families: list[str]) -> AxesImage:
    """Draw weights (T, S) on a scale that shows small ones too: a hundredth is a tenth as dark as 1."""
    style: dict[str, Any] = {"fontsize": LABEL_SIZE, "fontfamily": families, "parse_math": False}
    image = axes.imshow(weights.float().cpu().numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=90, **style)
    axes.set_yticks(range(len(target)), target, **style)
    return image


def _draw_grid(axes: Axes, title: str, layers: Mapping[int, Tensor], crossed: Sequence[Collection[int]],
               heads: range) -> AxesImage:
    """Draw a figure from 0 to 1 for each head (H,) by the number of its layer, with a cross over some, counted from 0.

    heads: their numbers on the axis.
    """
    cells = [[*values.tolist(), *[math.nan] * (len(heads) - len(values))] for values in layers.values()]
    image = axes.imshow(cells, cmap="Blues", vmin=0, vmax=1)
    for row, (values, over) in enumerate(zip(layers.values(), crossed, strict=True)):
        axes.plot(sorted(over), [row] * len(over), "x", color=COLOURS[1])
        for head, value in enumerate(values.tolist()):
            if head not in over:
                axes.text(head, row, f"{value:.2f}", fontsize=LABEL_SIZE - 1, ha="center", va="center",
                          color="white" if value > 0.6 else "black")
    axes.set_xticks(range(len(heads)), list(map(str, heads)))
    axes.set_yticks(range(len(layers)), list(map(str, layers)))
    axes.tick_params(labelsize=LABEL_SIZE)
    axes.set_title(title, fontsize=PANEL_TITLE_SIZE)
    axes.set_xlabel("head", fontsize=LABEL_SIZE)
    axes.set_ylabel("layer", fontsize=LABEL_SIZE)
    return image


def undrawn(texts: Iterable[str]) -> str:
    """Return the characters that no installed font has: labels show their code points instead."""
    return "".join(sorted(_fonts("".join(texts))[1]))


def _drawable(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return font families to draw texts in, and the texts, with code points for characters that no font has."""
    families, missing = _fonts("".join(texts))
    codes = str.maketrans({character: f"U+{ord(character):04X} " for character in missing})
    return families, [text.translate(codes).strip() for text in texts]


def _fonts(text: str) -> tuple[list[str], set[str]]:
    """Return families that together have the characters of a text, and the characters that none has."""
    families, missing = {"DejaVu Sans": None}, set(text)  # matplotlib's own first
    regular = [font for font in fontManager.ttflist if font.style == "normal" and font.weight == 400]
    for font in sorted(regular, key=lambda font: font.name not in families):
        if missing and not font.name.startswith("Last Resort"):  # which has a box for every character
            if found := missing & _characters(font.fname):
                families[font.name] = None
            missing -= found
    return list(families), missing


@cache
def _characters(file: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except (OSError, RuntimeError):  # matplotlib's list of fonts is outdated
        return frozenset()


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    families, labels = _drawable(axes.get_legend_handles_labels()[1])
    if any(labels):
        legend = axes.legend(prop={"size": 8, "family": families}, frameon=False)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set(text=label, parse_math=False)
