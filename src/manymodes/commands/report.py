"""`manymodes report`: tables, figures and an interactive page from run directories."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from manymodes.commands.options import Parser
from manymodes.errors import require


def main(argv: Sequence[str]) -> int:
    """Write the report and say where it is."""
    parser = Parser(
        prog="manymodes report",
        description="A page that opens offline, the tables as Markdown, LaTeX, CSV, and figures on request.",
        exit_on_error=False,
    )
    parser.add_argument("folders", type=str, nargs="+", help="Run directories, or folders of them.")
    parser.add_argument("--out", type=str, default="", help="Where to write (default: the first folder).")
    parser.add_argument(
        "--figures", type=str, default="", help="Also every figure as svg, pdf, png (or several)."
    )
    parser.add_argument("--title", type=str, default="", help="The page's title.")
    values = parser.parse_args(list(argv))
    from manymodes.report.build import write_report
    from manymodes.report.export import parse_formats

    folders = [Path(folder) for folder in values.folders]
    out = Path(values.out) if values.out else folders[0]
    require(not out.exists() or out.is_dir(), f"--out {out} is a file: give a folder")
    figures: list[Path] = []

    def on_figure(path: Path) -> None:
        figures.append(path)
        if sys.stderr.isatty():
            print(f"\r  {len(figures)} figures", end="", file=sys.stderr, flush=True)

    written = write_report(folders, out, parse_formats(values.figures), values.title, on_figure)
    if figures:
        print("\r" if sys.stderr.isatty() else "", end="", file=sys.stderr)
        print(f"Figures: {len(figures)} files in {figures[0].parent.resolve()}")
    print(f"Report: {written[0].resolve()}")
    print(f"Tables: {', '.join(path.name for path in written[1:])}")
    return 0
