"""A comment: a field of a job that every way of asking for one has, because it is in the table of fields."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.yard import Yard, until

from gpuyard.client.transport import Refused
from gpuyard.page.views.job_actions import changes, current_text
from gpuyard.page.views.job_form import Moment, clone_line, command_line, form_of, parse_form
from gpuyard.spec.fields import FIELD

NOTE = "second try, with warm-up: 10 %"
LONG = "x" * 1001


def test_a_comment_is_kept_and_shown(yard: Yard) -> None:
    plain, noted = yard.submit("--", "true"), yard.submit("--comment", NOTE, "--", "true")
    assert (yard.client.job(plain)["comment"], yard.client.job(noted)["comment"]) == (None, NOTE)
    assert yard.json("show", noted)["comment"] == NOTE
    shown = [line.split(":", 1) for line in yard("show", noted).out.splitlines() if ":" in line]
    assert ("Comment", NOTE) in {(label, text.strip()) for label, text in shown}
    assert "Comment" not in yard("show", plain).out
    assert yard.client.job(yard("clone", noted).out.strip())["comment"] == NOTE


def test_every_way_of_asking_for_a_job_takes_a_comment(yard: Yard) -> None:
    by_client = yard.client.submit(["true"], comment=NOTE)
    (yard.cwd / "jobs.yaml").write_text(f"- command: 'true'\n  comment: '{NOTE}'\n")
    (yard.cwd / "jobs.toml").write_text(f'[[jobs]]\ncommand = "true"\ncomment = "{NOTE}"\n')
    by_file = [yard("submit", "--file", name).out.strip() for name in ("jobs.yaml", "jobs.toml")]
    script = yard.cwd / "job.sh"
    script.write_text(f"#!/bin/sh\n#GPUYARD --comment '{NOTE}'\n#SBATCH --comment=a-tag\ntrue\n")
    by_script = yard("submit", "job.sh").out.strip()
    for id in (by_client, *by_file, by_script):
        assert yard.client.job(id)["comment"] == NOTE
    assert yard.client.job(by_script)["tags"] == ["a-tag"]  # what Slurm calls a comment is a tag, as before


def test_a_comment_can_change_while_a_job_waits_and_while_it_runs(yard: Yard, tmp_path: Path) -> None:
    held, running = yard.submit("--hold", "--", "true"), yard.submit("--", "sleep", "1000")
    until(lambda: yard.client.job(running)["started_at"])
    for id in (held, running):
        done = yard("edit", id, "--comment", NOTE)
        assert (done.code, done.err) == (0, f"job {id}: changed comment\n")
        assert yard.client.edit(id, comment="other")["comment"] == "other"
        assert yard("edit", id, "--comment", "none").code == 0
        assert yard.client.job(id)["comment"] is None
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import re, sys\npath = sys.argv[1]\ntext = open(path).read()\n"
        "open(path, 'w').write(re.sub('(?m)^comment: .*$', 'comment: by hand', text))\n"
    )
    assert yard("edit", held, more={"EDITOR": f"{sys.executable} {editor}"}).code == 0
    assert yard.client.job(held)["comment"] == "by hand"


def test_a_comment_that_is_too_long_is_refused_everywhere(yard: Yard) -> None:
    id = yard.submit("--hold", "--", "true")
    with pytest.raises(Refused, match="at most 1,000"):
        yard.client.submit(["true"], comment=LONG)
    for words in (("submit", "--comment", LONG, "--", "true"), ("edit", id, "--comment", LONG)):
        done = yard(*words)
        assert done.code == 2
        assert "at most 1,000" in done.err
    assert "1000 characters at most" in parse_form({"command": "x", "comment": LONG}, Moment(0.0)).errors["comment"]
    assert yard.client.job(yard.submit("--comment", LONG[1:], "--", "true"))["comment"] == LONG[1:]


def test_the_page_has_a_comment(yard: Yard) -> None:
    moment = Moment(0.0)
    form = {"command": "true", "comment": NOTE}
    assert parse_form(form, moment).body["comment"] == NOTE
    assert f"--comment '{NOTE}' -- true" in command_line(form, moment)
    job = dict(yard.client.job(yard.submit("--hold", "--comment", NOTE, "--", "true")))
    former = form_of(job)
    assert former["comment"] == NOTE
    assert clone_line("7", former | {"comment": ""}, former, moment) == "gpuyard clone 7 --comment none"
    assert current_text(FIELD["comment"], job) == NOTE
    assert changes(job, {"comment": "x"}, str) == {"comment": "x"}
    assert changes(job, {"comment": ""}, str) == {"comment": None}
