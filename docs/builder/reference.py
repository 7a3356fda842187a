"""The API reference: a page for each package, from its docstrings, with the source of each name."""

import pkgutil
from pathlib import Path

from stage import Stage

import minipar

SECTION = "API"
SKIPPED = ("minipar.testing",)


def packages() -> list[tuple[str, list[str]]]:
    """Each package with its own modules, in the order of their names."""
    found: dict[str, list[str]] = {"minipar": []}
    for module in pkgutil.walk_packages([str(Path(minipar.__file__).parent)], "minipar."):
        if module.name.startswith(SKIPPED) or "._" in module.name or "__main__" in module.name:
            continue
        parent = module.name.rpartition(".")[0]
        if module.ispkg:
            found[module.name] = []
        else:
            found.setdefault(parent, []).append(module.name)
    return sorted(found.items())


def add(stage: Stage) -> None:
    """Add the reference, and a first page that lists the packages."""
    pages = packages()
    lines = ["# API", "", "Each package, with what the heads of its files say. The public face, "
             "`import minipar as mp`, is [minipar](minipar.md).", ""]
    stage.sections[SECTION] = [{"Overview": "api/index.md"}]
    for package, modules in pages:
        parts = [f"# {package}", "", f"::: {package}", "    options:",
                 "      show_root_heading: false", "      show_root_toc_entry: false", ""]
        for module in modules:
            parts += [f"## {module.rpartition('.')[2]}", "", f"::: {module}", "    options:",
                      "      show_root_heading: false", "      show_root_toc_entry: false", ""]
        stage.add(SECTION, package.removeprefix("minipar."), f"api/{package}.md",
                  "\n".join(parts))
        lines.append(f"- [`{package}`]({package}.md)")
    stage.write("api/index.md", "\n".join(lines) + "\n")
