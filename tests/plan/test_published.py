"""The plan against published runs: bars on the half that nothing was fitted to, and groups."""

import tomllib

import pytest

from minipar.plan.cluster import FOLDER, from_file
from tests.support import plan_page
from tests.support.plan_fit import count_stalls, fit_memory, fit_products, fit_times
from tests.support.plan_rows import SOURCES, published, scores, ultrascale

MEGATRON = {"sc21", "korthikanti", "mt-nlg", "bloom", "megatron-2020", "megatron-core", "llama3"}


@pytest.fixture(scope="module")
def other_half():
    return scores(ultrascale()[1])


@pytest.mark.parametrize("name, most", [("time", 0.08), ("fast_time", 0.05), ("memory", 0.075),
                                        ("regret", 0.05), ("worst_regret", 0.30)])
def test_errors_on_runs_that_were_not_fitted(other_half, name, most):
    assert getattr(other_half, name) <= most


@pytest.mark.parametrize("name, least", [("fit", 0.95), ("failed", 0.85), ("rank", 0.85),
                                         ("small_rank", 0.90)])
def test_shares_on_runs_that_were_not_fitted(other_half, name, least):
    assert getattr(other_half, name) >= least


def test_the_halves_are_all_rows():
    half, other = ultrascale()
    assert len(half) + len(other) == 1611
    assert sum(j.seconds is not None for j in half + other) == 1017


def test_megatron_runs_are_within_10_percent():
    """With one efficiency for each GPU and generation of software."""
    rows = [j for j in published() if j.row.columns["group"] in MEGATRON]
    assert len(rows) == 43
    assert {j.row.columns["run"]: j.error for j in rows if abs(j.error) > 0.10} == {}


@pytest.mark.parametrize("group, within, most", [("vtrain", 0.15, 0.20), ("mosaic", 0.15, 0.15),
                                                 ("fms-fsdp", 0.10, 0.0)])
def test_most_of_the_other_runs_are_near(group, within, most):
    """At most that share of them is further off."""
    errors = [abs(j.error) for j in published() if j.row.columns["group"] == group]
    assert sum(error > within for error in errors) <= most * len(errors)


def test_every_group_has_a_source():
    assert {j.row.columns["group"] for j in published()} | {"ultrascale"} == set(SOURCES)


@pytest.mark.slow
def test_fitting_again_gives_the_numbers_of_the_files():
    half, _ = ultrascale()
    software = half[0].row.cluster.software
    for name, value in fit_times(half).items():
        assert getattr(software, name) == pytest.approx(value, rel=0.02), name
    base, kept = fit_memory(half)
    assert (software.memory_base, software.kept) == pytest.approx((base, kept), rel=0.03)


def test_the_shares_of_stalls_are_counted():
    half, _ = ultrascale()
    software = half[0].row.cluster.software
    for (name, nodes), (count, num) in count_stalls(half).items():
        assert dict(getattr(software, name))[nodes] == pytest.approx(count / num, abs=0.006)


@pytest.mark.slow
def test_the_efficiencies_are_those_of_the_fit():
    for name, product in fit_products().items():
        gpu, software = name.split("/")
        assert from_file(FOLDER / f"{gpu}.toml", software).software.product == pytest.approx(
            product, abs=0.006), name


def test_only_these_numbers_were_fitted():
    """nanotron's nine, two of memory, and how often runs stalled; one for every other software."""
    table = tomllib.loads((FOLDER / "h100.toml").read_text("utf-8"))
    assert all("product" in entry for name, entry in table["software"].items()
               if name != "nanotron")


def test_the_pages_are_up_to_date():
    for path, text in plan_page.pages().items():
        assert path.read_text("utf-8") == text, "run: python -m tests.support.plan_page"
