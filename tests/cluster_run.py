"""Runs the small dataset of `run_support` on a cluster, in a process of its own: what Ray leaves in a process stays out of the tests'.

`cluster_run.py hold CPUS` starts a cluster, prints its address and holds it until its input ends.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from run_support import make_request

from roiline.infer.cluster import choose_cluster_slots
from roiline.infer.cluster_transport import ActorStarter
from roiline.infer.request import MODEL_PREDICTOR
from roiline.infer.run import run_dataset


def hold_cluster(cpus: int) -> None:
    import ray

    ray.init(address="local", num_cpus=cpus, include_dashboard=False)
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--predictor", default=MODEL_PREDICTOR)
    parser.add_argument("--streamed", action="store_true", help="no machine is to see the run's folder")
    options = parser.parse_args()
    if options.streamed:
        ActorStarter.__enter__ = lambda self: self  # without its sign
    slots = choose_cluster_slots(options.address, None, options.workers)
    request = make_request(options.root, options.out, cluster=options.address, slots=slots, predictor=options.predictor)
    return run_dataset(request, progress=False).exit_code


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold_cluster(int(sys.argv[2]))
    else:
        sys.exit(main())
