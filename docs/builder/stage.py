"""The staged site: a folder of Markdown that mkdocs, or Zensical, turns into HTML.

    build/site/mkdocs.yml       docs/mkdocs.yml, with the navigation of generated pages
    build/site/pages/           docs/pages, and what the modules of this folder add
    build/site/runs/NN/         what each lesson wrote when it ran, kept for the next build
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
GENERATED = "generated"         # in the navigation of mkdocs.yml: `- Lessons: generated`


class Stage:
    """The folder in which the site is put together; `sections` are generated pages by heading."""

    def __init__(self, folder: Path):
        self.folder, self.pages = folder, folder / "pages"
        self.sections: dict[str, list[dict[str, str]]] = {}
        self.left_out: list[str] = []       # sentences on what could not be built
        shutil.rmtree(self.pages, ignore_errors=True)
        shutil.copytree(PAGES, self.pages)

    def write(self, path: str, text: str) -> None:
        """Write a page or another file, by its path within the pages."""
        file = self.pages / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def add(self, section: str, title: str, path: str, text: str) -> None:
        """Write a page, and name it in a section of the navigation."""
        self.write(path, text)
        self.sections.setdefault(section, []).append({title: path})

    def markdown(self) -> list[Path]:
        """All pages."""
        return sorted(self.pages.rglob("*.md"))

    def configure(self) -> Path:
        """Write mkdocs.yml, with the generated sections in place; return its path."""
        config = yaml.safe_load((ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8"))
        config["nav"] = [entry for entry in map(self._filled, config["nav"]) if entry]
        config |= {"docs_dir": "pages", "site_dir": "html"}
        config["theme"]["custom_dir"] = str(ROOT / "docs" / "overrides")
        path = self.folder / "mkdocs.yml"
        path.write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False),
                        encoding="utf-8")
        return path

    def _filled(self, entry: Any) -> Any:
        """An entry of the navigation; a generated one with its pages, None if it has none."""
        (title, content), = entry.items()
        if content == GENERATED:
            content = self.sections.get(title)
            if content and len(content) == 1:           # a single page, not a section
                return content[0]
        elif isinstance(content, list):
            content = [filled for filled in map(self._filled, content) if filled]
        return {title: content} if content else None
