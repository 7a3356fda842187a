"""`import minipar as mp`: fast, light, and the same names for Python and for type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minipar as mp

SOURCE = Path(mp.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", mp.__all__)
def test_every_name_is_there(name):
    assert getattr(mp, name) is not None and name in dir(mp)


def test_type_checkers_see_the_same_names():
    block = next(node for node in ast.parse(SOURCE).body
                 if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert seen == set(mp.__all__)
    assert Path(mp.__file__).with_name("py.typed").exists()


def test_importing_it_loads_next_to_nothing():
    code = ("import sys, minipar; print([m for m in ('numpy', 'mpi4py', 'matplotlib', 'rich') "
            "if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_help_of_the_command_line_loads_neither_matplotlib_nor_mpi():
    code = ("import sys; from minipar.commands.main import make_parser; make_parser(); "
            "print([m for m in ('mpi4py', 'matplotlib') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_its_names_load_neither_matplotlib_nor_mpi():
    code = ("import sys, minipar as mp; [getattr(mp, name) for name in mp.__all__]; "
            "print([m for m in ('mpi4py', 'matplotlib') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_there_is_one_line():
    with pytest.raises(AttributeError, match="no attribute 'allreduce': it offers GPT, MLP, "):
        _ = mp.allreduce
