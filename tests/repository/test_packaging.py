"""The installed package: minima that are declared (make test-oldest tries them), a whole sdist."""

import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from minipar.environment import mpirun_environment
from tests.repository.test_layering import ROOT
from tests.support.oldest_versions import oldest_versions

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.egg-info", "build", "dist",
                                  "site", "out", "shared")


def test_every_requirement_has_a_minimum():
    pinned = oldest_versions()
    assert len(pinned) >= 10
    assert all(re.fullmatch(r"[\w-]+==[\w.]+(; sys_platform .*)?", line) for line in pinned)
    names = [line.partition("==")[0] for line in pinned]
    assert {"numpy", "greenlet", "mpi4py", "mpich", "pytest"} < set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("line", ["numpy", "numpy>2", "numpy==2.0", "numpy>=2.0,<3"])
def test_a_requirement_without_a_minimum_is_refused(tmp_path, line):
    setup = tmp_path / "setup.cfg"
    text = (ROOT / "setup.cfg").read_text()
    setup.write_text(re.sub("numpy>=.*", line, text))
    with pytest.raises(ValueError, match=f"setup.cfg: '{re.escape(line)}' has no minimum"):
        oldest_versions(setup)


def test_the_source_distribution_is_whole(tmp_path):
    """Every file of the work tree that does not begin with a dot, and no other kind of file."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    (tree / "tests/__pycache__").mkdir()
    (tree / "tests/__pycache__/left.cpython-311.pyc").touch()
    there = {str(path.relative_to(tree)) for path in tree.rglob("*")
             if path.is_file() and path.suffix != ".pyc"}
    code = "from setuptools import build_meta; print(build_meta.build_sdist('made'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=tree, env=mpirun_environment(),
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with tarfile.open(tree / "made" / built.stdout.split("\n")[-2]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert there <= names, f"missing: {sorted(there - names)[:9]}"
    assert {"Makefile", "MANIFEST.in", "tests/conftest.py", "lessons/support/kit.py",
            "docs/mkdocs.yml", "docs/pages/images/timeline.png",
            "minipar/exercises/catalog/collectives.toml"} <= there
    assert not [name for name in names if name.endswith(".pyc")]
