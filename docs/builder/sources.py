"""Links to the source: a file, folder or module that a page names in `code` becomes a link.

    `minipar/comm/mesh.py`, line 12     that line, on the page of the file below source/
    `comm/mesh.py`, `mesh.py`           the same: below minipar/, in the package of an API page, or
                                        the only file of this name
    `minipar/comm/cost/`, `comm/cost/`  api/minipar.comm.cost/
    `minipar.comm.mesh`                 api/minipar.comm/#minipar.comm.mesh

This works on the built HTML, which has the generator's names, too: `Source code in …`.  The pages
below source/ are those of the files that are named.
"""

import html
import os
import re
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from stage import ROOT

FOLDERS, SUFFIXES = ("minipar", "lessons", "tests", "docs"), (".py", ".toml")
ARTICLE = re.compile(r"<article\b.*?</article>", re.DOTALL)
NAME = re.compile(                  # no link stands in a summary: that is a button
    r'<summary>Source code in <code>(?P<file>[\w./-]+)</code></summary>'
    r'(?=\s*<div class="highlight">\D*(?P<first>\d+))|'
    r'<(?P<kept>a|pre|script|summary)\b.*?</(?P=kept)>|'
    r'<code>(?P<name>[\w./-]+)</code>(?=, line (?P<line>\d+)|)', re.DOTALL)
STYLE = "assets/source.css"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name} - minipar</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{up}{style}"><link rel="icon" href="{up}assets/images/favicon.png">
</head>
<body><main><p><a href="{up}index.html">minipar</a></p><h1>{name}</h1>
<div class="code" tabindex="0" role="group" aria-label="source">{code}</div></main></body></html>
"""


def link(site: Path) -> None:
    """Make links of all names in a built site, and the pages to which they lead."""
    files, api = source_files(), described(site)
    named: set[str] = set()
    for page in sorted(site.rglob("*.html")):
        here = page.relative_to(site).parent
        package = here.name.replace(".", "/") if here.parts[:1] == ("api",) else "minipar"

        def linked(found: re.Match, here: Path = here, package: str = package) -> str:
            if found["kept"]:
                return found[0]
            name, line = found["file"] or found["name"], found["first"] or found["line"]
            if file := file_of(name, package, files):
                named.add(file)
                address = f"source/{file}.html" + f"#line-{line}" * bool(line)
            elif place := place_of(name, package, api):
                address = place
            else:
                return found[0]
            start = f'<a href="{os.path.relpath(address, here)}">'
            if found["file"]:
                return f"{found[0]}<p>{start}Line {line} of the file</a></p>"
            return f"{start}{found[0]}</a>"
        text = page.read_text(encoding="utf-8")
        page.write_text(ARTICLE.sub(lambda article: NAME.sub(linked, article[0]), text),
                        encoding="utf-8")
    for file in named:
        write(site, file)
    light, dark = (HtmlFormatter(style=name).get_style_defs() for name in ("xcode", "github-dark"))
    with (site / STYLE).open("a", encoding="utf-8") as file:
        file.write(f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n")


def source_files() -> list[str]:
    """The files of minipar, its lessons, tests and docs, from the root."""
    return [path.relative_to(ROOT).as_posix() for folder in FOLDERS
            for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


def described(site: Path) -> dict[str, str]:
    """Where each module, class and function stands that the API describes, by its full name."""
    return {name: f"api/{page.parent.name}/#{name}" for page in site.glob("api/*/index.html")
            for name in re.findall(r' id="(minipar[\w.]*)"', page.read_text(encoding="utf-8"))}


def file_of(name: str, package: str, files: list[str]) -> str | None:
    """The file that is meant; None if there is none, or more than one."""
    for full in (name, f"{package}/{name}", f"minipar/{name}"):
        if full in files:
            return full
    ending = [file for file in files if file.endswith(f"/{name}")]
    return ending[0] if len(ending) == 1 else None


def place_of(name: str, package: str, api: dict[str, str]) -> str | None:
    """Where the API describes what is meant: a folder, or something by its full name."""
    if "/" in name:
        folder = name.strip("/").replace("/", ".")
        names = [folder, f"{package.replace('/', '.')}.{folder}", f"minipar.{folder}"]
    else:
        names = [name] if "." in name else []
    return next((api[each] for each in names if each in api), None)


def write(site: Path, file: str) -> None:
    """Write the page of a file: its text, with an anchor for each line."""
    text = (ROOT / file).read_text(encoding="utf-8")
    code = highlight(text, get_lexer_for_filename(file, stripnl=False),
                     HtmlFormatter(linespans="line", wrapcode=True))
    path = site / "source" / f"{file}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PAGE.format(name=html.escape(file), up="../" * (file.count("/") + 1), code=code,
                                style=STYLE), encoding="utf-8")
