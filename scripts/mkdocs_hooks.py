"""Hooks that MkDocs runs on its configuration and on each page of docs/: see `hooks` in mkdocs.yml."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config):
    """Appends the lab notes to the navigation, the latest first, so that nobody lists them by hand."""
    notes = sorted((DOCS / "notes").glob("*.md"), reverse=True)
    if notes:
        config.nav.append({"Notes": [str(note.relative_to(DOCS)) for note in notes]})
    return config


def on_page_markdown(markdown, page, **_):
    """Replaces links to repository files outside the site by their text and path."""

    def outside(link):
        text, target, _ = link.groups()
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = (DOCS / page.file.src_uri).parent.joinpath(target).resolve()
        if path.is_relative_to(DOCS) or not path.is_relative_to(ROOT) or not path.exists():
            return link[0]
        return f"{text} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(outside, markdown)
