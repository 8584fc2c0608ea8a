"""How charts look: tokens for light, dark and print, and colours that the colour-blind can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manymodes.report.groups import Method

SANS = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', Arial, sans-serif"

TOKENS: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff", "ink": "#1c1f23", "muted": "#5c636b", "grid": "#e7e8ea", "axis": "#b9bec4",
        "accent": "#b8410a", "low": "#eef2f6", "high": "#0b4f8a", "cell": "#000000", "onfill": "#ffffff",
    },
    "dark": {
        "paper": "#171a1e", "ink": "#e9eaec", "muted": "#a3abb4", "grid": "#2a2f35", "axis": "#535b64",
        "accent": "#ff9a5c", "low": "#20262d", "high": "#8cc8ff", "cell": "#ffffff", "onfill": "#000000",
    },
}  # fmt: skip

# From this share of a heat map's scale on, a cell needs the other ink to be read.
FLIP = {"light": 0.735, "dark": 0.505}

# Slots: the same method has the same colour in every report. Chosen for contrast on both backgrounds and
# for distance under simulated protanopia and deuteranopia (tests/report/test_theme.py measures both).
CATEGORY: dict[str, tuple[str, ...]] = {
    "light": ("#c2410c", "#1d5fb4", "#0a6141", "#681a66", "#af8659", "#0c1484", "#1098c7", "#6d0a09"),
    "dark": ("#ff9a5c", "#6aa8f7", "#7dca9a", "#a052ab", "#f7f4a9", "#486de7", "#78d1f4", "#bf5355"),
}
NEUTRAL: dict[str, tuple[str, str]] = {"light": ("#767c84", "#1c1f23"), "dark": ("#8f979f", "#e9eaec")}
SLOTS = ("mota", "ewc", "ensemble", "si", "lwf", "lwf-ewc", "er", "agem")
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
REFERENCES = {"finetune": 0, "multitask": 1}
RAMPS = {"light": ("#9cc7ea", "#0b3d6e"), "dark": ("#2f6690", "#cfe8ff")}


class Palette:
    """Colours (by theme), shapes and dashes of a list of things, in its order."""

    def __init__(self, names: Sequence[str], colors: dict[str, list[str]], shapes: list[str]) -> None:
        self.names, self.colors, self.shapes = list(names), colors, shapes
        self.dashes: list[list[int]] = [[1, 0]] * len(self.names)

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {"names": self.names, "shapes": self.shapes, **self.colors}


def of_methods(methods: Sequence[Method]) -> Palette:
    """Known strategies in their slots, others in free ones; the two reference lines grey and dashed."""
    free = [slot for slot in range(len(SLOTS)) if SLOTS[slot] not in {m.strategy for m in methods}]
    taken: set[int] = set()
    picks: list[tuple[str, int, int]] = []  # which colours, which of them, which shape
    for method in methods:
        if method.strategy in REFERENCES:
            grey = REFERENCES[method.strategy]
            picks.append(("neutral", grey, grey))
            continue
        slot = SLOTS.index(method.strategy) if method.strategy in SLOTS else -1
        if slot < 0 or slot in taken:
            slot = next((s for s in free if s not in taken), len(picks) % len(SLOTS))
        # Colours used twice come with another shape.
        shape = slot if slot not in taken else slot + 3
        taken.add(slot)
        picks.append(("category", slot, shape))
    colors = {
        theme: [NEUTRAL[theme][n] if kind == "neutral" else CATEGORY[theme][n] for kind, n, _ in picks]
        for theme in TOKENS
    }
    palette = Palette([m.label for m in methods], colors, [SHAPES[s % len(SHAPES)] for *_, s in picks])
    palette.dashes = [[4, 3] if kind == "neutral" else [1, 0] for kind, *_ in picks]
    return palette


def of_modes(count: int) -> Palette:
    """Mode 1, mode 2, ..."""
    order = (1, 0, 2, 4, 3, 5, 6, 7)
    slots = [order[n % len(order)] for n in range(count)]
    colors = {theme: [CATEGORY[theme][s] for s in slots] for theme in TOKENS}
    return Palette([f"mode {n + 1}" for n in range(count)], colors, [SHAPES[n % 8] for n in range(count)])


def of_tasks(count: int) -> Palette:
    """Task 1 to task T on a ramp."""
    colors = {theme: [_mix(*RAMPS[theme], n / max(1, count - 1)) for n in range(count)] for theme in TOKENS}
    return Palette([f"task {n + 1}" for n in range(count)], colors, ["circle"] * count)


def _mix(first: str, last: str, share: float) -> str:
    channels = [
        round(int(first[i : i + 2], 16) * (1 - share) + int(last[i : i + 2], 16) * share) for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def config(theme: str) -> dict[str, Any]:
    """The Vega-Lite configuration of "light" or "dark"; specifications name colours by parameter only."""
    token = TOKENS[theme]
    text = {"labelColor": token["muted"], "titleColor": token["ink"], "labelFont": SANS, "titleFont": SANS}
    return {
        "background": "transparent",
        "font": SANS,
        "params": [
            *({"name": name, "value": value} for name, value in token.items()),
            {"name": "flip", "value": FLIP[theme]},
        ],
        "axis": text | {
            "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500, "titlePadding": 10,
            "gridColor": token["grid"], "domain": False, "ticks": False, "labelPadding": 6,
            "labelOverlap": True, "labelLimit": 220,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": token["axis"]},
        "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -12},
        "legend": text | {
            "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500, "symbolSize": 90,
            "symbolOpacity": 1, "symbolStrokeWidth": 0,  # not those of the palest mark, an interval's band
        },
        "header": text | {"labelFontSize": 12, "titleFontSize": 12},
        "title": {"color": token["ink"], "font": SANS, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "view": {"stroke": None},
        "line": {"strokeWidth": 2, "strokeCap": "round"},
        "point": {"size": 60, "filled": True},
        "rule": {"color": token["axis"]},
        "text": {"color": token["ink"], "font": SANS, "fontSize": 12},
        "range": {"heatmap": [token["low"], token["high"]], "ramp": [token["low"], token["high"]]},
    }  # fmt: skip


def printed(palette: Palette) -> dict[str, Any]:
    """The configuration for SVG, PDF and PNG: light, on white, with the palette's colours."""
    found = config("light")
    found["range"] |= {"category": palette.colors["light"], "symbol": palette.shapes}
    return found | {"background": "white", "padding": 12}
