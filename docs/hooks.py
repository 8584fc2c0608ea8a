"""What mkdocs.yml cannot say: pages made of files that are kept elsewhere, and links that go there.

README.md, CONTRIBUTING.md and CHANGELOG.md lie at the root, where people look for them, and are pages of the
site too; how to add a strategy is a page of its own. A notebook becomes a page of its text, code and stored
outputs. A link to a file of the repository that is no page keeps its text and loses its address.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
STRATEGY = re.compile(r"^## Adding a strategy\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files, config):
    """Add the pages that are made."""
    root = Path(config.config_file_path).parent
    for source, page in PAGES.items():
        text = (root / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=STRATEGY.sub("", text)))
        for section in STRATEGY.finditer(text):
            page = f"# Your own strategy\n{section['text']}"
            files.append(File.generated(config, "own-strategy.md", content=page))
    for notebook in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=_page(notebook)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links at pages of the site, whatever file they are made of."""
    root = Path(config.config_file_path).parent
    made_of = {page: source for source, page in PAGES.items()}
    uri = page.file.src_uri
    here = posixpath.dirname(made_of.get(uri, f"docs/{uri}"))

    def link(found):
        target = posixpath.normpath(posixpath.join(here, found["target"]))
        wanted = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if wanted is not None and files.get_file_from_path(wanted) is not None:
            relative = posixpath.relpath(wanted, posixpath.dirname(uri) or ".")
            return f"[{found['text']}]({relative}{found['anchor'] or ''})"
        if (root / target).exists():
            return found["text"]
        return found[0]  # broken: MkDocs says so

    return LINK.sub(link, markdown)


def _page(notebook):
    """A notebook as Markdown: text, code, and what it printed or drew."""
    parts = [f"[Download this notebook]({notebook.name})"]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_output(output) for output in cell["outputs"]]
    title = next(i for i, part in enumerate(parts) if part.startswith("# "))
    parts[0], parts[title] = parts[title], parts[0]  # the title first, then the download
    return "\n\n".join(parts) + "\n"


def _output(output):
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f"<figure>{''.join(data['image/svg+xml'])}</figure>"
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return f"```text\n{text.rstrip()}\n```"
