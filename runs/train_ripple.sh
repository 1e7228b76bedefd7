#!/usr/bin/env bash
# Trains ripple, the model this package carries: about 19.3 M parameters, LLaDA architecture.
#
#   runs/train_ripple.sh [MINUTES] [OUT]        MINUTES: of each of the two phases, 9 unless told
#
# Hardware: one CUDA GPU, written for an H200 (on a smaller one, lower --tokens-per-step), and several
#           CPU cores, which make the data while the GPU trains. Nothing is downloaded.
# Cost:     two phases of MINUTES each, compilation included; besides, the tokenizer (seconds) and the
#           held-out loss after each phase. A phase that was interrupted goes on from its last saved state.
# Output:   OUT/tokenizer, OUT/run/{state.pt,log.jsonl}, and OUT/run/model: the checkpoint
#           (config.json, tokenizer, model.safetensors of 38.6 MB in fp16).
#
# PHASE=stable or PHASE=decay does one phase alone, where one command may not run as long as both take.
# TEXT=english adds WikiText-2 (found through WAVEFRONT_DATA) to tokenizer and training; TEXT=file, a file.
# Further options of `python -m wavefront.train run` go into OPTIONS, such as OPTIONS="--seed 1"; to go on
# from a checkpoint with a re-warmed learning rate: OPTIONS="--init DIR --no-resume" PHASE=stable, then PHASE=decay.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-9}
out=${2:-build/ripple}
phase=${PHASE:-all}
python=${PYTHON:-python3}
read -ra options <<<"${OPTIONS:-}"
text=()
if [ -n "${TEXT:-}" ]; then text=(--text "$TEXT"); fi

if [ ! -f "$out/tokenizer/tokenizer.json" ]; then
  "$python" -m wavefront.train tokenizer --out "$out/tokenizer" "${text[@]}"
fi
if [ -n "${TEXT:-}" ]; then text+=(--text-share 0.05); fi

train() {
  "$python" -m wavefront.train run --out "$out/run" --tokenizer "$out/tokenizer" --resume \
    --minutes "$minutes" --optimizer muon --front-share 0.3 "$@" "${text[@]}" "${options[@]}"
}
# Without decay first: the weights stay good to go on from. Then the decay, which takes them down.
if [ "$phase" != decay ]; then train --decay-fraction 0; fi
if [ "$phase" != stable ]; then train --decay-fraction 0.7; fi
