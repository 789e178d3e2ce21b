"""`gpuyard simulate --inflate`: fill a cluster with the jobs of a trace, and tell how full it gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.cli import output

if TYPE_CHECKING:
    from gpuyard.core.model import Cluster
    from gpuyard.sim.trace import Trace


def fill(
    jobs: Trace, cluster: Cluster, policy: str, placement: str, factor: float, seed: int, json: bool, out: Path | None
) -> None:
    """Run the experiment under a policy's placement; nothing else of the policy matters to it."""
    from gpuyard.policyfile import make_planner
    from gpuyard.sim.inflate import inflate

    chosen = make_planner(policy, placement=placement, lenient=True).placement
    with output.progress_bar("filling", [chosen]) as bars:
        facts = inflate(jobs, cluster, chosen, factor, seed, bars.get(chosen))
    facts = {"trace": jobs.source, "dropped": sum(jobs.dropped.values()), **facts}
    if out is not None:
        from gpuyard.sim.filling import write_filling

        write_filling(facts, out)
        output.say(f"wrote {out}/: curve.csv, metrics.json and a plot")
    if json:
        output.print_json({name: value for name, value in facts.items() if name != "curve"})
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    lines = [
        f"filling {output.many(facts['gpus'], 'simulated GPU')} on {output.many(facts['nodes'], 'node')}, "
        f"placement {facts['placement']}, seed {facts['seed']}",
        f"arrived        {output.many(facts['arrived'], 'job')} that want {facts['demand']:.1f} % of the GPUs",
        f"placed         {facts['placed']:,}, and {facts['failed']:,} found no room",
        f"allocation     {facts['allocation']:.2f} % of the GPUs",
        f"fragmentation  {facts['fragmentation']:.2f} % of the GPUs: free, and of no use to the usual jobs",
    ]
    for name, title in (("cpu_allocation", "CPUs"), ("memory_allocation", "host memory")):
        if facts[name] is not None:
            lines.append(f"{title:<15}{facts[name]:.2f} % allocated")
    print("\n".join(lines))
