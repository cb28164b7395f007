"""The documents as a site: `make site`. The pages are the repository's own; nothing is copied.

The source folder is the repository's root, so that links between pages are the same on the site,
on a code host and in an editor. Pages hold no directives: the navigation is added here.
Sphinx, because MkDocs 1 is no longer maintained and its successors are not finished.
"""

import shutil
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

project = "Milepost"
author = "The Milepost authors"
copyright = author  # noqa: A001  Sphinx asks for the name
html_title = "Milepost"

extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md", "deploy/*.md"]
exclude_patterns = [".*", "build", "changelog.d", "dist", "src", "tests", "benchmarks", "tools"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_links_external_new_tab = False

nitpicky = True
# The specifications stand as they were given: one has no title, one has `$parameters` in SQL.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("mermaid.tiny.js", {"defer": "defer"}), ("diagrams.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"

TUTORIALS = ("first-steps", "batches", "pipelines")
EXPLANATIONS = ("how-it-works", "architecture", "comparison", "*")
NAVIGATION = {
    "Tutorials": ["Overview </docs/README>", *(f"/docs/tutorial/{t}" for t in TUTORIALS)],
    "How-to": ["/docs/how-to/*", "/deploy/README"],
    "Runbooks": ["/docs/runbooks/README", "/docs/runbooks/*"],
    "Explanation": [*(f"/docs/explanation/{e}" for e in EXPLANATIONS), "/docs/decisions/README"],
    "Specifications": [
        "/docs/specs/README",
        "A: batch states </docs/specs/A-batch-states>",
        "/docs/specs/*",
    ],
    "Reference": ["/docs/reference/*"],
    "Examples": ["/examples/*/README"],
    "Project": ["/CONTRIBUTING", "/SECURITY", "/CHANGELOG"],
}


class Diagram(SphinxDirective):
    """A mermaid block, drawn in the browser by the copy of mermaid that the site brings along."""

    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        """Hand the text on to `diagrams.js`."""
        text = escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">{text}</pre>', format="html")]


def toctree(pages: list[str], *, caption: str = "") -> str:
    """Render a group of the navigation; one without a caption is shown on its page."""
    options = [":hidden:", f":caption: {caption}"] if caption else [":maxdepth: 1"]
    return "\n".join(["\n```{toctree}", ":glob:", *options, "", *pages, "```\n"])


def add_navigation(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the navigation to the front page, and the decisions to theirs."""
    if docname == root_doc:
        source[0] += "".join(toctree(pages, caption=name) for name, pages in NAVIGATION.items())
    if docname == "docs/decisions/README":
        source[0] += toctree(["/docs/decisions/0*"])


def open_on_the_readme(app: Sphinx, failure: Exception | None) -> None:
    """Let the site's address show the README, whose links are relative to the same folder."""
    if failure is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Register the above."""
    app.add_directive("mermaid", Diagram)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", open_on_the_readme)
