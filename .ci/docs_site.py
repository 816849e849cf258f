"""What mkdocs does not do by itself for the site of the documentation; a hook of mkdocs.yml.

Some files of the repository that are not in docs/ become pages of the site. A link that leads out of docs/ goes to such
a page, or becomes plain text, because the site does not have the file. A link to nothing fails the strict build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "deploy/kubernetes/README.md": "kubernetes.md",
}
"""Files of the repository, and the pages that they become."""

DIAGRAMS = {"index.md": ("img/message.svg", "A message's way from a rejection through a tier back to its queue")}
"""Pages whose Mermaid diagram is shown as a picture: drawing it in a browser needs a program from elsewhere."""

DECISIONS = "adr/*"
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
MERMAID = re.compile(r"^```mermaid\n.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^][]|\[[^]]*\])*)\]\((?P<target>[^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:|#")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists all decisions where the navigation says `adr/*`."""
    found = sorted(f"adr/{path.name}" for path in Path(config.docs_dir, "adr").glob("*.md"))
    config.nav = _with_decisions(config.nav, found)
    return config


def _with_decisions(nav: Any, found: list[str]) -> Any:
    if isinstance(nav, list):
        return [_with_decisions(part, found) for part in nav]
    if isinstance(nav, dict):
        return {title: _with_decisions(part, found) for title, part in nav.items()}
    return found if nav == DECISIONS else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  mkdocs names them
    here = page.file.src_uri
    if here in DIAGRAMS:
        picture, description = DIAGRAMS[here]
        markdown = MERMAID.sub(f"![{description}](docs/{picture})", markdown)
    origin = next((source for source, made in PAGES.items() if made == here), f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        path, hash_sign, anchor = link["target"].partition("#")
        if ELSEWHERE.match(link["target"]):
            return link[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        target = PAGES.get(wanted) or PAGES.get(posixpath.join(wanted, "README.md"))
        if target is None and files.get_file_from_path(wanted.removeprefix("docs/")):
            target = wanted.removeprefix("docs/")
        if target is None:
            # Another file or folder of the repository; a dead link stays, for the strict build to find.
            return link["text"] if (ROOT / wanted).exists() else link[0]
        address = posixpath.relpath(target, posixpath.dirname(here) or ".")
        return f"{link['image']}[{link['text']}]({address}{hash_sign}{anchor})"

    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(moved, markdown[at:])])
