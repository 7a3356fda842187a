"""The installed package: minima that are declared (make test-oldest tries them), a whole sdist."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

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
            "minipar/school/exercises/catalog/collectives.toml"} <= there
    assert not [name for name in names if name.endswith(".pyc")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    tree = tmp_path_factory.mktemp("wheel") / "tree"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('made'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=tree, env=mpirun_environment(),
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return tree / "made" / built.stdout.split("\n")[-2]


def test_the_wheel_has_the_lessons_and_the_course(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = {re.sub(r"^minipar-[^/]*\.data/data/", "", name) for name in packed.namelist()}
    scripts = {path.name for path in (ROOT / "lessons").glob("[0-9]*.py")}
    assert {f"share/minipar/lessons/{name}" for name in scripts} <= names
    assert {f"share/minipar/docs/pages/lessons/{name[:2]}.md" for name in scripts} <= names
    assert {"share/minipar/lessons/support/kit.py", "minipar/school/course/assignments/policy.md",
            "minipar/school/course/assignments/collectives/tasks.toml",
            "minipar/school/course/milestones/milestones.toml",
            "minipar/school/course/packaging/files/run_autograder"} <= names


@pytest.mark.slow
def test_lessons_run_from_an_installed_wheel(wheel, tmp_path):
    """In an empty folder, with no source tree; the dependencies are this Python's."""
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=False)
    python = tmp_path / "venv/bin/python"
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for name in ("__editable___minipar", "__editable__.minipar"):
        assert not list(site.glob(f"{name}*"))
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True,
                   capture_output=True)
    (tmp_path / "empty").mkdir()
    for words in (["lessons"], ["lesson", "02", "--simulated"],
                  ["course", "build", "--exercises", "collectives", "--out", "built"]):
        run = subprocess.run([python, "-P", "-c", "import sys; sys.path[:] = [p for p in sys.path "
                              f"if p != {str(ROOT)!r}]; sys.meta_path[:] = [f for f in "
                              "sys.meta_path if 'editable' not in str(f).lower()]; "
                              "from minipar.commands.main import main; sys.exit(main())", *words],
                             cwd=tmp_path / "empty", capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    assert (tmp_path / "empty/out/02/picture.png").exists()
