"""The numbers in the handout and the rubric of "Compression and inference" are true."""

import math

import numpy as np

from minipar.school.course.grading.tasks import ASSIGNMENTS

FOLDER = ASSIGNMENTS / "compression_and_inference"
RUBRIC = " ".join((FOLDER / "rubric.md").read_text(encoding="utf-8").split())


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def test_the_example_of_the_handout():
    w = np.array([0.9, -0.1, 0.4, 0.0])
    codes = np.rint(w * 7 / 0.9)
    assert codes.tolist() == [7, -1, 3, 0]
    assert np.round(np.abs(codes * 0.9 / 7 - w), 2).tolist() == [0, 0.03, 0.01, 0]


def test_bits():
    assert round(7 * 4.25 / 8, 2) == 3.72 and round(7 * 4.3125 / 8, 2) == 3.77
    assert 14 / 3.72 > 3.76 and 4 + 16 / 128 == 4.125
    for number in ("4.25 bits, 3.72 GB", "4.3125 bits, 3.77 GB", "g = 128"):
        assert number in RUBRIC


def test_one_large_weight():
    w = np.random.default_rng(0).standard_normal(1000)
    w[0] = 33.0

    def error(w, scale):
        return math.sqrt(np.mean((np.rint(w / scale) * scale - w)**2))
    assert round(33 / 7 / math.sqrt(12), 2) == 1.36
    assert 0.9 < error(w, 33 / 7) < 1.05
    groups = [error(part, np.abs(part).max() / 7) for part in np.split(w, 10)]
    assert 0.26 < math.sqrt(np.mean(np.square(groups))) < 0.36
    assert round(math.sqrt(0.1 + 0.9 * 0.14**2), 2) == 0.34


def test_counting():
    assert round(63 / 64 * 4, 2) == 3.94 and 4 * 2 * 63 * 2048 // 64 == 16_128
    ring = 2 * 126 * (10 + 524_288 / 64 / 10e3)
    doubling = [rounds * 6 * (10 + size / 10e3) for rounds, size in ((4, 2048), (2, 524_288))]
    assert [round(ring / 1e3, 2), *map(round, doubling)] == [2.73, 245, 749]
    assert "2.73 ms" in RUBRIC and "245 µs" in RUBRIC and "749 µs" in RUBRIC


def test_temperatures():
    z, teacher = np.ones(3), np.array([4.0, 1, 0])
    for t in (1, 2, 8, 64):
        gradient, p = t * (softmax(z / t) - softmax(teacher / t)), softmax(teacher / t)
        shown = [", ".join(f"{x:.3f}" for x in row) for row in (gradient, p)]
        assert f"| {t} | {shown[0]} | {shown[1]} |" in RUBRIC
    limit = (z - teacher - np.mean(z - teacher)) / 3
    assert f"| limit | {', '.join(f'{x:.3f}' for x in limit)} |" in RUBRIC


def test_sequences():
    token = 2 * 32 * 8 * 128 * 2
    assert token == 131_072 and int(20e9 / token / 4096) == 37
    blocks = int(20e9 // (16 * token))
    assert (blocks, int(16 * blocks / 707.5), int(16 * blocks / 700)) == (9536, 215, 217)
    assert round(4096 / 707.5, 1) == 5.8


def test_drafts():
    def speed(gamma):
        return (1 - 0.7**(gamma + 1)) / 0.3 / (1 + 0.05 * gamma)
    assert [round(speed(gamma), 2) for gamma in (4, 5, 6, 7)] == [2.31, 2.35, 2.35, 2.33]
    assert max(map(speed, range(1, 20))) < speed(5) + 1e-3 and round(speed(5) * 1.25, 2) == 2.94
