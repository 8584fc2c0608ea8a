"""Examples in docstrings are shown as code: MkDocs would take `>>>` for three quotations."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Put a fence around every doctest."""

    def on_object(self, *, obj, **kwargs):
        """Called for every module, class and function that is read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
