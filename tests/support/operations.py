"""Every operation that minipar.autograd.ops defines, found by looking: a new one is tested too."""

import importlib
import inspect
import pkgutil

from minipar.autograd import Function, ops


def operations() -> list[type[Function]]:
    """The classes that `Function.apply` runs, of every file of ops; bases of families apart."""
    modules = [importlib.import_module(f"{ops.__name__}.{module.name}")
               for module in pkgutil.iter_modules(ops.__path__)]
    return list(dict.fromkeys(
        value for module in modules for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Function) and "forward" in vars(value)))
