#!/usr/bin/env bash
# Trains ripple, the model this package carries: about 19.3 M parameters, LLaDA architecture.
#
#   runs/train_ripple.sh [OUT]                 three runs of two phases, 41 minutes in all
#
# Hardware: one CUDA GPU, written for an H200 (on a smaller one, lower --tokens-per-step), and several
#           CPU cores, which make the data while the GPU trains. Nothing is downloaded.
# Output:   OUT/tokenizer, OUT/{first,second,third}/{state.pt,log.jsonl,model}, and OUT/model: the checkpoint
#           (config.json, tokenizer, model.safetensors of 19.5 MB, matrices stored in int8).
#
# A phase that is done is passed over, and one that was interrupted goes on from its last saved state: call it again.
# ONLY="second stable" does one phase alone, where one command may not run as long as all take.
# TEXT=english adds WikiText-2 (found through WAVEFRONT_DATA) to tokenizer and training, as in the weights
# carried here; TEXT=file, a file. SCALE=0.1 takes a tenth of the minutes, for a trial.
# FRONT_SHARE=0 trains with independent masks only, for a model that decides between schedules: use another OUT.
# Further options of `python -m wavefront.train run` go into OPTIONS, such as OPTIONS="--device cpu".
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/ripple}
python=${PYTHON:-python3}
read -ra options <<<"${OPTIONS:-}"
text=()
if [ -n "${TEXT:-}" ]; then text=(--text "$TEXT"); fi

if [ ! -f "$out/tokenizer/tokenizer.json" ]; then
  "$python" -m wavefront.train tokenizer --out "$out/tokenizer" "${text[@]}"
fi
if [ -n "${TEXT:-}" ]; then text+=(--text-share 0.05); fi

# RUN PHASE MINUTES FROM [OPTION ...]; FROM: the run whose weights it begins with, or -. Without decay first (stable): the weights stay good to go on from. Then the
# decay, which takes the loss down.
phase() {
  local run=$1 name=$2 minutes=$3 start=()
  if [ -f "$out/$run/state.pt" ]; then start=(--resume); elif [ "$4" != - ]; then start=(--init "$out/$4/model"); fi
  shift 4
  if [ -n "${ONLY:-}" ] && [ "$ONLY" != "$run $name" ]; then return; fi
  if [ -f "$out/$run/$name.done" ]; then return; fi
  minutes=$("$python" -c "print($minutes * ${SCALE:-1})")
  "$python" -m wavefront.train run --out "$out/$run" --tokenizer "$out/tokenizer" "${start[@]}" \
    --minutes "$minutes" --optimizer muon "$@" "${text[@]}" "${options[@]}"
  touch "$out/$run/$name.done"
}
fronts=(--front-share "${FRONT_SHARE:-0.3}") # rows masked as a decoder from the left leaves them
phase first stable 10 - --seed 0 --decay-fraction 0
phase first decay 6.5 - --seed 0 --decay-fraction 0.9
phase second stable 8.5 first --seed 1 --decay-fraction 0 "${fronts[@]}"
phase second decay 6.5 first --seed 1 --decay-fraction 0.9 "${fronts[@]}"
phase third stable 4.5 second --seed 2 --decay-fraction 0 "${fronts[@]}"
phase third decay 4 second --seed 2 --decay-fraction 0.92 "${fronts[@]}"
if [ -f "$out/third/decay.done" ]; then
  "$python" -m wavefront.train export --run "$out/third" --tokenizer "$out/tokenizer" --out "$out/model" --storage int8
fi
