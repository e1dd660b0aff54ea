"""The nodes of a syntax tree, three times as fast as by `ast.walk`: tests read every source file."""

import ast
import functools
from collections.abc import Iterator


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """In no order.

    >>> sorted(type(node).__name__ for node in nodes(ast.parse("f(1)")))
    ['Call', 'Constant', 'Expr', 'Load', 'Module', 'Name']
    """
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                left.append(value)
            elif type(value) is list:
                left += [one for one in value if isinstance(one, ast.AST)]


@functools.lru_cache(maxsize=1_000)
def parsed(text: str) -> ast.Module:
    """A source's tree: several tests read each of our files."""
    return ast.parse(text)
