"""Run the code blocks of a page, one after another, in the current folder: `python run_page.py PAGE.md`.

```python blocks share their names; one that begins with `# name.py` is also written to that file. Lines of
```sh blocks are run by bash, those that are nothing but a `manymodes` command within this process (torch is
imported once). A block that cannot run here says why in the line before it: <!-- not run: reason -->.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<excuse>[^\n]+?) -->\n\n?)?"
    r"^(?P<fence>```+)(?P<language>python|sh|bash)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
SHELL = set("|&;<>$`*?~(")  # whoever uses these needs a shell


class Block(NamedTuple):
    """One block: `line` is that of its first line of code; `excuse` says why it is not run."""

    language: str
    code: str
    line: int
    excuse: str | None


def blocks(text: str) -> list[Block]:
    """The blocks of a page in their order."""
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        language = "python" if match["language"] == "python" else "sh"
        found.append(Block(language, match["code"], line, match["excuse"]))
    return found


def run_python(block: Block, page: str, names: dict) -> None:
    """As if it stood in the page's line: tracebacks show where."""
    title = re.match(r"# (\w+\.py)\n", block.code)
    if title:
        Path(title[1]).write_text(block.code, encoding="utf-8")
    exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), names)


def run_shell(block: Block, page: str) -> None:
    """A command after another; the first that fails ends the page."""
    code = re.sub(r"\\\n\s*", "", block.code)
    for offset, line in enumerate([code] if SHELL & set(code) else code.splitlines()):
        words = [] if SHELL & set(line) else shlex.split(line, comments=True)
        if words and words[0] == "manymodes":
            from manymodes.cli import main

            status = main(words[1:])
        else:
            status = subprocess.run(["bash", "-euo", "pipefail", "-c", line]).returncode
        if status:
            sys.exit(f"{page}, line {block.line + offset}: exit code {status} of\n{line}")


def main(page: str) -> None:
    """Run the page."""
    names: dict = {"__name__": "__page__"}
    for block in blocks(Path(page).read_text(encoding="utf-8")):
        if block.excuse is None:
            print(f"--- {page}, line {block.line}", flush=True)
            run_python(block, page, names) if block.language == "python" else run_shell(block, page)


if __name__ == "__main__":
    sys.path.insert(0, "")  # what a page writes can be imported by what follows
    main(sys.argv[1])
