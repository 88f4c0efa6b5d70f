#!/usr/bin/env bash
# Train Qwen2.5 with verl and an estimator of refbase:
#
#   ESTIMATOR=shrinkage TASK=gsm8k MACHINE=gpu1 examples/gpu/run.sh [hydra overrides ...]
#
# ESTIMATOR  shrinkage, shrinkage_js, bvblend, bvblend_eb, shrinkage_history, gvpo, refbase_rloo,
#            group_mean, refbase_grpo, batch_mean, refbase_opo
# TASK       gsm8k, math (GSM8K and MATH)             MACHINE  gpu1, gpu8, nodes (see nodes.sh)
# BACKEND    fsdp2, megatron                          DATA     directory of prepare_data.py's files (data)
# DRY_RUN=1  print the command only
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
estimator=${ESTIMATOR:-shrinkage}
backend=${BACKEND:-fsdp2}
case $estimator in
    bvblend | bvblend_eb | shrinkage_history) method=bvblend ;;
    gvpo) method=gvpo ;;
    *) method=baseline ;;
esac

arguments=(
    --config-dir "$here" --config-name refbase_gpu
    "task=${TASK:-gsm8k}" "machine=${MACHINE:-gpu1}" "method=$method" "backend=$backend"
    "algorithm.adv_estimator=$estimator"
)
if [[ $backend == megatron ]]; then
    arguments+=(model_engine=megatron)
fi
command=("${PYTHON:-python3}" -m verl.trainer.main_ppo "${arguments[@]}" "$@")

if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "${command[@]}"
    echo
    exit
fi
"${PYTHON:-python3}" -m verl_ext.doctor "${arguments[@]}" "$@"
exec "${command[@]}"
