"""docs/browser/greenlet.py against the library greenlet; it runs here on threads, not in a browser.

Each program runs with both, in a process of its own, and must print the same.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIMULATED = ["tests/comm/simulated/test_deadlock.py",
             "tests/comm/simulated/test_mismatch.py", "tests/comm/test_work.py",
             "tests/comm/test_split.py", "tests/test_random.py"]
HEAD = """
import gc, sys, weakref
from contextvars import ContextVar, copy_context
from greenlet import GreenletExit, getcurrent, greenlet
main = getcurrent()
"""
PROGRAMS = {
    "values go to and fro": """
def run(a, b):
    print(a, b, main.switch("first"))
    print(main.switch("one", "two"))
    return "end"
it = greenlet(run)
print(bool(it), it.dead, it.switch(1, 2), bool(it))
print(it.switch("back"), it.switch(), it.dead, bool(it))
print(it.switch("after the end"), it.switch(), it.throw())
""",
    "an error goes to the parent": """
def fails():
    raise ValueError("inside")
def middle():
    try:
        greenlet(fails).switch()
    except ValueError as error:
        print("caught", error)
        raise KeyError("on")
try:
    greenlet(middle).switch()
except KeyError as error:
    print(repr(error), error.__context__)
""",
    "throw runs finally, and GreenletExit ends quietly": """
def run():
    try:
        main.switch("waits")
    finally:
        print("finally")
it = greenlet(run)
print(it.switch(), repr(it.throw()), it.dead)
it = greenlet(run)
it.switch()
try:
    it.throw(RuntimeError("from outside"))
except RuntimeError as error:
    print(error, it.dead)
def survives():
    try:
        main.switch()
    except RuntimeError as error:
        return f"caught {error}"
it = greenlet(survives)
it.switch()
print(it.throw(RuntimeError("this")), it.dead)
""",
    "one that never began": """
it = greenlet(print)
print(repr(it.throw()), it.dead)
it = greenlet(print)
try:
    it.throw(RuntimeError("too early"))
except RuntimeError as error:
    print(error, it.dead)
""",
    "a parent can be changed": """
def child():
    main.switch("child waits")
    return "of the child"
def other():
    it.parent = getcurrent()
    return "other has", it.switch()
it = greenlet(child)
print(it.switch(), greenlet(other).switch())
""",
    "a dead parent's parent continues": """
def child():
    main.switch("child waits")
    return "of the child"
def parent():
    it = greenlet(child)
    return it, it.switch()
up = greenlet(parent)
print(up.switch())
it, = [each for each in gc.get_objects() if isinstance(each, greenlet) and each.parent is up]
up.switch("ends")
print(up.dead, it.switch(), it.dead)
""",
    "context variables are its own": """
v = ContextVar("v", default=0)
def run(number):
    v.set(number)
    main.switch()
    print("inside", number, v.get())
its = [greenlet(run) for _ in range(3)]
for number, it in enumerate(its, 1):
    it.gr_context = copy_context()
    it.switch(number)
v.set(9)
for it in its:
    it.switch()
print(v.get())
""",
    "where it is suspended": """
def inner():
    main.switch()
def outer():
    inner()
it = greenlet(outer)
print(it.gr_frame)
it.switch()
for _ in range(2):
    frame = it.gr_frame
    print(frame.f_code.co_name, frame.f_lineno, frame.f_back.f_code.co_name,
          frame.f_back.f_lineno, frame.f_back.f_back)
def asks():
    print(it.gr_frame.f_code.co_name, getcurrent().gr_frame, main.gr_frame.f_code.co_name)
greenlet(asks).switch()
it.switch()
print(it.gr_frame, it.dead)
""",
    "what it used is freed when it ends": """
class Big: pass
def run(big):
    main.switch()
    return weakref.ref(big)
gc.disable()
it = greenlet(run)
it.switch(Big())
print(it.switch()() is None)
held = Big()
seen = weakref.ref(held)
it = greenlet(lambda kept=held: main.switch(kept))
it.gr_context = copy_context()
del held
it.switch()
it.switch()
print(seen() is None, hasattr(it, "run"))
""",
    "five hundred at once": """
log = []
def run(number):
    for step in range(3):
        log.append((step, number))
        main.switch()
its = [greenlet(run) for _ in range(500)]
for _ in range(4):
    for number, it in enumerate(its):
        it.switch(number)
print(log == sorted(log), len(log), all(it.dead for it in its))
""",
}


def printed(program: str, head: str) -> str:
    done = subprocess.run([sys.executable, "-c", head + HEAD + program], cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_what_greenlet_does(name):
    expected = printed(PROGRAMS[name], "")
    assert expected
    load = "from tests.support import thread_stacks; assert thread_stacks.load().stacks"
    assert printed(PROGRAMS[name], load) == expected


def test_simulated_ranks_run_on_it():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.thread_stacks", "-m",
         "not slow and not mpi", "-p", "no:cacheprovider", "-p", "no:xdist", "-p",
         "no:hypothesispytest", "-p", "no:anyio", *SIMULATED], cwd=ROOT,
        capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "stand-in for greenlet" in done.stdout, "the plugin took greenlet's place"
