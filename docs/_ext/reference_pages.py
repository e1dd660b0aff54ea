"""One page a public room, from its ``__all__`` and its docstrings; and where `names` in docstrings lead.

The pages are written into docs/reference/api before anything is read. Nothing here lists a name: what is public is what
the package says is public, and a name is documented once, under the shortest path that reaches it.
"""

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "decrescendo"
# Commands have a page of their own; the rest leaves the library for the papers' distribution.
_NOT_HERE = {"cli"}
_NESTED = ("federated.flower", "training.steering", "integrations.hf", "integrations.opacus")
_INTRO = """\
API
===

Everything below is reached from ``import decrescendo as dc``, or from the room it is in, such as
``from decrescendo.accounting import Pld``. Each example is run by the tests.

"""


def rooms(mocked: list[str]) -> Iterator[ModuleType]:
    """The package itself, then every room with a public surface; packages that are ``mocked`` need not be there."""
    from sphinx.ext.autodoc.mock import mock

    package = importlib.import_module(PACKAGE)
    yield package
    names = {info.name for info in pkgutil.iter_modules(package.__path__)} - _NOT_HERE
    public = {name for name in dir(package) if inspect.ismodule(getattr(package, name))} - _NOT_HERE
    for name in sorted(names | public):
        room = getattr(package, name) if name in public else importlib.import_module(f"{PACKAGE}.{name}")
        if name in public or hasattr(room, "__all__"):
            yield room
    for name in _NESTED:
        try:
            with mock(mocked):
                room = importlib.import_module(f"{PACKAGE}.{name}")
            yield room
        except ImportError:  # not built yet, or moved
            continue


def public_names(room: ModuleType) -> list[str]:
    """What the room says is public; for a module that says nothing, what is defined in it without an underscore."""
    declared = getattr(room, "__all__", None)
    if declared is not None:
        return [name for name in declared if name not in _NOT_HERE]
    return [
        name
        for name, value in vars(room).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == room.__name__
    ]


def identity(value: object) -> str | None:
    """Where a class or function was written: the same however it is reached."""
    if (inspect.isclass(value) or inspect.isroutine(value)) and getattr(value, "__module__", None):
        return f"{value.__module__}.{value.__qualname__}"
    return None


def _documented(mocked: list[str]) -> tuple[dict[str, list[tuple[str, object]]], dict[str, str]]:
    """Room to its names; and each thing's identity to the path it is documented under."""
    pages: dict[str, list[tuple[str, object]]] = {}
    homes: dict[str, str] = {}
    found = list({room.__name__: room for room in rooms(mocked)}.values())  # one may be reached in two ways
    curves = f"{PACKAGE}.curves"  # the papers' curves belong together, however short the way to each
    for room in sorted(found, key=lambda room: room.__name__ != curves and room.__name__ != "decrescendo.plans.curves"):
        for name in public_names(room):
            value = getattr(room, name)
            key = identity(value)
            if inspect.ismodule(value):
                continue
            pages.setdefault(room.__name__, []).append((name, value))
            homes.setdefault(key or f"{room.__name__}.{name}", f"{room.__name__}.{name}")
    return pages, homes


def _summary(value: object) -> str:
    text = (inspect.getdoc(value) or "").strip().split("\n\n")[0].replace("\n", " ")
    return text if identity(value) else ""


def _entry(room: str, name: str, value: object) -> str:
    if inspect.isclass(value):
        members = "   :members:\n"
        if issubclass(value, enum.Enum):
            members += "   :undoc-members:\n"
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return (
            f".. {kind}:: {room}.{name}\n{members}   :show-inheritance:\n"
            if kind == "autoexception"
            else (f".. {kind}:: {room}.{name}\n{members}")
        )
    if inspect.isroutine(value):
        return f".. autofunction:: {room}.{name}\n"
    text = " ".join(repr(value).split())
    shown = text if len(text) < 200 and " at 0x" not in text else f"a {type(value).__name__}"
    return f".. py:data:: {name}\n   :value: {shown}\n"


def write(folder: Path, mocked: list[str]) -> dict[str, str]:
    """All pages; returns the homes of what is documented."""
    pages, homes = _documented(mocked)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"index.rst"}
    order = sorted(pages, key=lambda room: (room != PACKAGE, room))
    for room in order:
        short = "dc" if room == PACKAGE else room.replace(PACKAGE, "dc", 1)
        title = f"``{room}``" if room != PACKAGE else f"``{PACKAGE}``, the names of a run"
        lines = [title, "=" * len(title), "", f".. automodule:: {room}", "   :no-members:", ""]
        here = [(name, value) for name, value in pages[room] if _home(room, name, value, homes) == f"{room}.{name}"]
        away = [(name, value) for name, value in pages[room] if (name, value) not in here]
        for name, value in here:
            lines += [_entry(room, name, value), ""]
        if away:
            links = ", ".join(f":py:obj:`{name} <{_home(room, name, value, homes)}>`" for name, value in away)
            lines += [f"Also reached as ``{short}.<name>``: {links}.", ""]
        file = f"{room.removeprefix(PACKAGE + '.')}.rst"
        wanted.add(file)
        _write(folder / file, "\n".join(lines))
    entries = "".join(f"   {room.removeprefix(PACKAGE + '.')}\n" for room in order)
    _write(folder / "index.rst", f"{_INTRO}.. toctree::\n   :maxdepth: 1\n\n{entries}")
    for stale in folder.glob("*.rst"):
        if stale.name not in wanted:
            stale.unlink()
    return homes


def _home(room: str, name: str, value: object, homes: dict[str, str]) -> str:
    return homes[identity(value) or f"{room}.{name}"]


def _write(file: Path, text: str) -> None:
    """Only what has changed, so that nothing is read again for nothing."""
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def _generate(app: Any) -> None:
    app.decrescendo_homes = write(Path(app.srcdir) / "reference/api", app.config.autodoc_mock_imports)


def _resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Where a type in a signature or a `name` in a docstring leads: to the page of the name that is public."""
    if node.get("refdomain") != "py":
        return None
    homes: dict[str, str] = app.decrescendo_homes
    target = node["reftarget"].lstrip("~.")
    domain = env.get_domain("py")
    tries = [homes.get(target), homes.get(f"{node.get('py:module')}.{target}"), target]
    head, _, rest = target.partition(".")
    tries += [f"{home}.{rest}" if rest else home for home in homes.values() if home.rsplit(".", 1)[1] == head]
    for path in tries:
        if path is not None and path in domain.objects:
            found = domain.objects[path]
            from sphinx.util.nodes import make_refnode

            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, contnode, path)
    return contnode  # a name of another library, or one that is not public: shown, not linked


def _autolink(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()
) -> Any:
    from docutils import nodes
    from sphinx import addnodes

    if not text.replace(".", "").replace("_", "").isalnum():
        return [nodes.literal(rawtext, text)], []
    env = inliner.document.settings.env
    reference = addnodes.pending_xref(
        rawtext, nodes.literal(rawtext, text, classes=["xref", "py"]), refdomain="py", reftype="obj", reftarget=text,
        refdoc=env.docname, refwarn=False,
    )  # fmt: skip
    reference["py:module"] = env.ref_context.get("py:module")
    reference["py:class"] = env.ref_context.get("py:class")
    return [reference], []


def readable(lines: list[str]) -> None:
    """A docstring as reST, in place: bars are bars, and a section of hanging items becomes a list.

    >>> lines = ["|g_i| first.", "", "Edge cases:", "    one row", "        of two lines", "    another"]
    >>> readable(lines)
    >>> print("\\n".join(lines))
    \\|g_i\\| first.
    <BLANKLINE>
    Edge cases:
        - one row
          of two lines
        - another
    """
    end = next((at for at, line in enumerate(lines) if line.lstrip().startswith(">>>")), len(lines))
    lines[:end] = [
        re.sub(r"``.*?``|\\?\|", lambda found: "\\|" if found[0] == "|" else found[0], line) for line in lines[:end]
    ]
    for start, line in enumerate(lines[:end]):
        if line.strip() not in ("Guarantee:", "Edge cases:"):
            continue
        depth = len(line) - len(line.lstrip())
        stop = start + 1
        while stop < end and (not lines[stop].strip() or len(lines[stop]) - len(lines[stop].lstrip()) > depth):
            stop += 1
        body = [text for text in lines[start + 1 : stop] if text.strip()]
        if not body or any(text.lstrip().startswith("- ") for text in body):
            continue
        first = min(len(text) - len(text.lstrip()) for text in body)
        if all(len(text) - len(text.lstrip()) == first for text in body):
            continue
        items = [
            " " * first + ("- " if len(text) - len(text.lstrip()) == first else "  ") + text.strip() for text in body
        ]
        lines[start + 1 : stop] = [*items, *[""] * (stop - start - 1 - len(items))]


def _docstring(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    readable(lines)


def _signature(app: Any, what: str, name: str, thing: Any, options: Any, signature: str, returns: str) -> Any:
    """A protocol is not made by calling it."""
    return ("", returns) if getattr(thing, "_is_protocol", False) else None


def _dashes(app: Any, tree: Any) -> None:
    """Sphinx puts two hyphens between a parameter and what it is, for a typographer that is switched off."""
    from docutils import nodes

    for text in list(tree.findall(nodes.Text)):
        if str(text) == " -- ":
            text.parent.replace(text, nodes.Text(": "))


def setup(app: Any) -> dict[str, bool]:
    from docutils.parsers.rst import roles

    roles.register_local_role("autolink", _autolink)
    app.connect("builder-inited", _generate)
    app.connect("missing-reference", _resolve)
    app.connect("doctree-read", _dashes)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _docstring, priority=100)  # before napoleon
    return {"parallel_read_safe": True}
