"""Functions as data: their syntax trees, and what they name, for a page that evaluates them.

    exporter = Exporter()
    exporter.add(step_time)         {"module": "minipar.plan.time.step_time", "name": "step_time"}
    exporter.finish()               {"minipar.plan.time.step_time": {
                                        "step_time": {"function": ["FunctionDef", …]},
                                        "ring": {"module": "…messages", "name": "ring"},
                                        "WEIGHTS": {"value": 6}}, …}

So the page has no formula of its own (calculator.html).
"""

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

LEFT_OUT = {"annotation", "returns", "decorator_list", "ctx", "kind", "type_comment"}


class Exporter:
    """Collects functions, classes and values by module: {module: {name: entry}}."""

    def __init__(self) -> None:
        self.modules: dict[str, dict[str, Any]] = {}
        self.classes: set[type] = set()
        self.attributes: set[str] = set()       # all names that come after a dot

    def add(self, thing: Any) -> dict[str, str]:
        """Export a function or a class with all that it names; return where it is."""
        thing = inspect.unwrap(thing)
        where = {"module": thing.__module__, "name": thing.__name__}
        names = self.modules.setdefault(thing.__module__, {})
        if thing.__name__ not in names:
            names[thing.__name__] = {}          # for functions that call each other
            names[thing.__name__] = (self.fields(thing) if isinstance(thing, type)
                                     else {"function": self.tree(thing)})
        return where

    def fields(self, kind: type) -> dict[str, Any]:
        """The entry of a NamedTuple or a dataclass: fields and defaults; `finish` adds methods."""
        self.classes.add(kind)
        names = field_names(kind)
        given = getattr(kind, "_field_defaults", vars(kind))
        return {"class": names, "methods": {},
                "defaults": {name: self.value(given[name]) for name in names if name in given}}

    def tree(self, function: Callable) -> list:
        """The syntax tree of a function; the global names in it are exported, too."""
        root, known = as_data(parsed(function)), inspect.unwrap(function).__globals__
        names = self.modules.setdefault(function.__module__, {})
        for kind, *parts in nodes(root):
            if kind == "Attribute":
                whole, attribute = parts
                self.attributes.add(attribute)
                module = known.get(whole[1]) if whole[0] == "Name" else None
                if isinstance(module, ModuleType) and module is not math:
                    names[whole[1]] = {"module": module.__name__}
                    self.add(getattr(module, attribute))
            elif kind == "Name" and parts[0] in known and parts[0] not in names:
                value = known[parts[0]]
                if isinstance(value, type) or inspect.isroutine(inspect.unwrap(value)):
                    where = self.add(value)
                    names.setdefault(parts[0], where)
                elif not isinstance(value, ModuleType):
                    names[parts[0]] = {"value": self.value(value)}
        return root

    def value(self, value: Any) -> Any:
        """A value as JSON; None for a value that is no data, such as a class in a table."""
        if fields := field_names(type(value)):
            return {"object": self.add(type(value)),
                    "fields": {name: self.value(getattr(value, name)) for name in fields}}
        if isinstance(value, dict):
            return {"dict": [[key, self.value(each)] for key, each in value.items()]}
        if isinstance(value, list | tuple):
            return [*map(self.value, value)]
        return value if isinstance(value, str | int | float | None) else None

    def finish(self) -> dict[str, dict[str, Any]]:
        """Add the methods and properties whose names are read somewhere; return the modules."""
        def missing() -> list[tuple[dict[str, Any], str, Any]]:
            found = []
            for kind in self.classes:
                methods = self.modules[kind.__module__][kind.__name__]["methods"]
                found += [(methods, name, method) for name, method in vars(kind).items()
                          if name in self.attributes and name not in methods
                          and (isinstance(method, property) or inspect.isfunction(method))]
            return found

        while found := missing():
            for methods, name, method in found:
                is_property = isinstance(method, property)
                methods[name] = {"function": self.tree(method.fget if is_property else method),
                                 "property": is_property}
        return self.modules


def parsed(function: Callable) -> ast.AST:
    """The syntax tree of a function, without docstrings."""
    root = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    for node in ast.walk(root):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return root


def as_data(node: Any) -> Any:
    """[type, field, …] of a node of a syntax tree, without annotations and decorators."""
    if isinstance(node, ast.AST):
        return [type(node).__name__, *(as_data(value) for name, value in ast.iter_fields(node)
                                       if name not in LEFT_OUT)]
    return [*map(as_data, node)] if isinstance(node, list) else node


def nodes(data: Any) -> Iterator[list]:
    """All nodes of a tree that `as_data` made."""
    if isinstance(data, list):
        if data and isinstance(data[0], str):
            yield data
        for part in data:
            yield from nodes(part)


def field_names(kind: type) -> list[str]:
    """The fields of a NamedTuple or a dataclass, in order; none of another class."""
    return [*getattr(kind, "_fields", getattr(kind, "__dataclass_fields__", ()))]
