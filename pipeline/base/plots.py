"""Pictures: the one module that draws. Lines on logarithmic or linear axes, as SVG and PNG, the same bytes every time.

matplotlib is imported where a picture is drawn: its half second is for pictures alone, and installations may lack it.
"""

import base64
import io
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import PlanError, arg, file_errors, require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
COLOURS = ("#1b4f72", "#b9770e", "#1e8449", "#922b21", "#6c3483", "#117a65", "#7b7d7d", "#d35400", "#2e86c1", "#a04000")
DASHES = ("-", "--", "-.", ":")  # lines are told apart without colours too
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")  # of lines of one family in one picture
# One look for each family in all pictures: the colour tells the kind, the dash its noise.
FAMILIES: Mapping[str, tuple[str, Any]] = {
    "gaussian": ("#1b4f72", "-"),
    "laplace": ("#3498db", "--"),
    "generalized_gaussian": ("#b9770e", "-."),
    "exponential_polylog": ("#1e8449", ":"),
    "symmetric_stable": ("#16a085", (0, (6, 1.5, 1, 1.5, 1, 1.5))),
    "designed": ("#d81b7a", (0, (8, 2))),
    "unit_splitting": ("#7b7d7d", (0, (2, 1))),
    "root": ("#922b21", "-"),
    "log": ("#6c3483", "-"),
    "groupwise_log": ("#a569bd", "-"),
    "groupwise_noisy": ("#a04000", "--"),
    "groupwise_direct": ("#e74c3c", ":"),
}
PRACTICES = {"suppression": "#595959", "multiplicative noise": "#000000", "prdp": "#c0392b"}  # beside each other
TOTAL: Mapping[str, Any] = {"color": "black", "linestyle": "-", "linewidth": 2.2}
REFERENCE: Mapping[str, Any] = {"color": "0.8", "linewidth": 0.8, "zorder": 0}  # a line at a reference or a limit
SETTINGS: Any = {"svg.hashsalt": "prdp", "svg.fonttype": "path", "font.size": 9}

Draw = Callable[[Sequence["Axes"]], Callable[[Sequence["Axes"]], None] | None]


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of its files, by their suffix."""

    title: str
    files: Mapping[str, bytes]

    @property
    def data_uri(self) -> str:
        """The SVG as an address that holds it, for a page that loads nothing."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.files[".svg"]).decode()


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def picture(
    title: str,
    draw: Draw,
    *,
    panels: int = 1,
    size: tuple[float, float] = (11.5, 4.4),
    formats: Iterable[str] = (".svg",),
) -> Picture:
    """Return what `draw` draws into that many panels beside each other, of `size` inches in all.

    One legend, below the panels, names all labelled lines. What `draw` returns, if anything, draws on once places are
    known: labels at lines. Raises PlanError unless `can_draw`.
    """
    require_package("matplotlib", "a picture")
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # not its word that it looks for fonts
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=11)
        axes: Sequence[Axes] = figure.subplots(1, panels, squeeze=False)[0]
        finish = draw(axes)
        for panel in axes:
            panel.grid(visible=True, which="major", color="0.93")
            panel.spines[["top", "right"]].set_visible(False)
        if labels := [label for panel in axes for label in panel.get_legend_handles_labels()[1]]:
            columns = size[0] / (0.07 * max(map(len, labels)) + 0.7)  # inches of a letter, and of a line
            figure.legend(loc="outside lower center", ncols=max(1, min(4, int(columns))), frameon=False, fontsize=8.5)
        if finish is not None:
            figure.draw_without_rendering()
            finish(axes)
        return Picture(title, {suffix: _bytes(figure, suffix) for suffix in formats})


def family_look(described: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the colour and the dash of a mechanism, as JSON has it: of its family, the same in all pictures.

    The first root is the identity: there the family is the noise's own.
    """
    noise = described.get("noise")
    of_noise = str(noise["kind"] if isinstance(noise, Mapping) else noise or "gaussian")
    if described["kind"] == "root" and described.get("k") == 1:
        return FAMILIES[of_noise]
    colour, dash = FAMILIES[str(described["kind"])]
    return colour, dash if noise is None else FAMILIES[of_noise][1]


def family_styles(mechanisms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how the lines of these mechanisms look in one picture; those that look alike get markers, in order."""
    looks = [family_look(described) for described in mechanisms]
    before = [looks[:i].count(look) for i, look in enumerate(looks)]
    return [
        {"color": colour, "linestyle": dash, "linewidth": 1.5, "zorder": 2 if dash == "-" else 2.2}  # dashes on top
        | ({"marker": MARKERS[n % len(MARKERS)], "markersize": 3.5, "markevery": 0.11} if n else {})
        for (colour, dash), n in zip(looks, before, strict=True)
    ]


def label_ends(axes: "Axes", ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name lines at their right ends (x, y, label, colour), in their colours and apart from each other."""
    for (x, y, text, colour), height in zip(ends, _places(axes, [y for _, y, _, _ in ends]), strict=True):
        axes.annotate(text, (x, y), xytext=(1.03, height), ha="left", **_words(colour))


def label_points(axes: "Axes", points: Sequence[tuple[float, float, str]]) -> None:
    """Name points (x, y, label) at their upper left, apart from each other."""
    across = axes.transData + axes.transAxes.inverted()
    for (x, y, text), height in zip(points, _places(axes, [y for _, y, _ in points], 12), strict=True):
        left = float(across.transform((x, y))[0]) - 0.035
        axes.annotate(text, (x, y), xytext=(left, height), ha="right", **_words("black"))


def _places(axes: "Axes", heights: Sequence[float], above: float = 0) -> list[float]:
    """Return heights of labels as shares of the axes', `above` points over those that are given, and a line apart."""
    points = axes.get_window_extent().height * 72 / axes.figure.get_dpi()
    across, left = axes.transData + axes.transAxes.inverted(), axes.get_xlim()[0]
    wanted = [float(across.transform((left, y))[1]) + above / points for y in heights]
    return apart(wanted, 10.5 / points)


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Return places near those wanted, in their order, that are at least `gap` apart and within 0 and 1 if they fit.

    Examples:
        >>> [round(place, 2) for place in apart([0.5, 0.5, 0.95], 0.1)]
        [0.45, 0.55, 0.95]
    """
    groups: list[list[int]] = []  # labels that stand close together, about their mean
    for i in sorted(range(len(wanted)), key=wanted.__getitem__):
        groups.append([i])
        while len(groups) > 1 and _ends(groups[-2], wanted, gap)[1] > _ends(groups[-1], wanted, gap)[0]:
            groups[-2:] = [groups[-2] + groups[-1]]
    starts = ((group, _ends(group, wanted, gap)[0]) for group in groups)
    places = {i: start + n * gap for group, start in starts for n, i in enumerate(group)}
    return [places[i] for i in range(len(wanted))]


def _ends(group: Sequence[int], wanted: Sequence[float], gap: float) -> tuple[float, float]:
    middle, height = sum(wanted[i] for i in group) / len(group), gap * (len(group) - 1)
    start = max(0.0, min(1.0 - height, middle - height / 2))
    return start, start + height + gap


def _words(colour: str) -> dict[str, Any]:
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 1}
    position = {"textcoords": "axes fraction", "va": "center", "annotation_clip": False}
    return {"color": colour, "fontsize": 8, "arrowprops": line} | position


def line_style(i: int, dash: str | None = None) -> dict[str, Any]:
    """Return how the i-th line of a picture looks: all its colours first, then the next dashes, or `dash`."""
    dash = DASHES[i // len(COLOURS) % len(DASHES)] if dash is None else dash
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": dash, "linewidth": 1.5}


def require_format(target: Path) -> None:
    """Raise PlanError unless `target` is named as a picture that can be drawn."""
    if target.suffix.lower() not in FORMATS:
        raise PlanError(f"{arg('plot', target)}: name a file that ends in {' or '.join(FORMATS)}")


def write_picture(target: Path, title: str, draw: Draw, **layout: Any) -> None:
    """Write the `picture` to the SVG or PNG file `target`; raises PlanError where that is neither or not writable."""
    require_format(target)
    suffix = target.suffix.lower()
    drawn = picture(title, draw, formats=[suffix], **layout)
    with file_errors(f"{arg('plot', target)}: it cannot be written (", ")", PlanError):
        target.write_bytes(drawn.files[suffix])


def _bytes(figure: Any, suffix: str) -> bytes:
    file = io.BytesIO()
    metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
    figure.savefig(file, format=suffix[1:], dpi=120, metadata=metadata)
    return file.getvalue()
