"""How long `manymodes --help` takes, beside an empty Python and one that imports torch.

    python benchmarks/start.py [--quick] [--rounds N] [--json PATH]

New processes, in turns; the first round (cold files) is not counted. Seconds are medians.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

COMMANDS = {
    "empty Python": ["-c", "pass"],
    "manymodes --help": ["-m", "manymodes", "--help"],
    "manymodes --version": ["-m", "manymodes", "--version"],
    "manymodes list models": ["-m", "manymodes", "list", "models"],
    "manymodes run --help": ["-m", "manymodes", "run", "--help"],
    "import torch": ["-c", "import torch"],
}


def seconds(words: list[str]) -> float:
    started = perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(1 + (given.rounds or (3 if given.quick else 11))):
        for name, words in COMMANDS.items():
            taken = seconds(words)
            if number:
                found[name].append(taken)
    result = {name: median(times) for name, times in found.items()}
    for name, taken in result.items():
        print(f"{name:24}{taken:8.3f} s")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
