"""What a job is called if nobody says."""

from __future__ import annotations

import shlex

import pytest

from gpuyard.spec.notation import LONGEST_NAME, default_name, is_default_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python3 train.py --lr 3", "train.py"),
        ("/opt/python3.11 -u -W ignore /a/b/train.py", "train.py"),
        ("python -m pkg.train --x", "pkg.train"),
        ("python -m torch.distributed.run --nproc_per_node 4 tools/train.py cfg.py", "train.py"),
        ("python -c 'import x'", "python -c"),
        ("env A=1 nice -n 10 python3 -u train.py", "train.py"),
        ("torchrun --nproc-per-node 2 -m pkg.train", "pkg.train"),
        ("poetry run python -u train.py", "train.py"),
        ("numactl --cpunodebind=0 mpirun -np 4 ./solve", "solve"),
        ("accelerate launch --config_file a.yaml train.py", "train.py"),
        ("conda run -n lab python eval.py", "eval.py"),
        ("timeout 5m ./go --x", "go"),
        ("sh -c 'cat x | sort'", "cat"),
        ("bash -lc 'source ~/x; cd y && A=1 python -m a.b > log 2>&1 | tee z'", "a.b"),
        ("sh -c '# why\nfor i in 1 2; do python x.py; done'", "x.py"),
        ('sh -c "echo it\'s"', "echo"),
        ("sh -c ''", "sh"),
        ("sh -c 'sleep 1; exit 3'", "sleep"),
        ("sh -c 'while [ ! -e go ]; do sleep 1; done'", "sleep"),
        ("sh -c 'exit 3'", "sh"),
        ("sh -c 'while ! python a.py; do sleep 9; done'", "a.py"),
        ("sh -c 'if [ -f x ]; then ./go; fi'", "go"),
        ("sh -c 'nvidia-smi; while read -r x; do python b.py $x; done'", "b.py"),
        ("nsys profile -t cuda -o report ./solve", "solve"),
        ("sudo -u ann python train.py", "train.py"),
        ("env -u A ./go", "go"),
        ("python -m cProfile -o report train.py", "train.py"),
        ("ipython train.py", "train.py"),
        ("bash run.sh", "run.sh"),
        ("Rscript --vanilla fit.R", "fit.R"),
        ("/usr/bin/sleep 5", "sleep"),
    ],
)
def test_a_job_is_called_by_its_script_module_or_program(command: str, name: str) -> None:
    words = shlex.split(command)
    assert default_name(words) == name
    assert is_default_name(name, words)


def test_names_of_former_versions_count_as_given_by_nobody() -> None:
    assert is_default_name("python3", ["python3", "train.py"])
    assert not is_default_name("mine", ["python3", "train.py"])
    assert not is_default_name("lease", [])


def test_a_name_is_short_and_text() -> None:
    assert len(default_name(["x" * 5000])) == LONGEST_NAME
    assert default_name(["./gr\udcfcn"]) == "gr\ufffdn"
