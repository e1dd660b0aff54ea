"""Follows every link inside the built site, without the network, and says what is loaded from elsewhere.

``python docs/_ext/check_site.py site``
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows the page.
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in _LOADED and found.get(_LOADED[tag]):
            self.loaded.append(str(found[_LOADED[tag]]))


def broken(site: Path) -> list[str]:
    """One sentence a broken link, and one a thing that is loaded from outside."""
    pages: dict[Path, _Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file] = _Page()
        pages[file].feed(file.read_text(encoding="utf-8"))
    found: list[str] = []
    for file, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{file.relative_to(site)} loads {link}")
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.is_file():
                found.append(f"{file.relative_to(site)} links to {link}, which is not there")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{file.relative_to(site)} links to {link}, where nothing has that name")
    return found


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    found = broken(site)
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages, every link inside leads somewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
