"""What `make docs WEB=1` puts beside the page browser.md; no browser is needed."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="make docs installs what builds the site")
ROOT = Path(__file__).parents[2]
HEAD = """
import sys
sys.path[:0] = ["docs/browser", "lessons", "."]
from tests.support import thread_stacks
thread_stacks.load()
import session
sys.meta_path.insert(0, session.NoPictures())
session.OUT = session.ROOT / "out"
"""


@pytest.fixture(scope="module")
def builder():
    """docs/builder/browser.py."""
    sys.path.insert(0, str(ROOT / "docs" / "builder"))
    try:
        import browser
    finally:
        sys.path.remove(str(ROOT / "docs" / "builder"))
    return browser


@pytest.fixture(scope="module")
def tree(builder, tmp_path_factory):
    """The source tree as the page has it."""
    folder = tmp_path_factory.mktemp("page")
    builder.pack(folder / "minipar.zip", builder.tree())
    with zipfile.ZipFile(folder / "minipar.zip") as archive:
        archive.extractall(folder)
    return folder


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run(tree: Path, program: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + program], cwd=tree, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_a_download_is_kept_if_its_checksum_is_right(builder, tmp_path):
    path, answers = tmp_path / "cache" / "core.js", [b"right", b"never asked for"]
    for _ in range(2):
        assert builder.cached(path, digest(b"right"), lambda: answers.pop(0)) == path
    assert path.read_bytes() == b"right" and len(answers) == 1
    path.write_bytes(b"spoiled")
    with pytest.raises(builder.Missing, match=r"core\.js has SHA-256 .* not"):
        builder.cached(path, digest(b"right"), lambda: b"wrong")
    assert path.read_bytes() == b"spoiled"


@pytest.fixture
def core(builder, tmp_path, monkeypatch):
    """A folder with small files in place of Pyodide's, and a lock that names a wheel."""
    lock = {"packages": {"numpy": {"file_name": "numpy.whl", "sha256": digest(b"numpy")}}}
    files = {"pyodide.mjs": b"js", "pyodide-lock.json": json.dumps(lock).encode()}
    monkeypatch.setattr(builder, "CORE", {name: digest(data) for name, data in files.items()})
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_files_of_a_folder(builder, core, tmp_path, capsys):
    with pytest.raises(builder.Missing, match=r"wheels has no numpy\.whl"):
        builder.obtain(core, tmp_path / "cache")
    (core / "numpy.whl").write_bytes(b"numpy")
    files = builder.obtain(core, tmp_path / "cache")
    assert files["numpy"] == core / "numpy.whl" and files["pyodide.mjs"] == core / "pyodide.mjs"
    assert capsys.readouterr().out == ""
    (core / "numpy.whl").write_bytes(b"another build")
    builder.obtain(core, tmp_path / "cache")
    assert "numpy.whl is another build" in capsys.readouterr().out


def test_files_of_the_network(builder, core, tmp_path, monkeypatch):
    asked = []

    def download(address):
        asked.append(address)
        name = address.rpartition("/")[2]
        return b"numpy" if name == "numpy.whl" else (core / name).read_bytes()
    monkeypatch.setattr(builder, "download", download)
    monkeypatch.setattr(builder, "from_npm", dict)
    for _ in range(2):
        files = builder.obtain(None, tmp_path / "cache")
    assert {file.parent for file in files.values()} == {tmp_path / "cache"}
    assert asked == [builder.CORE_AT + "pyodide.mjs", builder.CORE_AT + "pyodide-lock.json",
                     builder.WHEELS_AT + "numpy.whl"]


def test_without_the_files_the_page_is_left_out(builder, tmp_path, monkeypatch):
    class Stage:
        pages, sections, left_out = tmp_path, {}, []
    (tmp_path / builder.PAGE).write_text("# In your browser")
    monkeypatch.setenv("WEB_WHEELS", str(tmp_path / "none"))
    monkeypatch.setattr(builder, "CORE", {"pyodide.mjs": digest(b"")})
    monkeypatch.setattr(builder, "CORE_AT", (tmp_path / "nowhere").as_uri() + "/")
    monkeypatch.setattr(builder, "from_npm", dict)
    monkeypatch.setattr(builder, "cache_folder", lambda: tmp_path / "cache")
    builder.add(Stage)
    assert not (tmp_path / builder.PAGE).exists() and not Stage.sections
    assert "pyodide.mjs cannot be had" in Stage.left_out[0] and "WEB_WHEELS" in Stage.left_out[0]


def test_the_catalog_has_every_lesson_and_exercise(builder):
    catalog = builder.catalog()
    assert [each["name"] for each in catalog["lessons"]] == sorted(
        path.stem for path in (ROOT / "lessons").glob("[0-9]*.py"))
    assert len(catalog["exercises"]) == len(builder.Workspace(ROOT).exercises)
    for each in catalog["exercises"]:
        assert f"exercise {each['name']}" in each["stub"] and each["task"] and each["hints"]


def test_a_lesson_runs_from_the_archive(tree):
    said = run(tree, 'print(session.run_lesson("01_messages", 3))')
    assert "rank 0 waits to send to rank 1" in said and said.rstrip().endswith("True")
    assert not list((tree / "out").rglob("*.png"))


def test_a_lesson_runs_with_a_changed_line_and_then_as_it_was(tree, builder):
    name, old = "04_all_reduce", "comm.sendrecv(x, peer, arrived, peer)"
    shown = builder.lesson_pages.page.algorithm(ROOT / "lessons" / f"{name}.py").text
    assert shown.count(old) == 1
    changed = shown.replace(old, "comm.send(x, peer)")
    said = run(tree, f"""
for algorithm in ({changed!r}, "def ring(", {shown!r}, None):
    print(session.run_lesson({name!r}, 4, algorithm))
""")
    assert [line for line in said.splitlines() if line in ("True", "False")] == [
        "False", "False", "True", "True"]
    assert "rank 1 waits to send to rank 0" in said and "was never closed" in said


def test_an_exercise_is_checked_in_the_same_process(tree):
    said = run(tree, """
from minipar.school.exercises.workspace import Workspace
workspace = Workspace(session.ROOT)
exercise = workspace.find("binomial_broadcast")
reference = workspace.block(exercise)
head = reference.split("\\n")[0]
for body in ("raise NotImplementedError", exercise.mutants[0].body, "return ("):
    block = "\\n".join([head, *["    " + line for line in body.strip().split("\\n")]])
    print(session.check_exercise(exercise.name, block))
print(session.check_exercise(exercise.name, reference))
print(session.check_exercise(exercise.name, reference + "\\n    pass"))
print(session.check_exercise("ring_all_gather", "def ring(): ..."))
print(session.run_lesson("02_broadcast_trees", 2))
""")
    verdicts = [line for line in said.splitlines() if line in ("True", "False")]
    assert verdicts == ["False", "False", "False", "False", "True", "False", "True"]
    for part in ("A known mistake: ", "broadcast.py, line ", "was never closed", "word for word",
                 "✓ binomial_broadcast: 3 points", "✗ ring_all_gather"):
        assert part in said, said
