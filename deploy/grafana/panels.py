"""What dashboards are made of: plots with queries and healthy bands, in rows. Grafana's own builders make the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    GraphThresholdsStyleMode,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    ReduceDataOptions,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

_SOURCE = models.DataSourceRef("prometheus", "${datasource}")
_GREEN, _AMBER, _RED, _NONE = "green", "orange", "red", "transparent"


class Kind(Enum):
    """How a plot is drawn."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    HEATMAP = "heatmap"  # of a histogram's buckets


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The healthy range. Drawn green; outside it is amber, or red beyond `alarm`."""

    low: float | None = None
    high: float | None = None
    alarm: float | None = None  # above `high`

    def steps(self) -> list[models.Threshold]:
        """Colours from each value on."""
        steps = [models.Threshold(None, _AMBER if self.low is not None else _GREEN)]
        if self.low is not None:
            steps.append(models.Threshold(self.low, _GREEN))
        if self.high is not None:
            steps.append(models.Threshold(self.high, _AMBER))
        if self.alarm is not None:
            steps.append(models.Threshold(self.alarm, _RED))
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One panel. `unit` is Grafana's; `text` says what one sees and what to do about it. `width` of 24."""

    title: str
    text: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = Kind.LINES
    band: Band | None = None
    most: float | None = None
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Plots under one heading."""

    title: str
    plots: Sequence[Plot]


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable of the dashboard: values of a label of a series; all of them unless one is picked."""

    name: str
    series: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    text: str
    choices: Sequence[Choice]
    rows: Sequence[Row]

    def build(self) -> models.Dashboard:
        """As Grafana's model, ready to be written as JSON."""
        made = (
            builders.Dashboard(self.title)
            .uid(self.uid)
            .description(self.text)
            .tags(["canopy"])
            .refresh("10s")
            .time("now-30m", "now")
            .timezone("browser")
            .tooltip(models.DashboardCursorSync.CROSSHAIR)
            .link(builders.DashboardLink("Canopy").type(models.DashboardLinkType.DASHBOARDS).tags(["canopy"]))
            .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        )
        for choice in self.choices:
            made = made.with_variable(_variable(choice))
        for row in self.rows:
            made = made.with_row(builders.Row(row.title))
            for plot in row.plots:
                made = made.with_panel(_panel(plot))
        return made.build()


def rate(name: str, by: str, where: str = "") -> str:
    """A counter's growth a second, summed by the labels in `by`."""
    series = f"{name}{{{where}}}" if where else name
    total = f"sum by ({by}) " if by else "sum"
    return f"{total}(rate({series}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """One expression by another, where there is anything."""
    return f"{part} / ({whole} > 0)"


def quantiles(histogram: str, by: str, *, where: str = "", which: Sequence[float] = (0.5, 0.9, 0.99)) -> list[Query]:
    """Quantiles of a histogram's observations, apart by the label `by`."""
    buckets = rate(f"{histogram}_bucket", f"{by}, le" if by else "le", where)
    legend = f" {{{{{by}}}}}" if by else ""
    return [Query(f"histogram_quantile({part}, {buckets})", f"p{round(part * 100)}{legend}") for part in which]


def mean(histogram: str, by: str, *, where: str = "") -> Query:
    """The mean of a histogram's observations."""
    expr = share(rate(f"{histogram}_sum", by, where), rate(f"{histogram}_count", by, where))
    return Query(expr, f"mean {{{{{by}}}}}")


def _variable(choice: Choice) -> builders.QueryVariable:
    return (
        builders.QueryVariable(choice.name)
        .datasource(_SOURCE)
        .query(f"label_values({choice.series}, {choice.label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all", selected=True))
    )


def _panel(plot: Plot) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    if plot.kind is Kind.NUMBER:
        return _number(plot)
    if plot.kind is Kind.HEATMAP:
        return _heatmap(plot)
    return _lines(plot)


def _lines(plot: Plot) -> timeseries.Panel:
    panel = timeseries.Panel().title(plot.title).description(plot.text).datasource(_SOURCE)
    panel = panel.unit(plot.unit).min(0).height(8).span(plot.width).fill_opacity(10).line_width(1)
    panel = panel.legend(
        common_builders.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    ).tooltip(common_builders.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    if plot.most is not None:
        panel = panel.max(plot.most)
    if plot.kind is Kind.STACK:
        panel = panel.fill_opacity(60).stacking(common_builders.StackingConfig().mode(StackingMode.NORMAL))
    if plot.band is not None:
        panel = panel.thresholds(_thresholds(plot.band)).thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.AREA)
        )
    for query in plot.queries:
        panel = panel.with_target(prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto"))
    return panel


def _number(plot: Plot) -> stat.Panel:
    panel = stat.Panel().title(plot.title).description(plot.text).datasource(_SOURCE)
    panel = panel.unit(plot.unit).height(4).span(plot.width)
    panel = panel.reduce_options(_LastValue())
    if plot.band is not None:
        panel = panel.thresholds(_thresholds(plot.band))
    for query in plot.queries:
        panel = panel.with_target(prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto"))
    return panel


def _heatmap(plot: Plot) -> heatmap.Panel:
    panel = heatmap.Panel().title(plot.title).description(plot.text).datasource(_SOURCE)
    panel = panel.unit(plot.unit).height(8).span(plot.width)
    panel = panel.rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))
    for query in plot.queries:
        target = prometheus.Dataquery().expr(query.expr).legend_format("{{le}}").format(PromQueryFormat.HEATMAP)
        panel = panel.with_target(target)
    return panel


def _thresholds(band: Band) -> builders.ThresholdsConfig:
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(band.steps())


class _LastValue(common_builders.ReduceDataOptions):
    """The last value that is one."""

    def build(self) -> ReduceDataOptions:
        return ReduceDataOptions(calcs=["lastNotNull"])
