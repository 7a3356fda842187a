"""The API reference: a page for each package, from its docstrings, with the source of each name."""

import pkgutil
from pathlib import Path
from types import ModuleType

from stage import Stage

import minipar

SECTION = "API"


def packages() -> list[tuple[str, list[str]]]:
    """Each package with its own modules, in the order of their names."""
    found: dict[str, list[str]] = {"minipar": []}
    for module in pkgutil.walk_packages([str(Path(minipar.__file__).parent)], "minipar."):
        if "._" in module.name or "__main__" in module.name:
            continue
        parent = module.name.rpartition(".")[0]
        if module.ispkg:
            found[module.name] = []
        else:
            found.setdefault(parent, []).append(module.name)
    return sorted(found.items())


def public_face() -> list[str]:
    """A table of all names of `import minipar as mp`, each with a link to where it is described."""
    rows = ["## The public face", "", "| name | from |", "| --- | --- |"]
    for name in sorted(minipar.__all__, key=str.lower):
        thing = getattr(minipar, name)
        module = getattr(thing, "__module__", None)
        if isinstance(thing, ModuleType):
            rows.append(f"| [`mp.{name}`]({thing.__name__}.md) | `minipar` |")
        elif module and module.startswith("minipar") and hasattr(thing, "__qualname__"):
            rows.append(f"| [`mp.{name}`][{module}.{thing.__qualname__}] | `{module}` |")
    return [*rows, ""]


def add(stage: Stage) -> None:
    """Add the reference, and a first page that lists the packages."""
    pages = packages()
    lines = ["# API", "", *public_face(), "## Packages", "",
             "Each with what the heads of its files say, and the source of each name.", ""]
    stage.sections[SECTION] = [{"Overview": "api/index.md"}]
    for package, modules in pages:
        parts = [f"# {package} {{ #{package} }}", "", f"::: {package}", "    options:",
                 "      members: false", "      show_root_heading: false",
                 "      show_root_toc_entry: false", ""]
        for module in modules:
            file = f"{module.rpartition('.')[2]}.py"
            parts += [f"## `{file}` {{ #{module} }}", "", f"::: {module}", "    options:",
                      "      show_root_heading: false", "      show_root_toc_entry: false",
                      "      heading_level: 3", ""]
        stage.add(SECTION, package.removeprefix("minipar."), f"api/{package}.md",
                  "\n".join(parts))
        lines.append(f"- [`{package}`]({package}.md)")
    stage.write("api/index.md", "\n".join(lines) + "\n")
