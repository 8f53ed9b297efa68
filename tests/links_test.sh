#!/usr/bin/env bash
# Links, rights and strange files in a model's folder: what a result may be made of, and who may read it.
#
#   tests/links_test.sh ROOT NIBBLE
#
# A link that leads out of the folder is refused by name by every command that would copy it. The hub's cache, in which
# every file is a link into ../../blobs, works. A result never has more rights than its sources. The last line is
# `N passed, M failed`.
set -euo pipefail
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
[ $# -eq 2 ] || { echo "usage: tests/links_test.sh ROOT NIBBLE" >&2; exit 2; }
root=$1 nibble=$2
passed=0 failed=0
work=$(mktemp -d)
trap 'chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
cd "$work"
umask 022

ok() { # TITLE COMMAND...
    local title=$1
    shift
    if timeout 60 "$@" >said 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $title"; tail -3 said; fi
}

# refused TITLE TEXT COMMAND...: ends with 1, names TEXT, leaves no result and nothing half written.
refused() {
    local title=$1 text=$2 code=0
    shift 2
    timeout 20 "$@" </dev/null >said 2>&1 || code=$?
    if [ "$code" = 1 ] && grep -qF -- "$text" said && [ ! -e out ] && [ ! -e out.gguf ] && ! ls -d ./*.partial* >/dev/null 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)); echo "FAIL $title: status $code"; tail -3 said
    fi
    rm -rf out out.gguf
}

fresh() { # NAME: the small model, readable for all
    rm -rf "$1"
    cp -r "$root/models/nibble-tiny" "$1"
    chmod -R u+w,go+r "$1"
}

echo '{"messages": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}]}' >rows.jsonl
cat >run.yml <<'END'
base_model: m
adapter: lora
lora_r: 4
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: chat_template
sequence_len: 128
max_steps: 1
learning_rate: 1e-3
output_dir: trained
END
train=("$nibble" train run.yml --quiet --set report=false --samples 0)
whole=(--set adapter=null --set lora_r=null --set lora_target_linear=null)
fresh m
"${train[@]}"
mv trained adapter
"$nibble" quantize m packed --format nf4 --quiet

echo secret >secret
echo '{"auths": {"registry": "secret"}}' >secret.json
chmod 600 secret secret.json

# ---- links that lead out ----

for command in "quantize m out --format nf4" "merge m adapter out"; do
    for link in notes.txt LICENSE tokenizer.model vocab.json; do
        fresh m
        ln -s ../secret "m/$link"
        # shellcheck disable=SC2086
        refused "$command with $link -> ../secret" "m/$link: a link that leads out" "$nibble" $command
    done
    fresh m
    ln -s "$work/secret" m/notes.txt
    # shellcheck disable=SC2086
    refused "$command with an absolute link" "m/notes.txt: a link that leads out" "$nibble" $command
    fresh m
    ln -s loop m/loop
    # shellcheck disable=SC2086
    refused "$command with a loop" "m/loop: " "$nibble" $command
done
cp -r packed m2
ln -s ../secret m2/notes.txt
refused "dequantize with a link" "m2/notes.txt: a link that leads out" "$nibble" dequantize m2 out

for command in "quantize m out --format nf4" "merge m adapter out" "export m out.gguf --type f16"; do
    for name in config.json tokenizer.json tokenizer_config.json generation_config.json special_tokens_map.json \
        added_tokens.json chat_template.jinja; do
        fresh m
        target=secret.json
        case $name in config.json | tokenizer.json) cp "m/$name" secret-$name; target=secret-$name ;; esac
        rm -f "m/$name"
        ln -s "../$target" "m/$name"
        # shellcheck disable=SC2086
        refused "$command with $name" "m/$name: a link that leads out" "$nibble" $command
    done
    fresh m
    mkdir m/additional_chat_templates
    ln -s ../../secret m/additional_chat_templates/tool.jinja
    # shellcheck disable=SC2086
    refused "$command with a template" "m/additional_chat_templates/tool.jinja: a link" "$nibble" $command
    fresh m
    mkdir -p templates
    echo secret >templates/tool.jinja
    ln -s ../templates m/additional_chat_templates
    # shellcheck disable=SC2086
    refused "$command with a folder of templates" "m/additional_chat_templates/tool.jinja: a link" "$nibble" $command
done

fresh m
cp -r adapter other
rm -f other/chat_template.jinja
ln -s ../secret other/chat_template.jinja
refused "merge with a link in the adapter" "other/chat_template.jinja: a link" "$nibble" merge m other out
refused "export with a link in the adapter" "other/chat_template.jinja: a link" "$nibble" export m out.gguf --type f16 --adapter other
rm m/generation_config.json
ln -s ../secret.json m/generation_config.json
refused "train with a link" "m/generation_config.json: a link" "$nibble" train run.yml
fresh m
ln -s ../secret m/notes.txt
refused "train of all weights with a link" "m/notes.txt: a link" "${train[@]}" "${whole[@]}"
ok "train of an adapter copies no such file" "${train[@]}"

# ---- links that stay ----

fresh m
mv m/MODEL.md m/README
ln -s README m/MODEL.md
ok "a link within the folder" "$nibble" quantize m out --format nf4
ok "it is copied as a file" test -f out/MODEL.md -a ! -L out/MODEL.md
rm -rf out
fresh m
ln -s m linked
ok "a folder that is a link itself" "$nibble" quantize linked out --format nf4
rm -rf out
fresh m
mv m/model.safetensors weights.safetensors
ln -s ../weights.safetensors m/model.safetensors
ok "weights may lie anywhere" "$nibble" quantize m out --format nf4
rm -rf out

# The hub's cache: every file is a link.
cached() { # REPO: the small model as the hub keeps it; sets `snapshot`
    local name n=0
    fresh m
    mkdir -p m/additional_chat_templates
    echo '{{ messages[0].content }}' >m/additional_chat_templates/tool.jinja
    rm -rf "$1"
    snapshot=$1/snapshots/0123abcd
    mkdir -p "$1/blobs" "$snapshot/additional_chat_templates"
    while read -r name; do
        n=$((n + 1))
        cp "m/$name" "$1/blobs/hash$n"
        case $name in */*) ln -s "../../../blobs/hash$n" "$snapshot/$name" ;; *) ln -s "../../blobs/hash$n" "$snapshot/$name" ;; esac
    done < <(cd m && find . -type f -printf '%P\n')
}
cached models--a--b
for command in "quantize $snapshot out --format nf4" "merge $snapshot adapter out" "export $snapshot out.gguf --type f16" \
    "generate $snapshot --prompt one --max-tokens 1" "plan $snapshot" "inspect $snapshot" "tokenize $snapshot --text one"; do
    # shellcheck disable=SC2086
    ok "the hub's cache: $command" "$nibble" $command
    [ ! -d out ] || ok "the result has files: $command" test -f out/MODEL.md -a ! -L out/MODEL.md
    case $command in quantize*) ok "the result has templates" test -f out/additional_chat_templates/tool.jinja ;; esac
    rm -rf out out.gguf
done
ok "the hub's cache: train" "${train[@]}" --set "base_model=$snapshot"
ok "the hub's cache: train of all weights" "${train[@]}" --set "base_model=$snapshot" "${whole[@]}"
# What looks like the cache and leads out of it.
ln -s ../../../secret "$snapshot/notes.txt"
refused "a link out of the cache" "notes.txt: a link" "$nibble" quantize "$snapshot" out --format nf4
rm "$snapshot/notes.txt"
ln -s ../../secret models--a--b/blobs/more
ln -s ../../blobs/more "$snapshot/notes.txt"
refused "a blob that is a link itself" "notes.txt: a link" "$nibble" quantize "$snapshot" out --format nf4
rm "$snapshot/notes.txt"
mkdir models--a--b/blobs/folder models--a--b/refs
cp secret models--a--b/blobs/folder/file
cp secret models--a--b/refs/main
for target in ../../blobs/folder/file ../../refs/main; do
    ln -s $target "$snapshot/notes.txt"
    refused "a link to $target" "notes.txt: a link" "$nibble" quantize "$snapshot" out --format nf4
    rm "$snapshot/notes.txt"
done

# ---- what is no file ----

for name in notes.txt tokenizer.json config.json chat_template.jinja model.safetensors generation_config.json; do
    fresh m
    rm -f "m/$name"
    mkfifo "m/$name"
    refused "quantize with a pipe for $name" "$name: not a regular file" "$nibble" quantize m out --format nf4
    [ $name = notes.txt ] || refused "export with a pipe for $name" "$name: not a regular file" "$nibble" export m out.gguf --type f16
    fresh m
    rm -f "m/$name"
    ln -s /dev/zero "m/$name"
    refused "quantize with a device for $name" "$name: not a regular file" "$nibble" quantize m out --format nf4
    [ $name != notes.txt ] || continue
    fresh m
    rm -f "m/$name"
    mkdir "m/$name"
    refused "quantize with a folder for $name" "$name: not a regular file" "$nibble" quantize m out --format nf4
    refused "generate with a folder for $name" "$name" "$nibble" generate m --chat one --max-tokens 1
done

# ---- rights ----

rights() { # TITLE PATH WANTED
    local has
    has=$(stat -c %a "$2")
    ok "$1: $2 has $has, not $3" test "$has" = "$3"
}
fresh m
chmod 600 m/MODEL.md m/tokenizer.json
chmod 640 m/model.safetensors
chmod 604 m/config.json
chmod 750 m
for command in "quantize m out --format nf4" "merge m adapter out"; do
    # shellcheck disable=SC2086
    ok "$command" "$nibble" $command
    rights "$command" out 750
    rights "$command" out/MODEL.md 600
    rights "$command" out/model.safetensors 640
    rights "$command" out/config.json 604
    case $command in quantize*) rights "$command" out/tokenizer.json 600 ;; esac
    rights "$command" out/chat_template.jinja 644
    rm -rf out
done
chmod 600 adapter/adapter_model.safetensors
ok "merge with a private adapter" "$nibble" merge m adapter out
rights "merge with a private adapter" out/model.safetensors 600
rm -rf out
ok "export" "$nibble" export m out.gguf --type f16 --ollama
rights export out.gguf 600
rights export Modelfile 600
rm -rf out.gguf Modelfile
rm -rf trained
ok train "${train[@]}"
rights train trained/tokenizer.json 600
rights train trained/chat_template.jinja 644
fresh m
chmod 444 m/*
ok "a read-only model" "$nibble" quantize m out --format nf4
rights "a read-only model" out/model.safetensors 644

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
