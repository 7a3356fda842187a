"""A learner's day with the tool: start, check, hint, restore, and everything that goes wrong."""

import re

import pytest

from minipar.commands.course import exercise as command
from minipar.environment import minipar_command
from minipar.school.exercises import entries

ACTIVATIONS = "minipar/autograd/ops/activations.py"
EXERCISES = entries.load(command.ROOT)


def test_from_the_stub_to_the_points(learner):
    status, said = learner("start", "softmax_backward")
    assert status == 0 and re.search(rf"Write it in {ACTIVATIONS}:\d+", said)
    status, said = learner("check", "softmax_backward")
    assert status == 1 and "nothing is written yet" in said and "ctx.saved" in said
    assert "(δᵢⱼ - yⱼ)" in learner("hint", "softmax_backward")[1]
    assert "one number for each row" in learner("hint", "softmax_backward", "3")[1]

    learner.write("softmax_backward", """
        (y,) = ctx.saved
        # mine
        return [lambda: g * y() ]
        """)
    status, said = learner("check", "softmax_backward")
    assert status == 1
    assert "::test_softmax_backward_by_differences" in said
    assert "finite differences say" in said
    assert "A known mistake: y g is only one of the two terms" in said
    assert "started" in line_of(learner("list")[1], "softmax_backward")

    learner.write("softmax_backward", """
        y = ctx.saved[0]()
        return [y * (g - row_dot(g, y))]
        """)
    status, said = learner("check", "softmax_backward")
    assert status == 0 and "✓ softmax_backward: 2 points" in said
    listed = learner("list")[1]
    assert "passed" in line_of(listed, "softmax_backward")
    assert re.search(r"\n2 of \d+ points", listed)

    learner("restore", "softmax_backward")
    assert "passed" in line_of(learner("list")[1], "softmax_backward")
    assert "row_dot(g, y))" in (learner.tree / ".exercises/softmax_backward.yours.py").read_text()


def test_each_hint_is_the_one_after_the_last(learner):
    hints = EXERCISES["unbroadcast"].hints
    assert len(hints) == 4

    def numbers(*asked):
        return [learner("hint", "unbroadcast", *words)[1][:11] for words in asked]
    assert numbers([], [], [], [], []) == [f"Hint {n} of 4" for n in (1, 2, 3, 4, 4)]
    assert numbers(["2"], [], ["1"], []) == [f"Hint {n} of 4" for n in (2, 3, 1, 2)]
    assert "Hint 1 of" in learner("hint", "softmax_backward")[1], "each exercise has its own"
    learner("start", "unbroadcast")
    learner("restore", "unbroadcast")
    assert numbers([]) == ["Hint 1 of 4"], "one begins again"
    (learner.tree / ".exercises/unbroadcast.hint").write_text("no number")
    assert numbers([], []) == ["Hint 1 of 4", "Hint 2 of 4"]


def test_the_list_by_topic_and_kind(learner):
    status, said = learner("list")
    assert status == 0
    for name in entries.TOPICS:
        assert f"\n [{name}] " in said
    for exercise in EXERCISES.values():
        row = line_of(said, f" {exercise.name} ").split()
        assert row == [exercise.name, f"{exercise.lesson:02}", str(exercise.points),
                       str(exercise.minutes), exercise.kind, "reference"]
    said = learner("list", "--topic", "tensor parallelism", "--kind", "core")[1]
    chosen = [e for e in EXERCISES.values()
              if (e.topic, e.kind) == ("tensor parallelism", "core")]
    assert all(f" {e.name} " in said for e in chosen)
    assert "after copy_to_backward" in said and "heads_by_rank" not in said
    assert f"0 of {sum(e.points for e in chosen)} points" in said


def line_of(text, word):
    return next(line for line in text.split("\n") if word in line)


def test_check_shows_the_learners_own_line_and_what_it_printed(learner):
    learner("start", "layer_norm_backward")
    learner.write("layer_norm_backward", """
        print("look", g.shape)
        unit, scale, gain = ctx.saved
        return [row_dot(g, unit), None, None]       # unit is to be called
        """)
    status, said = learner("check", "layer_norm_backward")
    file = "minipar/autograd/ops/normalization.py"
    wrong = "        return [row_dot(g, unit), None, None]       # unit is to be called"
    number = 1 + (learner.tree / file).read_text().split("\n").index(wrong)
    assert status == 1 and f"at {file}:{number}\n    return [row_dot(g, unit)" in said
    assert "it printed:\n    look (3, 5)" in said


def test_check_tells_a_deadlock(learner):
    learner("start", "ring_all_gather")
    body = next(m.body for m in EXERCISES["ring_all_gather"].mutants if m.name == "all_send_first")
    learner.write("ring_all_gather", body)
    status, said = learner("check", "ring_all_gather")
    assert status == 1
    assert "deadlock: no rank can go on" in said and "rank 0 waits to send to rank 1" in said
    assert "A known mistake: every rank waits in send" in said
    file = "minipar/comm/collectives/all_gather.py"
    lines = (learner.tree / file).read_text().split("\n")
    number = 1 + next(i for i, line in enumerate(lines) if "comm.send(" in line)
    waits = [line for line in said.split("\n") if re.match(" *rank . waits", line)]
    assert waits and all(line.endswith(f"at {file}:{number}") for line in waits), said
    assert f"\nat {file}:{number}\n    {lines[number - 1].strip()}\n" in said


def test_check_ends_an_endless_loop(learner):
    learner("start", "binomial_broadcast")
    learner.write("binomial_broadcast", "import time\nwhile True:\n    time.sleep(0.1)")
    status, said = learner("check", "binomial_broadcast", "--limit", "4")
    assert status == 1
    assert "no end after 4 s" in said
    assert re.search(r"at minipar/comm/collectives/broadcast.py:\d+\n    time.sleep", said)


def test_check_survives_the_end_of_its_process(learner):
    learner("start", "unbroadcast")
    learner.write("unbroadcast", "import os\nos._exit(3)")
    status, said = learner("check", "unbroadcast")
    assert status == 1 and "the process that ran the tests ended (exit status 3)" in said


def test_a_syntax_error_is_one_line_with_its_number(learner):
    learner("start", "ring_all_gather")
    learner.write("ring_all_gather", "p = comm.size\nfor step in range(p - 1)\n    pass")
    lines = (learner.tree / "minipar/comm/collectives/all_gather.py").read_text().split("\n")
    number = 1 + lines.index("    for step in range(p - 1)")
    status, said = learner("check", "ring_all_gather")
    assert (status, said) == (1, "✗ ring_all_gather: minipar/comm/collectives/all_gather.py, line "
                                 f"{number}: expected ':': for step in range(p - 1)\n")
    assert "started" in line_of(learner("list")[1], "ring_all_gather")
    assert learner("restore", "ring_all_gather")[0] == 0       # although the file does not parse
    assert (learner.tree / "minipar/comm/collectives/all_gather.py").read_bytes() == (
        command.ROOT / "minipar/comm/collectives/all_gather.py").read_bytes()


def test_a_file_broken_elsewhere_is_named(learner):
    engine = learner.tree / "minipar/autograd/engine.py"
    engine.write_text(engine.read_text() + "def broken(\n")
    learner("start", "unbroadcast")
    learner.write("unbroadcast", "return grad")
    status, said = learner("check", "unbroadcast")
    assert status == 1 and "SyntaxError: minipar/autograd/engine.py, line " in said
    products = learner.tree / "minipar/autograd/ops/matmul.py"
    learner("start", "matmul_backward")
    started = products.read_text()
    products.write_text("def broken(:\n" + started)
    status, said = learner("restore", "matmul_backward")
    assert status == 2 and "minipar/autograd/ops/matmul.py, line 1: " in said
    assert "mend this line first" in said
    assert products.read_text() == "def broken(:\n" + started


@pytest.mark.slow
def test_an_exercise_is_judged_alone(learner):
    """Others that are started, in the same file or below it, count as their references."""
    for name in ("unbroadcast", "softmax_backward", "layer_norm_backward", "ring_all_reduce"):
        learner("start", name)
    learner.write("softmax_backward", "return [\n    missing(g),\n]\n" + "# more\n" * 40)
    learner.write("layer_norm_backward", """
        unit, scale, gain = ctx.saved
        u, n, d = unit(), g.shape[-1], g * gain()
        dx = (d - row_sum(d) / n - u * row_dot(d, u) / n) * scale()
        return [dx, np.sum(as_rows(g * u), axis=0), np.sum(as_rows(g), axis=0)]
        """)
    assert learner("check", "layer_norm_backward")[0] == 0
    status, said = learner("check", "softmax_backward")
    assert status == 1 and "NameError: name 'missing' is not defined" in said
    learner("start", "matmul_backward")         # needs unbroadcast
    learner.write("matmul_backward", """
        (a, b), (of_a, of_b) = ctx.saved, ctx.shapes
        return [lambda: unbroadcast(g @ b().swapaxes(-1, -2), of_a),
                lambda: unbroadcast(a().swapaxes(-1, -2) @ g, of_b)]
        """)
    assert learner("check", "matmul_backward")[0] == 0
    assert learner("prove", "softmax_backward")[0] == 0


# Refusals: one line each, exit status 2

@pytest.mark.parametrize("argv, said", [
    (["start", "softmx"], "no exercise 'softmx': did you mean softmax_backward?"),
    (["start", "zzz"], f"no exercise 'zzz': {minipar_command('exercise list')} shows them"),
    (["restore", "unbroadcast"], "unbroadcast is not started"),
    (["hint", "unbroadcast", "9"], "unbroadcast has hints 1 … 4, not 9"),
    (["hint", "unbroadcast", "x"], "invalid int value"),
    (["check", "unbroadcast", "--limit", "0"], "--limit takes a positive number"),
    (["list", "--topic", "calculus"], "no topic 'calculus': choose from collectives, costs, "),
    (["list", "--kind", "fun"], "no kind 'fun': choose from core, plumbing"),
    (["start"], "required: NAME"), ([], "required: COMMAND"), (["strat", "x"], "invalid choice")])
def test_refusals(learner, argv, said):
    status, line = learner(*argv)
    assert status == 2 and said in line, line
    assert line.startswith("minipar: ") and line.count("\n") == 1


def test_start_twice_is_refused(learner):
    learner("start", "unbroadcast")
    learner.write("unbroadcast", "return grad")
    before = learner.snapshot()
    status, said = learner("start", "unbroadcast")
    assert status == 2
    assert re.match(r"minipar: unbroadcast is started already: write it in minipar/autograd/"
                    r"ops/elementwise\.py:\d+; to begin again, restore unbroadcast first\n$", said)
    assert learner.snapshot() == before


def test_a_function_that_is_gone_is_refused(learner):
    path = learner.tree / EXERCISES["unbroadcast"].file
    path.write_text(path.read_text().replace("def unbroadcast(", "def sum_back("))
    status, said = learner("start", "unbroadcast")
    assert status == 2
    assert "minipar/autograd/ops/elementwise.py has no function unbroadcast" in said
    path.write_bytes("# é\n".encode("latin-1"))
    assert "elementwise.py is not UTF-8" in learner("start", "unbroadcast")[1]
    path.unlink()
    assert "elementwise.py is gone" in learner("start", "unbroadcast")[1]
    assert not (learner.tree / ".exercises").exists()
