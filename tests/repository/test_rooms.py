"""The design page shows the rooms as they are; imports between them go down, without a circle."""

from tests.support import rooms


def test_the_page_shows_what_the_imports_say():
    text = rooms.PAGE.read_text(encoding="utf-8")
    shown = text.split(rooms.BEGIN)[1].split(rooms.END)[0].strip()
    assert shown == rooms.table(rooms.imports()), "python -m tests.support.rooms writes it anew"
    assert rooms.PICTURE.exists()


def test_every_room_imports_from_floors_below_its_own():
    graph = rooms.imports()
    floor = {room: number for number, level in enumerate(rooms.layers(graph)) for room in level}
    assert all(floor[other] < floor[room] for room in graph for other in graph[room])


def test_rooms_import_few_others():
    graph = rooms.imports()
    assert sum(map(len, graph.values())) <= 151


def test_a_folder_holds_at_most_12_files():
    folders = [folder for folder in rooms.PACKAGE.rglob("*") if folder.is_dir()]
    full = {str(folder.relative_to(rooms.ROOT)): number for folder in folders
            if (number := len(list(folder.glob("*.py")))) > 12}
    assert not full, "at most 12 files in a folder: put those of one kind into a folder in it"
