"""Sphinx extension: writes the generated pages before Sphinx reads any, and renders formulas as MathML."""

import pathlib

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

from docs._ext import loss_pages, reference_pages


def write_pages(app: Sphinx) -> None:
    """Writes docs/losses and docs/reference, which git ignores."""
    docs = pathlib.Path(app.srcdir)
    getLogger(__name__).info("writing the pages of losses and of the reference...")
    # First, as it forks, before TensorFlow has computed anything in this process.
    reference_pages.write(docs)
    loss_pages.write(docs)


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Leads links to files beside docs to their pages, and names in the tables of losses to theirs."""
    source[0] = reference_pages.links_to_pages(source[0])
    if page == "losses":
        source[0] = loss_pages.with_links(source[0])


def visit_math(translator, node: nodes.math | nodes.math_block) -> None:
    """Writes a formula as MathML, which browsers draw without a program or a typeface from elsewhere."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", read_page)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
