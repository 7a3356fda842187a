"""Contiguous stretches or blocks: recorded shares, and which requests wait."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from minipar.inference.scheduling.fragmentation import (
    BuddyAllocator,
    CachedRequest,
    compare_layouts,
    slots_asked,
)

RECORDED = json.loads((Path(__file__).parent / "arrays/contiguous_or_paged.json").read_text())
REQUESTS = [CachedRequest(**request) for request in RECORDED["requests"]]
LAYOUTS = compare_layouts(REQUESTS, RECORDED["pool_slots"], RECORDED["longest"])


@pytest.mark.parametrize("policy", ["max", "pow2", "oracle"])
def test_contiguous_layouts_are_as_recorded(policy):
    layout, expected = LAYOUTS[policy], RECORDED["policies"][policy]
    assert {name: stretch._asdict() for name, stretch in layout.stretches.items()} \
        == expected["placed"]
    assert layout.waiting == expected["waiting"]
    percent = layout.percent()
    for part in ("token", "reserved", "internal", "external"):
        assert asdict(layout)[part] == expected[part]
        assert round(percent[part], 2) == expected["percent"][part]


def test_blocks_are_as_recorded():
    layout, expected = LAYOUTS["blocks"], RECORDED["policies"]["blocks"]
    assert layout.num_blocks == expected["blocks"]
    assert (layout.placed, layout.waiting) == (expected["placed"], expected["waiting"])
    assert (layout.token, layout.internal) == (expected["token"], expected["internal"])
    assert layout.free == 16 * expected["free_blocks"]
    assert layout.token + layout.internal == expected["taken"]
    assert round(100 * layout.waste, 2) == expected["percent_of_taken"]["waste"]
    assert layout.external == layout.reserved == 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_parts_are_the_pool(name):
    assert sum(LAYOUTS[name].percent().values()) == pytest.approx(100, abs=1e-12)


def test_stretches_are_aligned_apart_and_within_the_pool():
    allocator = BuddyAllocator(100)
    found = [allocator.allocate(size) for size in (3, 17, 1, 30, 9, 33, 8)]
    assert found == [(0, 4, 3), (32, 32, 17), (4, 1, 1), (64, 32, 30), (16, 16, 9), None, (8, 8, 8)]


def test_requests_that_cannot_be_placed_are_refused_or_wait():
    with pytest.raises(ValueError, match="requests A are longer than the longest sequence of 9"):
        compare_layouts([CachedRequest("A", 5, 5, 0)], 64, 9)
    with pytest.raises(ValueError, match="unknown layout 'pages'"):
        slots_asked(REQUESTS[0], "pages", 9)
    crowd = [CachedRequest(str(i), 16, 16, 16) for i in range(3)]
    layout = compare_layouts(crowd, 70, 32)["blocks"]
    assert (layout.waiting, layout.free, layout.external) == (["2"], 0, 6)
