#!/usr/bin/env bash
# From nothing to a trained policy: tasks, demonstrations, random weights, then the recipe. Everything lies in one
# directory; a step that is done is not done again, so a stopped run goes on when it is started again.
#
#   [OUT=runs/small] [SEED=0] scripts/train.sh [RECIPE [options of `termloom train` that name no file]]
#
# A recipe whose policy is served by SGLang gets its servers started, started again when they die, and stopped at the end.
# A recipe of another model than the small one is handed to `termloom train` as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

recipe=${1:-recipes/small-cpu.toml} out=${OUT:-runs/small} seed=${SEED:-0}
shift $(($# > 0))

scripts/setup.sh train plots
termloom=.venv/bin/termloom
if [[ " $* " == *" --dry-run "* ]] || ! grep -q '^chat_format = "small"' "$recipe"; then exec "$termloom" train "$recipe" "$@"; fi
# Sampler, learner and sandboxes share the cores: a second thread in torch would mostly wait for a core, spinning.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
step() { echo "train: $*" >&2; }

# Trained on and measured: these, as many tasks of each. Never trained on: the other two.
known=(append copy count delete directory first move replace sort)
unknown=(join last)

generate() { # FOLDER TASKS_OF_EACH SEED FAMILIES...
  local folder=$out/tasks/$1 each=$2 seed=$3 resume=()
  shift 3
  [[ -e $folder/manifest.json ]] && return
  rmdir "$folder" 2>/dev/null || true # empty: left by a start that was stopped before its run began
  [[ -e $folder ]] && resume=(--resume)
  printf '[[quotas]]\nfamily = "basics-%s"\ncount = '"$each"'\n\n' "$@" >"$folder.quotas.toml"
  TERMLOOM_GENERATE__CERTIFICATE_REPEATS=1 TERMLOOM_GENERATE__ATTEMPTS_LEAST=1 "$termloom" generate --style terse --level 1 \
    --attempts 1 --quotas "$folder.quotas.toml" --count $((each * $#)) --seed "$seed" --out "$folder" "${resume[@]}"
}

mkdir -p "$out/tasks"
step "54 tasks to train on, 45 held out, 16 of families that are never trained on"
generate train 6 "$((seed * 10 + 1))" "${known[@]}"
generate held-out 5 "$((seed * 10 + 2))" "${known[@]}"
generate unknown 8 "$((seed * 10 + 3))" "${unknown[@]}"

if [[ ! -e $out/start ]]; then
  step "demonstrations by someone who slips four times out of five"
  "$termloom" demonstrate --count 16000 --slips 0.8 --seed "$((seed * 10 + 4))" --out "$out/demonstrations.jsonl" \
    --without "$out/tasks/held-out" "${known[@]/#/--family=basics-}"
  "$termloom" new-policy --seed "$seed" --demonstrations "$out/demonstrations.jsonl" --out "$out/start"
fi

# The run of another recipe lies beside that of the usual one, and starts from the fine-tuning that it did.
tag=$(basename "$recipe" .toml) && tag=${tag#small-cpu} run=$out/run$tag model=$out/start
sed "s/^seed = .*/seed = $seed/" "$recipe" >"$out/recipe$tag.toml"
if [[ -n $tag && -d $out/run/sft && ! -d $run/sft ]]; then
  model=$out/run/sft
  sed -i '/^\[sft\]/,/^$/d' "$out/recipe$tag.toml"
fi

urls=() servers=()
if grep -q '^engine = "sglang"' "$recipe"; then
  step "SGLang on the CPU"
  scripts/sglang-cpu.sh setup
  trap 'kill "${servers[@]}" 2>/dev/null; wait' EXIT
  for _ in $(seq "$(sed -n 's/^engines = //p' "$recipe")"); do
    port=$(.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    scripts/sglang-cpu.sh keep "$model" "$port" --skip-tokenizer-init >>"$out/sglang$tag.log" 2>&1 &
    servers+=($!) urls+=(--engine-url "http://127.0.0.1:$port")
    scripts/sglang-cpu.sh await "$port" $! || { tail -n 20 "$out/sglang$tag.log" >&2; exit 1; }
  done
fi

step "the recipe"
resume=() && [[ -e $run/recipe.json ]] && resume=(--resume)
"$termloom" train "$out/recipe$tag.toml" --model "$model" --tasks "$out/tasks/train" --held-out "$out/tasks/held-out" \
  --demonstrations "$out/demonstrations.jsonl" --out "$run" "${urls[@]}" "${resume[@]}" "$@"

step "families that were never trained on"
sed 's/^engine = .*/engine = "torch"/' "$out/recipe$tag.toml" >"$out/measure$tag.toml" # in this process: there is little to measure
"$termloom" evaluate "$out/tasks/unknown" --recipe "$out/measure$tag.toml" --policy "$run/policy" --attempts 4 --out "$out/unknown$tag"
