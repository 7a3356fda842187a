"""The catalog: what is wrong in a file of it is named, with the file and the entry."""

import re
import shutil

import pytest

from minipar.commands.course.exercise import ROOT
from minipar.school import toml_files
from minipar.school.exercises import entries
from minipar.school.toml_files import SchoolError
from tests.school.exercises.conftest import PARSE


def test_an_installation_without_tests_is_refused(learner):
    shutil.rmtree(learner.tree / "tests")
    assert "need a source checkout" in learner("list")[1]
    shutil.rmtree(learner.tree / entries.CATALOG)
    assert "need a source checkout" in learner("list")[1]


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """A work tree with the catalog alone, which is all that is read."""
    monkeypatch.setattr(toml_files.tomllib, "loads", PARSE)
    shutil.copytree(ROOT / entries.CATALOG, tmp_path / entries.CATALOG)
    return tmp_path


@pytest.mark.parametrize("old, new, said", [
    ("points = 2", "points = 'two'", "points must be of type int"),
    ("lesson = 6", "lessons = 6", "unknown key 'lessons'"),
    ("[unbroadcast]", "[matmul_backward]", "catalog/autograd.toml is not TOML: Cannot declare"),
    ("[unbroadcast]", "[binomial_broadcast]",
     "catalog/autograd.toml, [binomial_broadcast]: minipar/school/exercises/catalog/"
     "collectives.toml has"),
    ('kind = "core"', 'kind = "fun"', "kind must be one of core, plumbing, not 'fun'"),
    ("minutes = 15", "minutes = 0", "minutes must be at least 1, not 0"),
    ("minutes = 15\n", "", "minutes must be of type int"),
    ("needs = []", 'needs = ["matmul_backward"]', "needs 'matmul_backward', but no exercise above "
                                                  "has that name"),
    ("task =", 'hidden = ["elementwise.py"]\ntask =', "hidden must be like"),
    ("[unbroadcast.mutants.averages]\nwhy", "[unbroadcast.mutants.averages]\nbecause", "averages"),
    ("[unbroadcast]", "[unbroadcast", "is not TOML"),
    ("mutants.averages]", "mutants.stub]", "not called reference, solution or stub")])
def test_a_wrong_entry_is_refused(catalog, old, new, said):
    path = catalog / entries.catalog_file("autograd")
    head, tail = path.read_text().split("[unbroadcast]")
    path.write_text(head + ("[unbroadcast]" + tail).replace(old, new, 1))
    with pytest.raises(SchoolError, match=re.escape(said)):
        entries.load(catalog)


def test_a_file_without_a_topic_is_refused(catalog):
    (catalog / entries.CATALOG / "calculus.toml").touch()
    with pytest.raises(SchoolError, match="catalog/calculus.toml: no topic has this file; the "
                                            "files are collectives.toml, costs.toml"):
        entries.load(catalog)


def test_an_entry_with_too_few_mutants_is_refused(catalog):
    path = catalog / entries.catalog_file("autograd")
    sections = path.read_text().split("\n\n[")
    path.write_text("\n\n[".join(s for s in sections if not s.startswith("unbroadcast.mutants.")
                                or s.startswith("unbroadcast.mutants.averages")))
    with pytest.raises(SchoolError, match=r"\[unbroadcast\]: 1 mutants; at least 3"):
        entries.load(catalog)
