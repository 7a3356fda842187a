"""Interactive pieces: their data are minipar's numbers; their scripts compute as Python does."""

import json
import sys

import numpy as np
import pytest

from minipar.comm.cost import predict
from minipar.comm.cost.alpha_beta import seconds
from minipar.nn import GPT, GPTConfig
from minipar.number_formats import FORMATS
from minipar.parallel.cost.activations import gpt_activations
from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.validate import find_fault
from tests.site.conftest import ROOT

PIECES = sorted(path.parent.name for path in (ROOT / "docs" / "interactive").glob("*/piece.js"))
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "pages").glob("*.md")}


@pytest.fixture
def data(monkeypatch):
    pytest.importorskip("yaml", reason="make docs installs what builds the site")
    monkeypatch.syspath_prepend(ROOT / "docs" / "builder")
    monkeypatch.delitem(sys.modules, "pieces", raising=False)
    import pieces
    return pieces.data_of


@pytest.fixture
def stuck_ranks(monkeypatch, data):
    import pieces
    return pieces.load(ROOT / "docs" / "interactive" / "waiting" / "data.py").stuck_ranks


@pytest.fixture
def script(browser, data):
    """A function that calls the `compute` of a piece, in Chromium."""
    page = browser.new_page()
    page.set_content("<p></p>")
    page.add_script_tag(content="\n".join(
        (ROOT / "docs" / "interactive" / name).read_text(encoding="utf-8")
        for name in ("piece.js", *[f"{each}/piece.js" for each in PIECES])))

    def compute(name, settings):
        return page.evaluate(
            "([name, data, all]) => all.map((each) => minipar.pieces[name].compute(data, each))",
            [name, json.loads(json.dumps(data(name))), settings])
    yield compute
    page.close()


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_is_on_a_page_and_its_data_are_json(name, data):
    places = [text for text in PAGES.values() if f"<!-- piece: {name} -->" in text]
    assert places or name == "question", "the builder puts questions on the lessons' pages"
    text = json.dumps(data(name), allow_nan=False)
    assert len(text) < 200_000, "a page carries it"


def test_memory_has_the_models_numbers(data):
    found = data("memory")["models"]["GPT-2 small"]
    config = GPTConfig(50257, 1024, 12, num_heads=12, width=768)
    assert found["parameters"] == GPT(config).num_parameters() == 124_439_808
    assert 12 * found["activations"][1]["tensor"]["none"] < gpt_activations(config, 1)


@pytest.mark.site
def test_crossovers_compute_the_cost_model(script):
    cases = [(p, n, latency) for p in (2, 8, 64) for n in (2**16, 2**26)
             for latency in (1e-6, 1e-4)]
    found = script("crossovers", [{"p": p, "n": n, "latency": latency, "bandwidth": 1e10,
                                   "combining": 2e10} for p, n, latency in cases])
    for (p, n, latency), times in zip(cases, found):
        for name, time in times.items():
            cost = predict("all_reduce", name, p, n // 8)
            assert time == pytest.approx(seconds(cost, latency, 1e10, 2e10), rel=1e-9)


@pytest.mark.site
def test_the_number_line_rounds_as_the_formats_do(script, data):
    values = np.concatenate([np.random.default_rng(0).standard_normal(200) * 10.0**k
                             for k in (-8, -3, 0, 3, 6)]).astype(np.float32)
    for each in data("number_line")["formats"]:
        name = each["name"]
        rounded = FORMATS[name].round(values)
        found = script("number_line", [{"name": name, "value": float(v)} for v in values])
        mine = [np.inf if one["rounded"] is None else one["rounded"] for one in found]
        finite = np.isfinite(rounded)
        assert np.array_equal(np.array(mine)[finite], rounded[finite].astype(np.float64)), name
        assert not np.isfinite(np.array(mine)[~finite]).any(), name


@pytest.mark.site
def test_memory_shards_what_zero_shards(script, data):
    base = {"model": "GPT-2 small", "optimizer": "AdamW", "dp": 4, "tp": 1, "pp": 1, "batch": 2,
            "parallel": "tensor", "remat": "none"}
    found = script("memory", [{**base, "zero": zero} for zero in range(4)])
    psi = data("memory")["models"]["GPT-2 small"]["parameters"]
    states = [sum(size for kind, size in one.items() if kind != "activations") for one in found]
    assert states == [16 * psi, 8 * psi + 8 * psi / 4, 4 * psi + 12 * psi / 4, 16 * psi / 4]
    assert len({one["activations"] for one in found}) == 1


def test_every_recorded_collective_costs_what_was_predicted(data):
    for operation, algorithms in data("collective")["runs"].items():
        for algorithm, runs in algorithms.items():
            for p, run in runs.items():
                counted = [len(run["moves"]), run["path"][-1], sum(map(len, run["moves"]))]
                assert counted == run["predicted"], (operation, algorithm, p)


@pytest.mark.site
def test_the_collective_player_counts_rounds(script, data):
    where = {"operation": "all_reduce", "algorithm": "ring", "p": 6}
    found = script("collective", [{**where, "round": round} for round in range(11)])
    run = data("collective")["runs"]["all_reduce"]["ring"][6]
    assert [one["messages"] for one in found] == [6 * round for round in range(11)]
    assert found[-1]["bytes"] == run["predicted"][1]


@pytest.mark.site
def test_the_best_plan_is_the_best_of_the_front(script, data):
    for chain, each in data("remat")["chains"].items():
        front = each["plans"]
        settings = [{"chain": chain, "budget": plan["peak"]} for plan in front]
        assert [one["extra"] for one in script("remat", settings)] == [
            plan["extra"] for plan in front]
        assert script("remat", [{"chain": chain, "budget": front[0]["peak"] - 1}]) == [None]
    equal = data("remat")["chains"]["16 equal layers"]["plans"]
    unit = equal[-1]["peak"] // 17                  # keep all: L + 1 arrays
    assert min(plan["peak"] for plan in equal if plan["extra"] < 1) <= 6 * unit


@pytest.mark.site
def test_questions_know_right_from_wrong(script, data):
    for lesson, asked in data("question")["questions"].items():
        for index, question in enumerate(asked):
            where = {"lesson": lesson, "index": index}
            values = [question["answer"], *[value for value, _ in question["wrong"]]]
            said = script("question", [{**where, "value": value} for value in values])
            assert said[0] == [True, f"Right. {question['reason']}"]
            assert said[1:] == [
                [False, f"Not yet. {hint}"] for _, hint in question["wrong"]], question["text"]
            assert script("question", [{**where, "value": 1e9 * question["answer"]}])[0][1] \
                == "Not yet: it is less."


@pytest.mark.site
def test_the_pipeline_puzzle_simulates_as_python_does(script, data):
    rng, times = np.random.default_rng(0), data("pipeline")["times"]
    for p, by_m in data("pipeline")["schedules"].items():
        for schedules in by_m.values():
            for each in schedules.values():
                found = script("pipeline", [{"rows": each["rows"], "times": times}])[0]
                assert (found["time"], found["peaks"], found["stuck"]) == (
                    each["time"], each["peaks"], [])
                edited = []
                for _ in range(20):                 # some actions out of place
                    rows = [list(row) for row in each["rows"]]
                    row = rows[rng.integers(p)]
                    row.insert(int(rng.integers(len(row))), row.pop(int(rng.integers(len(row)))))
                    edited.append(rows)
                for rows, found in zip(edited, script("pipeline", [
                        {"rows": rows, "times": times} for rows in edited])):
                    schedule = [[Action(kind, rank, i) for kind, i in row]
                                for rank, row in enumerate(rows)]
                    if find_fault(schedule):
                        assert found["stuck"]
                    else:
                        assert not found["stuck"]
                        assert found["time"] == simulate(schedule, Times()).makespan()


@pytest.mark.site
def test_the_page_finds_the_deadlocks_of_the_simulated_cluster(script, data, stuck_ranks):
    rng, programs = np.random.default_rng(0), []
    for _ in range(150):
        p = int(rng.integers(2, 5))

        def line(rank, p=p):
            first, second = (int((rank + rng.integers(1, p)) % p) for _ in range(2))
            return [f"send {first}", f"recv {first}", f"sendrecv {first} {second}"][
                int(rng.integers(3))]
        programs.append([[line(rank) for _ in range(int(rng.integers(4)))] for rank in range(p)])
    programs += [each["ranks"] for each in data("waiting")["programs"].values()]
    found = script("waiting", [{"ranks": ranks, "eager": False} for ranks in programs])
    for ranks, one in zip(programs, found):
        assert [rank for rank, *_ in one["stuck"]] == stuck_ranks(ranks), ranks
    small = script("waiting", [{"ranks": programs[-7], "eager": True}])[0]
    assert small["stuck"] == [], "a ring of small messages ends"
