#!/usr/bin/env bash
# The same on several nodes. Run it on each of them, with verl and refbase installed and the same paths:
#
#   srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 examples/gpu/nodes.sh [hydra overrides ...]
#
# Without Slurm set NODE_RANK (0 is the head), NNODES and HEAD_ADDRESS yourself. Other variables are run.sh's.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rank=${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK}}
export NNODES=${NNODES:-${SLURM_JOB_NUM_NODES:?set NNODES}}
head=${HEAD_ADDRESS:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
port=${RAY_PORT:-6379}

if [[ $rank != 0 ]]; then
    for _ in {1..60}; do # until the head listens; the worker ends with the head
        ray start --address="$head:$port" --block && exit
        sleep 5
    done
    exit 1
fi

trap 'ray stop' EXIT
ray start --head --port="$port" --disable-usage-stats
for _ in {1..120}; do
    alive=$("${PYTHON:-python3}" -c '
import ray
ray.init(address="auto", log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))' 2>/dev/null | tail -n 1)
    [[ $alive == "$NNODES" ]] && break
    sleep 5
done
if [[ ${alive:-0} != "$NNODES" ]]; then
    echo "$alive of $NNODES nodes have joined" >&2
    exit 1
fi
RAY_ADDRESS=auto MACHINE=nodes "$here/run.sh" "$@"
