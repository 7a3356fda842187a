"""Interactive pieces in the built site: they react to keys, buttons and typed text."""

import pytest

pytestmark = pytest.mark.site


@pytest.mark.parametrize("page, piece", [("memory", "memory"), ("choosing", "crossovers"),
                                         ("precision", "number_line"),
                                         ("rematerialization", "remat")])
def test_a_piece_reacts_to_the_keyboard(tab, address, page, piece):
    tab.goto(f"{address}/{page}/")
    root = tab.locator(f'[data-piece="{piece}"]')
    before = root.locator(".words").inner_text()
    slider = root.locator('input[type="range"]').first
    slider.focus()
    for _ in range(4):
        tab.keyboard.press("ArrowRight")
    assert root.locator(".words").inner_text() != before
    assert root.locator("svg").get_attribute("aria-label") == root.locator(".words").inner_text()
    assert not tab.faults


def test_the_collective_player_steps(tab, address):
    tab.goto(f"{address}/choosing/")
    root = tab.locator('[data-piece="collective"]')
    root.get_by_role("button", name="next round").click()
    assert root.locator(".words").inner_text().startswith("Round 1 of 6: 0 sends")
    root.get_by_role("button", name="back").press("Enter")
    assert root.locator(".words").inner_text().startswith("Before the first round")
    assert not tab.faults


def test_a_typed_number_is_checked(tab, address):
    tab.goto(f"{address}/lessons/12/")
    box = tab.get_by_label("which percentage of the total time")
    box.fill("21.875")
    box.press("Enter")
    form = tab.locator('[data-piece="question"] form').first
    assert "of the ideal time" in form.locator(".words").inner_text()
    box.fill("17.95")
    form.get_by_role("button", name="Check").click()
    assert "Right." in form.locator(".words").inner_text()


def test_an_arrow_key_moves_an_action(tab, address):
    tab.goto(f"{address}/pipelines/")
    root = tab.locator('[data-piece="pipeline"]')
    before = root.locator(".words").inner_text()
    assert before.startswith("Time ")
    root.locator('[data-cell="0,0"]').focus()
    tab.keyboard.press("ArrowRight")
    assert root.locator('[data-cell="0,1"]').get_attribute("aria-label").startswith(
        "rank 0, F of microbatch 0, place 2")
    order = [root.locator(f'[data-cell="0,{k}"] text').text_content() for k in range(2)]
    assert order == ["F1", "F0"]
    root.get_by_role("button", name="begin again").click()
    assert root.locator(".words").inner_text() == before
    assert not tab.faults


def test_a_program_is_edited(tab, address):
    tab.goto(f"{address}/running/")
    root = tab.locator('[data-piece="waiting"]')
    assert "They wait in a circle: 0 → 1 → 2 → 0." in root.locator(".words").inner_text()
    root.locator("#waiting-0").fill("recv 2\nsend 1")
    assert root.locator(".words").inner_text().startswith("It ends after")
    root.locator("#waiting-0").fill("hello")
    assert 'rank 0: "hello"' in root.locator(".words").inner_text()
