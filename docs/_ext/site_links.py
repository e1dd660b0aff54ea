"""Links that leave docs/: to a page of the repository's root, which the site shows, or to a file, which it names.

Pages are written to be read in the repository as well, where ``../../ARCHITECTURE.md`` leads to a file. On the site
such a link leads to the page that shows that file; where there is none, to the repository (``Repository`` in the
project's URLs), or, without an address, it becomes its words and the file's path.
"""

import re
import tomllib
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Pages of the site that show a file from elsewhere: document, file.
SHOWN = {
    "explanation/architecture": "ARCHITECTURE.md",
    "explanation/security": "SECURITY.md",
    "how-to/flower": "examples/federated/README.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/changelog": "CHANGELOG.md",
}
_DOCUMENT_OF = {file: document for document, file in SHOWN.items()}
_FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def rewritten(text: str, file: str, document: str, is_page: Any, repository: str | None) -> str:
    """``text`` of ``file`` (from the root), as ``document`` of the site shows it.

    >>> rewritten("[a](../LICENSE) [b](../SECURITY.md#x)", "docs/p.md", "p", lambda page: False, None)
    'a (`LICENSE`) [b](explanation/security.md#x)'
    """
    here = str(Path(document).parent)

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = normpath(Path(file).parent / target)
        page = _DOCUMENT_OF.get(path)
        if page is None and path.startswith("docs/"):
            inside = path.removeprefix("docs/")
            page = next((name for name in (inside.removesuffix(".md"), f"{inside}/index") if is_page(name)), None)
        if page is not None and page.startswith("reference/api/"):  # reST: reached by name, not by file
            return f"{{doc}}`{words} <{relpath(page, here)}>`"
        if page is not None:
            return f"[{words}]({relpath(page, here)}.md{anchor})"
        if repository is not None:
            return f"[{words}]({repository}/blob/main/{path}{anchor})"
        return f"`{path}`" if words in (path, Path(path).name) else f"{words} (`{path}`)"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def _read(app: Any, document: str, source: list[str]) -> None:
    if document.startswith("reference/api/"):
        return
    file = SHOWN.get(document, f"docs/{document}.md")
    if document in SHOWN:
        source[0] = (ROOT / file).read_text(encoding="utf-8")
        app.env.note_dependency(str(ROOT / file))
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    source[0] = rewritten(source[0], file, document, app.env.found_docs.__contains__, urls.get("Repository"))


def setup(app: Any) -> dict[str, bool]:
    from pygments.lexers.special import TextLexer

    app.add_lexer("layers", TextLexer)  # the fence whose text is compared with the checked layers
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
