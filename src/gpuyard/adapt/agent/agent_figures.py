"""Figures of learned deciders: training curves, accuracy in each environment, transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gpuyard.adapt.agent.agent_file import Agent
from gpuyard.adapt.agent.decision_trees import Table
from gpuyard.adapt.agent.evaluation import (
    BASELINES,
    DeciderResult,
    chosen,
    decider_shares,
    evaluate,
    learned_decider,
    share,
)
from gpuyard.adapt.agent.reinforce import Recipe, learn, recipe_of
from gpuyard.adapt.agent.scorer import Floats
from gpuyard.errors import UserError
from gpuyard.figures.axes import label_axis, label_rows, percent_axis
from gpuyard.figures.style import (
    BLUE,
    COLOURS,
    DARK,
    DASHED,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PALE,
    RED,
    clean,
    clipped,
    legend_below,
    new_figure,
    styled,
)

WINDOW = 25  # updates of a running mean
MOST_PANELS = 6
BOOTSTRAP = 2000
_SHARES = LinearSegmentedColormap.from_list("shares", ["#c8553d", "#f3d9d2", "#fbfbfb", "#cfe0ee", "#2f6da3"])
Watch = Callable[[int, int, str], None]


def draw_all(
    agents: Mapping[str, Agent], tables: Sequence[Table], across: bool = True, watch: Watch | None = None
) -> dict[str, Figure]:
    if not agents and not tables:
        raise UserError("there is nothing to draw; name files of gpuyard adapt learn, or recordings")
    figures: dict[str, Figure] = {}
    if agents:
        figures |= {"objective": objective(agents), "exploration": exploration(agents)}
    if tables:
        shown = agents or {"agent": learn(tables)}
        found = {name: evaluate(learned_decider(agent), tables, BOOTSTRAP).standings for name, agent in shown.items()}
        figures |= {"accuracy": accuracy(found), "deciders": deciders(found)}
        if across and len(tables) > 1:
            recipe = recipe_of(next(iter(shown.values())))
            figures["transfer"] = transfer(*transfers(shown, tables, recipe, watch), [t.name for t in tables])
    return figures


def objective(agents: Mapping[str, Agent]) -> Figure:
    """The reward over updates: single episodes, their running mean, and its expectation."""
    shown = dict(list(agents.items())[:MOST_PANELS])
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    with styled():
        figure = new_figure(max(3.8 * columns, 7.5), 0.6 + 3.0 * rows)
        panels = np.atleast_1d(figure.subplots(rows, columns, sharey=True, squeeze=False)).flatten()
        for axes, (name, agent) in zip(panels, shown.items(), strict=False):
            curve = _curve(agent)
            steps = np.arange(1, len(curve["drawn"]) + 1)
            axes.axhline(0.0, color=DARK, linewidth=0.9, linestyle=DASHED, zorder=1)
            axes.plot(steps, curve["drawn"], ".", color=PALE, markersize=2.5, zorder=2, rasterized=True)
            axes.plot(steps, running_mean(curve["drawn"], WINDOW), color=BLUE, linewidth=1.8, zorder=4)
            axes.plot(steps, curve["objective"], color=RED, linewidth=1.2, zorder=3)
            axes.set_title(clipped(name, 34), loc="left")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            axes.set_xlim(0, len(steps) + 1)
            axes.set_xlabel("Update")
            axes.grid()
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        for axes in panels[::columns]:
            axes.set_ylabel("Gain over never growing,\nthat of the best sequence is 1")
        handles = [
            Line2D([], [], color=PALE, marker=".", linestyle="none", label="an episode in each environment"),
            Line2D([], [], color=BLUE, linewidth=1.8, label=f"their running mean ({WINDOW} updates)"),
            Line2D([], [], color=RED, linewidth=1.2, label="expected, all members"),
            Line2D([], [], color=DARK, linewidth=0.9, linestyle=DASHED, label="never growing"),
        ]
        legend_below(figure, 4 if columns > 1 else 2, handles=handles)
        return figure


def exploration(agents: Mapping[str, Agent]) -> Figure:
    with styled():
        figure = new_figure(9, 4.6)
        upper, lower = figure.subplots(2, 1, sharex=True)
        for k, (name, agent) in enumerate(agents.items()):
            curve, colour = _curve(agent), COLOURS[k % len(COLOURS)]
            steps = np.arange(1, len(curve["temperature"]) + 1)
            upper.plot(steps, curve["temperature"], color=colour, linewidth=1.8, label=clipped(name, 40))
            lower.plot(steps, curve["entropy"], color=colour, linewidth=1.8)
        warmest = max(float(_curve(agent)["temperature"].max()) for agent in agents.values())
        upper.set_yscale("log")
        upper.set_ylim(0.8, max(warmest * 1.25, 2.0))
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if t <= warmest * 1.25 or t <= 2]
        label_axis(upper.yaxis, [(tick, f"{tick:g}") for tick in ticks])
        upper.set_ylabel("Temperature (log scale)")
        lower.set_ylabel("Entropy of the choices")
        percent_axis(lower.yaxis)
        lower.set_ylim(0.0, 1.02)
        lower.set_xlabel("Update")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
        upper.set_title("Exploring: temperature of the softmax, and entropy relative to equal chances", loc="left")
        for axes in (upper, lower):
            axes.grid()
        legend_below(figure, min(len(agents), 4))
        return figure


def accuracy(found: Mapping[str, Sequence[DeciderResult]]) -> Figure:
    """Accuracy of never growing, chance, the agents and the best sequence in each environment."""
    standings = next(iter(found.values()))
    with styled():
        figure = new_figure(9, 1.7 + (0.3 if len(found) == 1 else 0.26 + 0.07 * len(found)) * len(standings))
        axes = figure.subplots()
        for y, one in enumerate(standings):
            axes.plot([one.never, one.oracle], [y, y], color=LIGHT, linewidth=3.5, solid_capstyle="round", zorder=1)
            axes.plot(one.deciders["random"], y, "D", color=ORANGE, markersize=4.5, zorder=3)
            axes.plot(one.never, y, "o", color=GREY, markersize=10, zorder=2)  # seen around a decider that is there too
            axes.plot(one.oracle, y, "|", color=DARK, markersize=11, markeredgewidth=2, zorder=4)
        for k, ones in enumerate(found.values()):
            shift = 0.0 if len(found) == 1 else 0.6 * (k / (len(found) - 1) - 0.5)
            _agent_dots(axes, ones, shift, _agent_colour(k), 7.0 if len(found) == 1 else 5.0)
        label_rows(axes, [one.table.name for one in standings], 36)
        percent_axis(axes.xaxis)
        axes.set_xlabel("Accuracy at the end of the budget")
        axes.set_title("From never growing to the best sequence; whiskers: 95% confidence", loc="left")
        handles = [
            Line2D([], [], color=GREY, marker="o", linestyle="none", markersize=9, label="never"),
            Line2D([], [], color=ORANGE, marker="D", linestyle="none", markersize=4.5, label="random (mean)"),
            *(
                Line2D([], [], color=_agent_colour(k), marker="o", markersize=7, linestyle="none", label=clean(name))
                for k, name in enumerate(found)
            ),
            Line2D([], [], color=DARK, marker="|", markeredgewidth=2, markersize=11, linestyle="none", label="best"),
        ]  # fmt: skip
        columns = len(handles) if sum(map(len, found)) < 60 else 4
        legend_below(figure, columns, handles=handles)
        return figure


def deciders(found: Mapping[str, Sequence[DeciderResult]]) -> Figure:
    """The share of the possible gain that each decider reaches in all environments together."""
    standings = next(iter(found.values()))
    shares = decider_shares(standings) | {name: share(ones) for name, ones in found.items()}
    order = sorted(shares, key=lambda name: shares[name])
    values = [shares[name] for name in order]
    with styled():
        figure = new_figure(8, 1.2 + 0.3 * len(order))
        axes = figure.subplots()
        colours = [PALE if name in BASELINES else _agent_colour(list(found).index(name)) for name in order]
        axes.barh(range(len(order)), values, color=colours, height=0.68, zorder=2)
        for y, value in enumerate(values):
            side = 1 if value >= 0 else -1
            axes.annotate(
                f"{value:.0%}".replace("-", "−"), (value, y), (5 * side, 0), textcoords="offset points",
                va="center", fontsize=8, ha="left" if side > 0 else "right", zorder=4,
                bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            )  # fmt: skip
        axes.axvline(0.0, color=DARK, linewidth=0.9, zorder=3)
        axes.axvline(1.0, color=DARK, linewidth=0.9, linestyle=DASHED, zorder=1)
        low, high = min(0.0, *values), max(1.0, *values)
        axes.set_xlim(low - (0.1 if low < 0 else 0.02) * (high - low), high + 0.08 * (high - low))
        axes.set_yticks(range(len(order)), [clipped(name, 30) for name in order])
        axes.tick_params(axis="y", length=0)
        percent_axis(axes.xaxis)
        axes.grid(axis="x")
        axes.set_xlabel("Sum of gains over never growing, of the sum of what the best sequences gain (dashed)")
        many = f"{len(standings)} environment{'s' * (len(standings) != 1)}"
        axes.set_title(f"Share of the gap in {many}", loc="left")
        return figure


def transfers(
    agents: Mapping[str, Agent], tables: Sequence[Table], recipe: Recipe, watch: Watch | None = None
) -> tuple[list[str], Floats]:
    """Rows of shares of gaps, by table: learned in each environment alone, in all others, and the given agents."""
    rows: dict[str, Floats] = {}
    for k, table in enumerate(tables):
        rows[table.name] = _shares(learn([table], recipe), tables)
        if watch is not None:
            watch(k + 1, len(tables), f"learned in {table.name}")
    others = [learn([o for o in tables if o is not table], recipe) for table in tables]
    rows["all others"] = np.array([_shares(a, [t])[0] for a, t in zip(others, tables, strict=True)])
    rows |= {name: _shares(agent, tables) for name, agent in agents.items()}
    return list(rows), np.array(list(rows.values()))


def transfer(names: Sequence[str], shares: Floats, columns: Sequence[str]) -> Figure:
    """A matrix: the share of the gap that an agent of one environment reaches in another."""
    size = 0.42 if len(columns) > 8 else 0.62
    with styled():
        figure = new_figure(3.4 + size * len(columns), 2.6 + size * 0.8 * len(names))
        axes = figure.subplots()
        drawn = np.ma.masked_invalid(np.clip(shares, -1.0, 1.0))
        picture = axes.imshow(drawn, cmap=_SHARES, norm=Normalize(-1.0, 1.0), aspect="auto")
        for (y, x), value in np.ndenumerate(shares):
            text = "–" if math.isnan(value) else f"{100 * max(value, -9.99):.0f}".replace("-", "−")
            strong = not math.isnan(value) and abs(value) > 0.75
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white" if strong else DARK)
        axes.set_xticks(range(len(columns)), [clipped(c, 26) for c in columns], rotation=45, ha="right",
                        rotation_mode="anchor")  # fmt: skip
        axes.set_yticks(range(len(names)), [clipped(n, 30) for n in names])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks(np.arange(-0.5, len(columns)), minor=True)
        axes.set_yticks(np.arange(-0.5, len(names)), minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
        axes.tick_params(which="minor", length=0)
        if len(names) > len(columns):
            axes.axhline(len(columns) - 0.5, color=DARK, linewidth=1.2)
        axes.set_xlabel("Used in")
        axes.set_ylabel("Learned in")
        axes.set_title("Share of the gap in %: never growing is 0, the best sequence 100", loc="left")
        bar = figure.colorbar(picture, ax=axes, fraction=0.03, pad=0.015)
        percent_axis(bar.ax.yaxis)
        bar.outline.set_visible(False)
        return figure


def running_mean(values: Floats, window: int) -> Floats:
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def _curve(agent: Agent) -> dict[str, Floats]:
    values = np.array(agent.training["curve"], dtype=float)
    return {name: values[:, k] for k, name in enumerate(agent.training["columns"])}


def _shares(agent: Agent, tables: Sequence[Table]) -> Floats:
    found = []
    for table in tables:
        gain = chosen(learned_decider(agent), table)[1] @ table.values - table.values[table.never]
        gap = float(table.values.max() - table.values[table.never])
        found.append(float(gain) / gap if gap > 0 else math.nan)
    return np.array(found)


def _agent_colour(k: int) -> str:
    return (BLUE, GREEN, RED, *COLOURS[4:])[k % (len(COLOURS) - 1)]


def _agent_dots(axes: Axes, ones: Sequence[DeciderResult], shift: float, colour: str, size: float) -> None:
    for y, one in enumerate(ones):
        low, high = one.interval
        if not math.isnan(low):
            axes.plot([low, high], [y + shift] * 2, color=colour, linewidth=1.1, zorder=5)
        axes.plot(one.accuracy, y + shift, "o", color=colour, markersize=size, zorder=6, markeredgecolor="white",
                  markeredgewidth=0.6)  # fmt: skip
