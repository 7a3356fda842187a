"""Clusters: names, files of one's own, mistakes; no fitted number beats a data sheet."""

import tomllib

import pytest

from minipar.plan.cluster import FOLDER, from_file, read_cluster

SOFTWARE = [(path, name) for path in sorted(FOLDER.glob("*.toml"))
            for name in tomllib.loads(path.read_text("utf-8")).get("software", {})]


def test_a_name_says_nodes_gpus_and_software():
    cluster = read_cluster("16x4:h100/llama3")
    assert (cluster.num_gpus, cluster.per_node, cluster.software.name) == (64, 4, "llama3")
    assert read_cluster("h200").bandwidth == 4.8e12
    assert read_cluster("h200").link == read_cluster("h100").link       # it is `like` that one


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('like = "h100"\ntitle = "mine"\nnic = 1e9\n'
                    '[software.mine]\nlike = "nanotron"\nlaunch = 0.5\n')
    cluster = read_cluster(f"2x8:{path}/mine".replace(".toml/mine", ".toml"))
    assert (cluster.nic, cluster.num_gpus, cluster.software.name) == (1e9, 16, "nanotron")
    mine = from_file(path, "mine").software
    assert (mine.launch, mine.stall) == (0.5, cluster.software.stall)


@pytest.mark.parametrize("text, said", [
    ("h1000", "no GPU 'h1000' is known: choose from a100, "),
    ("8:h100", "give NODESxGPUS:NAME, as 8x8:h100, or a TOML file"),
    ("0x8:h100", "give NODESxGPUS:NAME"),
    ("1x8:h100/vllm", "no software 'vllm': choose from nanotron, "),
    ("absent.toml", "no GPU 'absent.toml' is known"),
])
def test_mistakes(text, said):
    with pytest.raises(ValueError, match=said):
        read_cluster(text)


@pytest.mark.parametrize("text, said", [
    ("title =", "is not TOML"), ('title = "x"', "missing"),
    ('like = "h100"\nnics = 8', "unknown 'nics': choose from name, title"),
    ('like = "h100"\n[software.nanotron]\nspeed = 1', "unknown 'speed': choose from name, product"),
    ('like = "h1000"', "No such file"), ('like = 5', "No such file"),
    ('like = "h100"\nnic = "fast"', "nic is a number > 0, not 'fast'"),
    ('like = "h100"\nlink = 0', "link is a number > 0, not 0"),
    ('like = "h100"\nnodes = 100_000', "800,000 GPUs are too many: at most 100,000"),
    ('like = "h100"\ndtype = "fp4"', "the peak of mine in fp4 is missing: peak has bf16"),
    ('like = "h100"\npeak = 5', "peak is 5, not a dict"),
    ('like = "h100"\n[software.nanotron]\nlike = "nanotron"', "no software 'nanotron'"),
    ('like = "h100"\n[software.nanotron]\nsplit = "odd"', "split is 'odd': choose from even"),
    ('like = "h100"\n[software.nanotron]\nlaunch = -1', "launch is a number >= 0, not -1"),
    ('like = "h100"\ncores = -1', "cores is a number >= 0, not -1"),
    ('like = "h100"\n[software.nanotron]\noperations = {gelu = [1]}',
     r"gelu has three numbers >= 0, .*, not \[1\]"),
    ('like = "h100"\n[software.nanotron]\nwaves = 1', "waves is 1, not a bool")])
def test_mistakes_in_a_file(tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_cluster(str(path))


@pytest.mark.parametrize("path, name", SOFTWARE, ids=str)
def test_numbers_have_their_physical_meaning(path, name):
    """No rate beats its data sheet, and no product the largest that was measured."""
    cluster = from_file(path, name)
    most = {"a100": 0.87, "h100": 0.80}.get(path.stem, 0.95)
    s = cluster.software
    assert 0.3 < s.product <= most and s.stream <= 1 and s.link <= 1 and s.nic <= 1
    assert cluster.usable <= 1.03 * cluster.memory
    assert s.fitted or path.stem == "cpu_core"
    assert all(0 <= share <= 1 for share in (s.tp_overlap, s.pp_overlap, s.dp_overlap))
