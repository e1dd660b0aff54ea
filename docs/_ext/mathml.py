"""Formulas as MathML, which browsers draw themselves: no script, no font and no picture is loaded for them."""

from typing import Any


def _inline(self: Any, node: Any) -> None:
    self.body.append(_mathml(node.astext(), block=False))
    raise _skip()


def _display(self: Any, node: Any) -> None:
    self.body.append(f'<div class="math">{_mathml(node.astext(), block=True)}</div>')
    raise _skip()


def _skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()


def _mathml(formula: str, *, block: bool) -> str:
    from docutils.utils.math.latex2mathml import tex2mathml

    return tex2mathml(formula, as_block=block)


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True}
