"""Files that say what machines there are: lists of nodes and tables of pools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.errors import UserError
from gpuyard.sim.traces.nodes import read_nodes, read_pools

GIB = float(2**30)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a file into a fresh working directory, so that messages show its bare name."""
    monkeypatch.chdir(tmp_path)

    def make(content: str) -> str:
        Path("nodes.csv").write_text(content)
        return "nodes.csv"

    return make


def test_own_layout(file: Callable[[str], str]) -> None:
    nodes = read_nodes(file("node,gpus,model,cpus,memory,gpu_memory\na,8,A100,64,512G,40G\nb,2,,,,\n"))
    assert (nodes.names, nodes.gpus, nodes.models) == (["a", "b"], (8, 2), ("A100", ""))
    assert (nodes.cpus, nodes.host_memory, nodes.gpu_memory) == ((64, 0), (512 * GIB, 0), (40 * GIB, 0))
    assert len(nodes) == 2


def test_openb_layout_leaves_out_nodes_without_gpus(file: Callable[[str], str]) -> None:
    nodes = read_nodes(file("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,1024,0,\n"))
    assert (nodes.names, nodes.gpus, nodes.cpus, nodes.host_memory) == (["n0"], (2,), (64,), (256 * GIB,))
    assert nodes.without_gpus == 1


def test_philly_machines(file: Callable[[str], str]) -> None:
    assert read_nodes(file(",machineId,number of GPUs\n0,m0,8\n1,m1,4\n2,m2,0\n")).gpus == (8, 4)
    assert read_nodes(file("machineId,number of GPUs,single GPU mem\nm0,8,24GB\n")).gpu_memory == (24 * GIB,)


def test_tiresias_spec(file: Callable[[str], str]) -> None:
    header = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"
    nodes = read_nodes(file(header + "2,3,4,128,256"))
    assert (nodes.gpus, nodes.cpus, nodes.host_memory) == ((4,) * 6, (128,) * 6, (256 * GIB,) * 6)
    assert len(set(nodes.names)) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nodes.csv is empty"),
        ("a,b\n", "nodes.csv, line 1: this is not a list of nodes"),
        ("node,gpus\n", "nodes.csv holds no node with a GPU"),
        ("node,gpus\na,0\n", "nodes.csv holds no node with a GPU"),
        ("node,gpus\na,1.5\n", "nodes.csv, line 2: gpus must be a whole number, not 1.5"),
        ("node,gpus\na,inf\n", "nodes.csv, line 2: gpus must be a finite number, not inf"),
        ("node,gpus\na,nan\n", "nodes.csv, line 2: gpus: 'nan' is not a number"),
        ("node,gpus\na,\n", "nodes.csv, line 2: gpus is missing"),
        ("node,gpus\n,4\n", "nodes.csv, line 2: node is missing"),
        ("node,gpus\na,1\na,1\n", "nodes.csv, line 3: node 'a' is already on line 2"),
        ("node,gpus,gpus\na,1,1\n", "nodes.csv, line 1: the column 'gpus' is there twice"),
        ("node,gpus,memory\na,1,6X\n", "nodes.csv, line 2: memory: '6X' is not a size"),
    ],
)
def test_mistakes(file: Callable[[str], str], text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_nodes(file(text))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("vc,node num\na,4\nb,2\n", [("a", 4, 8), ("b", 2, 8)]),
        ("vc,node num,gpus\na,4,2\nb,2,\n", [("a", 4, 2), ("b", 2, 8)]),
        ("pool,nodes,gpus per node\na,4,4\n", [("a", 4, 4)]),
        ("vc,nodes\na,4x2\nb,3\n", [("a", 4, 2), ("b", 3, 8)]),
    ],
)
def test_pools(file: Callable[[str], str], text: str, pools: list[tuple[str, int, int]]) -> None:
    assert read_pools(file(text)) == pools


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vc,size\na,1\n", "nodes.csv, line 1: a table of pools has the columns vc,node num[,gpus]"),
        ("vc,nodes\na,4xx\n", "nodes.csv, line 2: nodes takes a number of nodes, or 4x8"),
        ("vc,nodes\na,0\n", "nodes.csv, line 2: a pool has 1 to 1,000,000 GPUs, not 0 x 8"),
        ("vc,nodes\na,1\na,1\n", "nodes.csv, line 3: pool 'a' is already on line 2"),
        ("vc,nodes\n,1\n", "nodes.csv, line 2: vc is missing"),
        ("vc,nodes\n", "nodes.csv holds no pools"),
    ],
)
def test_pool_mistakes(file: Callable[[str], str], text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_pools(file(text))
    assert str(caught.value).startswith(said)


def test_real_lists(traces: Path) -> None:
    openb = read_nodes(traces / "openb" / "openb_node_list_gpu_node.csv")
    assert (len(openb), sum(openb.gpus)) == (1213, 6212)
    philly = read_nodes(traces / "philly" / "revised_machine_list.csv")
    assert (len(philly), sum(philly.gpus), philly.without_gpus) == (539, 3205, 13)
    assert read_nodes(traces / "tiresias" / "n32g4.csv").gpus == (4,) * 32
    assert read_nodes(traces / "tiresias" / "cluster_spec.csv").gpus == (4,) * 16
    pools = read_pools(traces / "philly" / "philly_vc.csv")
    assert (len(pools), pools[9]) == (11, ("103959", 8, 8))
