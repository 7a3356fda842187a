"""Verdicts of the study: errors as rare as promised, more findings with more seeds."""

import math

import numpy as np
import pytest

from minipar.compression_study.findings import RULE, paragraph, paragraphs
from minipar.compression_study.measure import ROWS, Result
from minipar.compression_study.significance import ERROR, half_width, not_worse, t_quantile, verdict
from minipar.compression_study.subjects import FULL

SEEDS, TRIES = (2, 3, 5, 20), 2000
NOISE = 3 * math.sqrt(ERROR * (1 - ERROR) / TRIES)      # of a share of ERROR in TRIES


def studies(num_seeds, effect, tries=TRIES, step=0.0):
    """Gains (tries, seeds) with a true mean, of standard deviation 1; perhaps rounded to a step."""
    gains = effect + np.random.default_rng(num_seeds).standard_normal((tries, num_seeds))
    return np.rint(gains / step) * step if step else gains


@pytest.mark.parametrize("probability, degrees, expected", [     # of tables, to their digits
    (0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 3, 3.1824), (0.975, 4, 2.7764),
    (0.95, 2, 2.9200), (0.995, 4, 4.6041), (0.99, 7, 2.9980), (0.975, 30, 2.0423),
    (0.975, 10**4, 1.9602), (0.9975, 2, 14.0890), (0.5, 3, 0.0)])
def test_quantiles_are_those_of_the_tables(probability, degrees, expected):
    assert t_quantile(probability, degrees) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("num_seeds", SEEDS)
def test_what_does_not_differ_is_called_different_as_often_as_stated(num_seeds):
    found = np.array([verdict(gains) for gains in studies(num_seeds, 0.0)])
    assert abs(np.mean(found != 0) - ERROR) < NOISE
    assert abs(np.mean(found == 1) - ERROR / 2) < NOISE


@pytest.mark.parametrize("num_seeds", SEEDS)
def test_accuracies_in_steps_are_no_more_often_called_different(num_seeds):
    """A few images more or less, the same number for all seeds, by chance."""
    found = [verdict(gains, 1.0) for gains in studies(num_seeds, 0.0, step=1.0)]
    assert np.mean(np.array(found) != 0) < ERROR + NOISE
    assert verdict(np.full(2, 1.0), 1.0) == 0 and verdict(np.full(5, 1.0), 1.0) == 1


def test_more_seeds_find_more():
    """Of an effect of 1.5 standard deviations; and that there is none, within a margin of 1.5."""
    found, fine = [], []
    for num_seeds in SEEDS:
        found.append(np.mean([verdict(gains) == 1 for gains in studies(num_seeds, 1.5)]))
        fine.append(np.mean([not_worse({"a": gains}, 1.5) == ["a"]
                             for gains in studies(num_seeds, 0.0)]))
    assert found == sorted(found) and fine == sorted(fine)
    assert found[1] > 0.25 and found[2] > 0.6 and found[-1] > 0.999
    assert fine[1] > 0.4 and fine[2] > 0.8 and fine[-1] > 0.999


@pytest.mark.parametrize("num_seeds", SEEDS)
@pytest.mark.parametrize("num_files", [1, 15])
def test_of_many_bad_files_a_lucky_one_is_chosen_as_rarely_as_stated(num_files, num_seeds):
    """All are worse by the margin.  Failing to show that they are worse would let most pass."""
    tries = 400 if num_files > 1 else TRIES
    gains = studies(num_seeds, -1.0, tries * num_files).reshape(tries, num_files, num_seeds)
    chosen = [not_worse({str(i): of_file for i, of_file in enumerate(files)}, 1.0)
              for files in gains]
    share = np.mean([bool(names) for names in chosen])
    assert share < ERROR + 3 * math.sqrt(ERROR / tries)
    if num_files == 1:
        assert share > ERROR - NOISE


def test_one_seed_shows_nothing():
    assert half_width(np.array([3.0])) == math.inf
    assert verdict(np.array([3.0])) == 0 and not_worse({"a": np.array([3.0])}, 100.0) == []


def rows(num_seeds, seconds_noise, seed=0):
    """Results of a study: int8 is as good and twice as slow, pruned 90 % bad, the rest as dense."""
    draw = np.random.default_rng(seed)
    found = {}
    for row in ROWS:
        quality = 0.9 - 0.2 * row.name.startswith("pruned 90 %")
        seconds = 2.0 if row.name == "int8" else 0.5 if row.name.startswith("small") else 1.0
        found[row.name] = [Result(quality + 0.001 * draw.standard_normal(),
                                  1000 if row.name == "dense" else 500 - len(row.name), 1.0,
                                  seconds * math.exp(seconds_noise * draw.standard_normal()))
                           for _ in range(num_seeds)]
    return found


def test_findings_say_what_was_shown():
    said = paragraph(FULL[0], rows(5, 0.01))
    sentences = {sentence.split(":")[0].split(" (")[0]: sentence for sentence in said.split(". ")}
    assert sentences["Worse"] == "Worse: pruned 90 % (-19.8 ± 0.2 points)"
    fine = sentences["Not worse by 1.0 points"]
    assert "int8;" in fine and "pruned 90 %" not in fine
    assert "The smallest of these: pruned 80 % + int8, ÷ 2.1" in said
    assert "Slower than dense by 10%: int8 (× 2.0" in said
    assert sentences["Faster than dense by 10%"].count("small") == 2
    assert "with a smaller file: 18; faster by that much: 2, not: 16, undecided: 0." in said


def test_noisy_seconds_are_no_findings():
    """Three seeds with seconds that differ by a factor of e: few of 18 rows are called anything."""
    shares = []
    for seed in range(30):
        said = paragraph(FULL[0], rows(3, 1.0, seed))
        shares.append(int(said.split("undecided: ")[1].split(".")[0]) / 18)
    assert np.mean(shares) > 0.9


def test_the_rule_is_stated_and_one_seed_is_not_judged():
    results = {subject.name: rows(3, 0.0) for subject in FULL}
    assert paragraphs(FULL, results).startswith(RULE)
    assert "95% intervals of Student's t" in RULE and "5% of comparisons without" in RULE
    single = paragraphs(FULL, {subject.name: rows(1, 0.0) for subject in FULL})
    assert "With one seed nothing can be told from noise." in single
    assert RULE not in single and "Slower" not in single and "Worse" not in single
