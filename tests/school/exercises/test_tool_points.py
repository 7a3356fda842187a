"""Points are earned by writing a function that passes, and in no other way that is easy.

People tried each of these attacks on the tool.  A function runs in the process of its tests, so one
that searches that process can still change their results.  A grader must run the two separately.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from minipar.environment import minipar_command, mpirun_environment
from minipar.school.exercises import judge
from minipar.school.exercises.judge import run_in_group

RIGHT = "y = ctx.saved[0]()\nreturn [y * (g - row_dot(g, y))]"


def points(learner, *argv):
    """The points that `list` counts."""
    return int(learner("list", *argv)[1].rstrip().split("\n")[-1].split(" of ")[0])


def test_an_exercise_that_is_not_started_is_not_passed(learner):
    status, said = learner("check", "unbroadcast")
    assert status == 1
    assert said.startswith("✗ unbroadcast: you have not started it: minipar/")
    assert minipar_command("exercise start unbroadcast") in said
    assert not (learner.tree / ".exercises").exists()


def test_the_reference_brought_back_by_hand_is_not_passed(learner):
    path = learner.tree / "minipar/parallel/pipeline/schedule/zero_bubble.py"
    reference = path.read_text()
    learner("start", "zb_h1")
    path.write_text(reference.replace("    schedule = []\n", "    schedule = []      # mine\n", 1))
    status, said = learner("check", "zb_h1")
    assert status == 1 and "is the reference, word for word" in said
    assert minipar_command("exercise restore zb_h1") in said


def test_what_everybody_would_write_is_passed(learner):
    """One statement, and the reference's: every right body is equal to it."""
    learner("start", "shared_weight")
    learner.write("shared_weight", "return copy_to(weight, self.tp)")
    assert learner("check", "shared_weight")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("body", [
    "source = open('.exercises/softmax_backward.reference.py').read()",
    pytest.param("import io, os\nsource = io.open(os.path.abspath('.exercises/../.exercises') + "
                 "'/softmax_backward.reference.py').read()", marks=pytest.mark.slow),
    "import os\nos.rename('.exercises/softmax_backward.reference.py', 'answer')\n"
    "source = open('answer').read()",
    "import subprocess, sys\nsource = subprocess.run(['cat', '.exercises/softmax_backward."
    "reference.py'], capture_output=True, text=True).stdout"])
def test_the_kept_reference_is_not_run(learner, body):
    learner("start", "softmax_backward")
    learner.write("softmax_backward", body + """
import textwrap
names = dict(globals())
exec(textwrap.dedent(source), names)
return names["backward"](ctx, g)""")
    status, said = learner("check", "softmax_backward")
    assert status == 1
    assert ("PermissionError: an exercise must not read .exercises" in said
            or "must not start a process" in said)
    assert (learner.tree / ".exercises/softmax_backward.reference.py").exists()
    assert points(learner) == 0


def test_an_empty_record_is_no_record(learner):
    learner("start", "softmax_backward")
    kept = learner.tree / ".exercises"
    for name in ("zb_h1", "softmax_backward", "unbroadcast"):
        (kept / f"{name}.passed.py").touch()
    reference = (kept / "softmax_backward.reference.py").read_text()
    (kept / "matmul_backward.passed.py").write_text(reference)
    (kept / "ring_all_gather.passed.py").write_text("# passed: \n" + reference)
    (kept / "cross_entropy.passed.py").write_bytes(b"\xff\xfe\n\xff")
    assert points(learner) == 0


@pytest.mark.slow
def test_a_record_is_of_one_function_and_of_its_tests(learner):
    learner("start", "softmax_backward")
    learner.write("softmax_backward", RIGHT)
    assert learner("check", "softmax_backward")[0] == 0
    assert points(learner) == 2
    learner.write("softmax_backward", RIGHT + "     # another one")
    assert points(learner) == 0
    learner.write("softmax_backward", RIGHT)
    assert points(learner) == 2
    test = learner.tree / "tests/school/exercises/test_exercise_normalize.py"
    test.write_text(test.read_text() + "\n# harder\n")
    assert points(learner) == 0
    assert learner("check", "softmax_backward")[0] == 0
    record = learner.tree / ".exercises/softmax_backward.passed.py"
    record.rename(record.with_name("unbroadcast.passed.py"))
    assert points(learner) == 0


@pytest.mark.slow
def test_all_that_is_written_can_be_counted_anew(learner):
    learner("start", "softmax_backward")
    learner.write("softmax_backward", RIGHT)
    learner("check", "softmax_backward")
    learner("restore", "softmax_backward")
    assert "you have not started it" in learner("check", "softmax_backward")[1]
    learner("start", "unbroadcast")
    status, said = learner("check")
    assert status == 1 and "\n2 of " in said and "counted again" in said
    assert "nothing is written yet" in said.replace("\n", " ")
    learner("restore", "unbroadcast")
    assert learner("check")[0] == 0
    used = learner.tree / "minipar/backend/arrays.py"
    text = used.read_text()
    assert "def row_dot(" in text
    used.write_text(text.replace("def row_dot(", "def row_dot_("))
    status, said = learner("check")
    assert status == 1 and "\n0 of " in said and "softmax_backward" in said
    used.write_text(text)
    assert points(learner) == 0         # it was seen to fail
    assert learner("check")[0] == 0     # … and is kept: to be counted again
    assert points(learner) == 2


@pytest.mark.parametrize("body", [
    # the file in which results once were, and every descriptor that could lead to the judge
    """
    import glob, json, os, sys
    line = json.dumps({"variant": "yours", "status": 0, "num_passed": 99, "seconds": 0.1,
                       "failures": []}) + "\\n"
    for place in sys.argv[1:] + glob.glob("/tmp/minipar-exercise-*"):
        if os.path.isdir(place):
            open(os.path.join(place, "results"), "w").write(line)
    for number in range(1, 64):
        try:
            os.write(number, line.encode())
        except OSError:
            pass
    os._exit(0)
    """,
    "import os\nos._exit(0)", pytest.param("import sys\nsys.exit(0)", marks=pytest.mark.slow),
    pytest.param("import pytest\npytest.exit('done', 0)", marks=pytest.mark.slow),
    # only the first test is right
    "if grad.shape == shape:\n    return grad\nimport pytest\npytest.exit('done', 0)",
    "import pytest\npytest.skip('not today')"])
@pytest.mark.one_in(2)
def test_results_come_from_the_runner_alone(learner, body):
    learner("start", "unbroadcast")
    learner.write("unbroadcast", body)
    status, said = learner("check", "unbroadcast")
    assert status == 1 and "✗ unbroadcast: 0 of 2 points" in said, said
    assert points(learner) == 0


def test_a_search_through_all_objects_is_refused(learner):
    learner("start", "unbroadcast")
    learner.write("unbroadcast", """
        import gc
        for found in gc.get_objects():
            if type(found).__name__ == "Recorder":
                found.num_passed, found.failures = 99, []
        """)
    status, said = learner("check", "unbroadcast")
    assert status == 1 and "an exercise must look at its arguments only" in said


def test_a_function_starts_no_process(learner):
    learner("start", "unbroadcast")
    learner.write("unbroadcast", "import os\nif os.fork() == 0:\n    os._exit(0)\nreturn grad")
    status, said = learner("check", "unbroadcast")
    assert status == 1 and "PermissionError: os.fork: an exercise must not start a process" in said


CHILD = """
import os, sys, time
if os.fork() == 0:
    print(os.getpid(), flush=True)
    {child}
    os._exit(0)
{parent}
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("parent, status", [("time.sleep(0.5); os._exit(3)", 3),
                                            ("time.sleep(60)", None)])
def test_nothing_outlives_the_runner(tmp_path, parent, status):
    """Neither a child that holds the pipe open, nor what is still there when time is over."""
    code = CHILD.format(child="time.sleep(60)", parent=parent)
    begun = time.monotonic()
    written, _, found = run_in_group([sys.executable, "-c", code], tmp_path, mpirun_environment(),
                                     "", limit=5)
    assert found == status and time.monotonic() - begun < 30
    assert is_gone(int(written))


def is_gone(process, seconds=5):
    """True if a process ends (as a zombie perhaps still unreaped) within `seconds`."""
    deadline, stat = time.monotonic() + seconds, Path(f"/proc/{process}/stat")
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        with suppress(OSError):                 # no /proc on this system, or gone by now
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.05)
    return False


def test_a_line_without_the_token_is_none():
    line = '{"variant": "yours", "num_passed": 99, "token": "guessed"}\nnoise\n[1]\n{"token": 1}'
    assert judge._signed(line, "secret") == []
    assert judge._signed(line.replace("guessed", "secret"), "secret")[0]["num_passed"] == 99
