"""A hook of MkDocs: what a page says of files outside docs/ stays as text, since the site does not hold them."""

import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page without such links; pages in folders of docs/ reach other pages by them."""
    return markdown if "/" in page.file.src_uri else LINK.sub(r"\1", markdown)
