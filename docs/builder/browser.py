"""Lessons and exercises in the page: what the page browser.md needs beside it (`make docs WEB=1`).

    assets/browser/    page.mjs, worker.mjs     docs/browser, which says how it works
                       catalog.json             lessons with their algorithms, exercises with stubs
                       pyodide/                 Python for WebAssembly
                       numpy.zip                NumPy for it
                       packages.zip             rich, pytest …, pure Python: of this environment
                       minipar.zip              minipar, its lessons and the tests of its exercises

Pyodide and NumPy are downloaded once, into the cache folder: a file counts only if its SHA-256 is
the one that is written here, or, for NumPy, in pyodide-lock.json.  WEB_WHEELS=DIR takes them from a
folder instead; a NumPy of another build is then used as it is, and named.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lesson_pages
from stage import ROOT, Stage

from minipar.atomic_files import replace_file
from minipar.environment import cache_folder
from minipar.school.exercises import source
from minipar.school.exercises.workspace import Workspace

TITLE, PAGE, ASSETS = "In your browser", "browser.md", "assets/browser"
VERSION = "0.29.3"
CORE = {
    "pyodide.mjs": "23213d27e9dacbda6f25f955fb38dabfc40ada082c04ee253047ea5dddcaa3b5",
    "pyodide.asm.js": "1263f02b5b26099b96112378156f242dd98b39a8201ba7765e5fe3d455c5ce91",
    "pyodide.asm.wasm": "e2f4ee75b325e35eb31bfb8c613d4dd5098f5502c156a97847686875b5025480",
    "python_stdlib.zip": "4298b6ee445cb724c3973437da47789752b9e6ff4e26619026b283ec801fc46b",
    "pyodide-lock.json": "3256ffc76388de0e37f4b34d42ab484268d1afc675179ff97b2a5bb14f84ccac"}
CORE_AT = f"https://cdn.jsdelivr.net/npm/pyodide@{VERSION}/"
WHEELS_AT = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
PURE = ("rich", "pygments", "markdown-it-py", "mdurl", "threadpoolctl",
        "pytest", "pluggy", "iniconfig", "packaging")
TREE = ("minipar", "lessons", "tests", "docs/browser", "docs/pages/lessons", "setup.cfg")
SUFFIXES = (".py", ".toml", ".md", ".txt", ".html", ".cfg")
LEFT_OUT = ("tests/bench/", "minipar/school/course/", "tests/interop/", "tests/lessons/",
            "tests/site/")
FRONT = (f"Nothing to install: [run lesson 01 in this browser]({PAGE}?lesson=01), or write a "
         f"function of minipar and [have it tested]({PAGE}#browser).")
SECONDS = 20        # without a byte: then a download has failed


class Missing(Exception):
    """A file cannot be had."""


def add(stage: Stage) -> None:
    """Add the page and its files, or say why it is left out."""
    folder = os.environ.get("WEB_WHEELS")
    try:
        files = obtain(Path(folder) if folder else None, cache_folder() / f"pyodide-{VERSION}")
    except Missing as error:
        leave_out(stage, str(error))
        return
    place = stage.pages / ASSETS
    (place / "pyodide").mkdir(parents=True)
    for name, file in files.items():
        shutil.copy(file, place / ("numpy.zip" if name == "numpy" else f"pyodide/{name}"))
    for name in ("page.mjs", "worker.mjs"):
        shutil.copy(ROOT / "docs" / "browser" / name, place)
    pack(place / "packages.zip", packages())
    pack(place / "minipar.zip", tree())
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    stage.write(f"{ASSETS}/catalog.json", json.dumps(catalog() | {"bytes": size}))
    stage.sections[TITLE] = [{TITLE: PAGE}]
    for script in lesson_pages.LESSONS:
        offer(stage.pages / "lessons" / f"{script.stem[:2]}.md")
    front = stage.pages / "index.md"
    text = front.read_text(encoding="utf-8")
    front.write_text(text.replace("<!-- browser -->", FRONT), encoding="utf-8")


def leave_out(stage: Stage, why: str) -> None:
    """Remove the page, whose files are not there; the build says `why`."""
    (stage.pages / PAGE).unlink()
    stage.left_out.append(f"the page with lessons that run in the browser: {why}")


def offer(page: Path) -> None:
    """Add to a lesson's page links that run it in the browser."""
    text, number = page.read_text(encoding="utf-8"), page.stem
    head, link = f"Run it: `minipar lesson {number}`", f"(../{PAGE}?lesson={number})"
    text = text.replace(head, f"{head}, or [in your browser]{link}", 1)
    text = text.replace(lesson_pages.CHANGE_IT,
                        f"[Change a line and run it in this site's editor]{link}: does it still "
                        "equal one process?", 1)
    page.write_text(text, encoding="utf-8")


def obtain(folder: Path | None, kept: Path) -> dict[str, Path]:
    """Pyodide's files by name, and NumPy's wheel as "numpy".  Raises Missing."""
    files = {name: core_file(name, digest, folder, kept) for name, digest in CORE.items()}
    lock = json.loads(files["pyodide-lock.json"].read_text(encoding="utf-8"))
    wheel, digest = (lock["packages"]["numpy"][key] for key in ("file_name", "sha256"))
    if folder is None:
        return files | {"numpy": cached(kept / wheel, digest, lambda: download(WHEELS_AT + wheel))}
    if not (folder / wheel).exists():
        raise Missing(f"{folder} has no {wheel}")
    if not is_good(folder / wheel, digest):
        print(f"{folder / wheel} is another build than that of Pyodide {VERSION}: used as it is")
    return files | {"numpy": folder / wheel}


def core_file(name: str, digest: str, folder: Path | None, kept: Path) -> Path:
    """A file of Pyodide itself: from the folder, the cache, npm or the network."""
    if folder is not None and is_good(folder / name, digest):
        return folder / name

    def fetch() -> bytes:
        return from_npm().get(name) or download(CORE_AT + name)
    return cached(kept / name, digest, fetch)


def cached(path: Path, digest: str, fetch: Any) -> Path:
    """A file of the cache; fetch() gives its bytes if it is not there.  Raises Missing."""
    if not is_good(path, digest):
        data = fetch()
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise Missing(f"{path.name} has SHA-256 {found}, not {digest}")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(data))
    return path


def is_good(path: Path, digest: str) -> bool:
    """True if the file is there, with this SHA-256."""
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def download(address: str) -> bytes:
    """The bytes at an address.  Raises Missing."""
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            return answer.read()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise Missing(f"{address} cannot be had ({reason}); WEB_WHEELS=DIR takes its files from "
                      "a folder") from None


@cache
def from_npm() -> dict[str, bytes]:
    """The files of Pyodide's package, if npm is installed and reaches its registry."""
    if shutil.which("npm") is None:
        return {}
    with TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", "--fetch-retries=0", f"pyodide@{VERSION}"],
                       cwd=folder, capture_output=True)
        for file in Path(folder).glob("*.tgz"):
            with tarfile.open(file) as archive:
                return {name: archive.extractfile(f"package/{name}").read()     # type: ignore
                        for name in CORE}
    return {}


def packages() -> Iterable[tuple[Path, str]]:
    """The files of the pure Python packages, with their places."""
    for name in PURE:
        for file in distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield Path(str(file.locate())), str(file)


def tree() -> Iterable[tuple[Path, str]]:
    """The files of the source tree that lessons and exercises need, with their places."""
    for part in TREE:
        place = ROOT / part
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            name = file.relative_to(ROOT).as_posix()
            if file.suffix in SUFFIXES and not name.startswith(LEFT_OUT):
                yield file, name
    for file in sorted((ROOT / "minipar" / "data" / "files").iterdir()):
        if file.suffix not in SUFFIXES:
            yield file, file.relative_to(ROOT).as_posix()


def pack(path: Path, files: Iterable[tuple[Path, str]]) -> None:
    """Write an archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in files:
            archive.write(file, name)


def catalog() -> dict[str, Any]:
    """What the page lets the reader choose from."""
    workspace = Workspace(ROOT)
    lessons = [{"name": script.stem, "title": lesson_pages.title_of(script),
                "algorithm": lesson_pages.page.algorithm(script).text}
               for script in lesson_pages.LESSONS]
    exercises = []
    for exercise in workspace.exercises.values():
        text = (ROOT / exercise.file).read_text(encoding="utf-8")
        rows = source.locate(text, exercise.function)
        assert rows is not None, exercise.name
        exercises.append({
            "name": exercise.name, "title": exercise.title, "lesson": exercise.lesson,
            "topic": exercise.topic, "minutes": exercise.minutes, "file": exercise.file,
            "line": rows.first + 1, "task": exercise.task, "hints": exercise.hints,
            "stub": source.stub(text, rows, exercise)})
    return {"lessons": lessons, "exercises": exercises}
