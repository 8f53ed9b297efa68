#!/usr/bin/env bash
# cli_test.sh - the command line from outside: usage, help, completions, man page, JSON, exit status,
# signals, full disks, and the way from a checkpoint to a quantised one and back.
#
#     bash tests/cli_test.sh NIBBLE MAKE_CHECKPOINT [JSON_GET]
#
# JSON_GET lies beside MAKE_CHECKPOINT unless told otherwise.
#
# One line per check; the last line counts them. A check is a function that returns 0 when all is well
# and otherwise says what is not.
set -u
export CUDA_VISIBLE_DEVICES= # what is judged here is the CPU, also where there is a device
export LC_ALL=C TERM=xterm
unset NO_COLOR NIBBLE_ISA

if [[ $# -lt 2 || $# -gt 3 ]]; then
    echo "usage: cli_test.sh NIBBLE MAKE_CHECKPOINT [JSON_GET]" >&2
    exit 2
fi
nibble=$(realpath "$1") make_checkpoint=$(realpath "$2") json_get=$(realpath "${3:-$(dirname "$2")/json_get}")
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-cli-test.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2

passed=0 failed=0

# check SENTENCE FUNCTION [ARGUMENT...]
check() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: ${said//$'\n'/ | }"
    fi
}

skip() { echo "skip  $1: $2"; }

# ---- what checks are made of ----

# Runs nibble; its streams are in the files out and err. Succeeds when the exit status is the wanted one.
exits() {
    local wanted=$1 got
    shift
    "$nibble" "$@" >out 2>err
    got=$?
    [[ $got -eq $wanted ]] && return 0
    echo "nibble $*: exit $got instead of $wanted, said: $(head -c 400 err)"
    return 1
}

# The error on standard error: one line with the right opening, and at most a hint.
one_error() {
    local opening=$1 lines
    lines=$(wc -l <err)
    [[ $(head -n 1 err) == "$opening"* ]] || { echo "does not open with '$opening': $(cat err)"; return 1; }
    [[ $lines -le 2 ]] || { echo "$lines lines of error: $(cat err)"; return 1; }
    [[ $lines -eq 1 || $(tail -n 1 err) == "hint: "* ]] || { echo "the second line is no hint: $(cat err)"; return 1; }
}

says() { # FILE TEXT...: every text is in the file
    local file=$1 text
    shift
    for text; do
        grep -qF -- "$text" "$file" || { echo "$file does not say '$text': $(head -c 600 "$file")"; return 1; }
    done
}

silent() { # FILE: it is empty
    [[ ! -s $1 ]] || { echo "$1 is not empty: $(head -c 300 "$1")"; return 1; }
}

json_is() { # PATH VALUE, of the document on standard output
    local got
    got=$("$json_get" out "$1") || { echo "no $1 in: $(head -c 300 out)"; return 1; }
    [[ $got == "$2" ]] || { echo "$1 is $got instead of $2"; return 1; }
}

one_document() { "$json_get" out || { echo "standard output is not one JSON document: $(head -c 300 out)"; return 1; }; }

absent() {
    local path
    for path; do
        [[ ! -e $path && ! -L $path ]] || { echo "$path was left"; return 1; }
    done
}

empty_folder() { [[ -z $(ls -A "$1") ]] || { echo "left in $1: $(ls -A "$1")"; return 1; }; }

# Wrong usage, with and without --json. The opening may name the command.
usage_error() {
    exits 2 "$@" && one_error "nibble: " && silent out &&
        exits 2 --json "$@" && one_error "nibble: " && one_document && json_is error.code NBL_ERROR_ARGUMENT &&
        "$json_get" out error.message >message && says err "$(cat message)"
}

usage_hint() { # HINT ARGUMENT...
    local hint=$1
    shift
    usage_error "$@" && says err "$hint"
}

# A failure, with and without --json; nothing may appear under the name "out-folder".
refused() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    exits 1 "$@" && one_error "nibble: $1: " && says err "$text" && silent out && absent out-folder &&
        exits 1 "$@" --json && one_error "nibble: $1: " && one_document && json_is error.code "$code" && absent out-folder
}

"$make_checkpoint" model --dtype bf16 --seed 1 || exit 2
"$make_checkpoint" sharded --dtype bf16 --seed 1 --shards 3 || exit 2
"$make_checkpoint" other --dtype bf16 --seed 2 || exit 2
"$make_checkpoint" broken-values --dtype f16 --nan || exit 2
"$make_checkpoint" many --layers 300 --hidden 8 --intermediate 8 --vocab 8 || exit 2
"$make_checkpoint" large --layers 4 --hidden 1024 --intermediate 2816 --vocab 1024 --shards 2 || exit 2

# ---- usage ----

check "no command is wrong usage" usage_error
check "an unknown command is wrong usage and gets a suggestion" usage_hint "did you mean 'nibble quantize'?" quantise model out-folder
check "a word like no command gets no suggestion" usage_hint "lists the commands" xyzzy
check "an unknown option is wrong usage and gets a suggestion" usage_hint "did you mean --block?" quantize model out-folder --format nf4 --blok 64
check "the beginning of an option is suggested in full" usage_hint "did you mean --compute-dtype?" quantize model out-folder --comp bf16
check "an unknown letter is wrong usage" usage_error inspect model -x
check "a command's option before its name is explained" usage_hint "after its name" --format nf4 quantize model out-folder
check "quantize without --format is wrong usage" usage_hint "--format" quantize model out-folder
check "quantize without a target is wrong usage" usage_hint "OUT" quantize model --format nf4
check "one argument too many is wrong usage" usage_hint "too many" inspect model other
check "an empty path is wrong usage" usage_error inspect ""
check "diff of one folder is wrong usage" usage_error diff model
for value in q5_k NF4 dense "" nf4x; do
    check "--format '$value' is wrong usage" usage_error quantize model out-folder --format "$value"
done
for value in 0 63 96 16 8192 -64 +64 64.0 0x40 big "" 99999999999999999999 " 64"; do
    check "--block '$value' is wrong usage" usage_error quantize model out-folder --format nf4 --block "$value"
done
for value in many 0 -1 5X 5GG 5GiBB "" . 1.2.3 1e9 inf 0.0001 "5 G" 99999999999T; do
    check "--shard-size '$value' is wrong usage" usage_error quantize model out-folder --format nf4 --shard-size "$value"
done
for value in x -1 nan inf 1e999 "" 0x1 "1 " --; do
    check "--tol '$value' is wrong usage" usage_error diff model model --tol "$value"
done
for value in zero 0 -1 1025 1.5 ""; do
    check "--threads '$value' is wrong usage" usage_error inspect model --threads "$value"
done
check "--compute-dtype f8 is wrong usage" usage_error quantize model out-folder --format nf4 --compute-dtype f8
check "--dtype int4 is wrong usage" usage_error dequantize model out-folder --dtype int4
check "--device tpu is wrong usage" usage_error inspect model --device tpu
check "--block for int8 is wrong usage" usage_hint "nf4 and fp4" quantize model out-folder --format int8 --block 64
check "--double for mxfp4 is wrong usage" usage_hint "nf4 and fp4" quantize model out-folder --format mxfp4 --double
check "a broken regular expression is wrong usage" usage_error quantize model out-folder --format nf4 --skip "(unclosed"
check "a forgotten value is not taken from the next option" usage_hint "--skip" quantize model out-folder --format nf4 --skip --double
check "an option without its value at the end is wrong usage" usage_hint "needs a value" quantize model out-folder --format
check "a flag with a value is wrong usage" usage_hint "takes no value" inspect model --tensors=yes
check "an unknown shell is wrong usage" usage_error completion tcsh
check "help for an unknown command gets a suggestion" usage_hint "did you mean 'nibble inspect'?" help inspct
check "NIBBLE_ISA that is no instruction set is refused" env NIBBLE_ISA=mmx bash -c "! '$nibble' inspect model 2>err && grep -q NIBBLE_ISA err"

control_characters() {
    exits 2 inspect model $'--x\e[31m\nnibble: forged\xff' && one_error "nibble: inspect: " && ! grep -q $'\e' err
}
check "control characters and broken bytes of arguments do not reach the terminal" control_characters

accepted_writings() {
    exits 0 --threads 1 inspect --json -- model && one_document &&
        exits 0 --json inspect model --threads=2 && one_document &&
        exits 0 inspect --quiet model --device cpu && silent err &&
        exits 0 diff model model --tol=0.5 && exits 0 diff model model --tol 1e-3 &&
        cp -r model ./--odd && exits 0 inspect -- --odd && rm -rf ./--odd
}
check "options may stand anywhere, with = or a blank, until --" accepted_writings

# ---- help, version ----

check_help() { # ARGUMENT...: exit 0, something said, nothing on standard error
    exits 0 "$@" && silent err && [[ $(wc -c <out) -gt 100 ]]
}
for command in inspect diff doctor quantize dequantize merge export plan logits grads generate chat eval data train completion help man; do
    check "$command --help helps" check_help "$command" --help
    check "help $command is the same" check_help help "$command"
done
check "--help lists the commands" check_help --help
all_commands_listed() { exits 0 --help && says out inspect diff doctor quantize dequantize merge export generate chat eval data train completion; }
check "the overview names all commands" all_commands_listed
gguf_is_named() { printf 'GGUF' >some.gguf && exits 1 inspect some.gguf && says err some.gguf "GGUF file"; }
check "inspect says that a GGUF file is one" gguf_is_named
help_wins() { exits 0 quantize --help && says out --format --block --double --skip --compute-dtype --shard-size --threads "(default: 64)"; }
check "--help wins over missing arguments and shows all options" help_wins
help_fits() { exits 0 quantize --help && [[ $(sed '/^Examples/,$d' out | wc -L) -le 80 ]]; }
check "help fits 80 columns" help_fits
help_json() { exits 0 --help --json && one_document && json_is commands.0.name inspect; }
check "--help --json describes the commands" help_json
version() { exits 0 --version && grep -qE '^nibble [0-9]+\.[0-9]+\.[0-9]+$' out && exits 0 --version --json && one_document; }
check "--version tells the version" version
no_colour() { exits 0 --help && ! grep -q $'\e' out; }
check "no colours in a file" no_colour

# ---- completion, man page ----

for shell in bash zsh fish; do
    completes() { exits 0 completion "$1" && says out quantize compute-dtype "nf4 fp4 int8 mxfp4"; }
    check "completion $shell knows commands, options and values" completes "$shell"
    if command -v "$shell" >/dev/null; then
        parses() { exits 0 completion "$1" && "$1" -n out; }
        check "completion $shell parses" parses "$shell"
    else
        skip "completion $shell parses" "no $shell here"
    fi
done

# What bash would offer for the words; the last one is being typed.
offers() { # WANTED WORD...
    local wanted=$1
    shift
    exits 0 completion bash || return 1
    local got
    # shellcheck disable=SC1091
    got=$(
        source ./out
        COMP_WORDS=(nibble "$@") COMP_CWORD=$#
        COMPREPLY=()
        _nibble 2>/dev/null
        echo "${COMPREPLY[*]}"
    )
    [[ $got == "$wanted" ]] || { echo "offers '$got' instead of '$wanted'"; return 1; }
}
check "bash completes a command" offers "quantize" qu
check "bash completes a command after common options" offers "dequantize" --threads 2 --json deq
check "bash completes an option" offers "--compute-dtype" quantize a b --comp
check "bash completes common options after a command" offers "--threads" inspect --th
check "bash completes a value" offers "fp4" quantize a b --format f
check "bash completes a value after =" offers "mxfp4" quantize a b --format = m
check "bash completes all values after =" offers "f32 f16 bf16" dequantize a b --dtype =
check "bash completes paths" offers "broken-values" quantize bro
check "bash completes a second path" offers "sharded" diff model sh
check "bash does not complete a third path" offers "" diff model other sh
check "bash completes the shells" offers "zsh" completion z

man_page() { exits 0 man && says out ".TH NIBBLE 1" ".SH EXIT STATUS" ".SH ENVIRONMENT" 'compute\-dtype'; }
check "the man page has its sections" man_page
if command -v groff >/dev/null; then
    man_warnings() { exits 0 man && groff -ww -man -Tutf8 out >page 2>warnings && silent warnings && grep -q QLoRA page; }
    check "the man page renders without warnings" man_warnings
else
    skip "the man page renders without warnings" "no groff here"
fi

# ---- look ----

inspect_totals() {
    exits 0 inspect model --json && silent err && one_document &&
        json_is architecture LlamaForCausalLM && json_is parameters 121152 && json_is bytes 242304 &&
        json_is formats.bf16.tensors 21 && json_is formats.bf16.bytes 242304 && json_is quantization null &&
        json_is "problems.#" 0 && ! "$json_get" out tensors 2>/dev/null
}
check "inspect counts parameters, bytes and formats" inspect_totals
inspect_tensors() {
    exits 0 inspect sharded --tensors --json && json_is "tensors.#" 21 && json_is tensors.0.name model.embed_tokens.weight &&
        json_is tensors.0.format bf16 && json_is tensors.0.dtype bf16 && json_is tensors.0.shape "[256,64]" &&
        json_is tensors.0.bytes 32768 && json_is tensors.20.file model-00003-of-00003.safetensors
}
check "inspect --tensors lists them with shape and file" inspect_tensors
inspect_people() { exits 0 inspect model --tensors && says out LlamaForCausalLM "121,152" "256 x 64" model.safetensors; }
check "inspect is readable" inspect_people
inspect_file() { exits 0 inspect model/model.safetensors --json && json_is parameters 121152; }
check "inspect takes a single file" inspect_file
check "inspect of nothing is refused" refused NBL_ERROR_NOT_FOUND absent inspect absent
inspect_problem() {
    cp -r model truncated && truncate -s -1000 truncated/model.safetensors && "$nibble" inspect truncated --json >out 2>err
    case $? in
        0) ! json_is "problems.#" 0 >/dev/null && says out model.safetensors ;;
        1) json_is error.code NBL_ERROR_FORMAT && one_error "nibble: inspect: " && says err model.safetensors ;;
        *) return 1 ;;
    esac
}
check "inspect tells of a truncated file" inspect_problem
hostile_names() {
    cp -r model $'odd\e[31m\n\xff' && exits 0 inspect $'odd\e[31m\n\xff' && ! grep -q $'\e' out &&
        exits 0 inspect $'odd\e[31m\n\xff' --json && one_document
}
check "a folder's name with control characters is shown harmlessly" hostile_names
hostile_tensors() {
    local header='{"a\u001b[31mb\nc\u009b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    { printf '%b' "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0" && printf '%s\0\0\0\0' "$header"; } >hostile.safetensors
    exits 0 inspect hostile.safetensors --tensors && says out "a\x1b[31mb\nc\u009b" && ! grep -q $'\e' out &&
        exits 0 inspect hostile.safetensors --tensors --json && one_document && json_is "tensors.#" 1
}
check "a tensor's name with control characters is shown harmlessly" hostile_tensors
doctor() { exits 0 doctor && says out isa cuda && exits 0 doctor --json && one_document && "$json_get" out cuda >/dev/null && "$json_get" out isa >/dev/null && "$json_get" out cpu >/dev/null; }
check "doctor tells of the machine" doctor
doctor_isa() { NIBBLE_ISA=scalar "$nibble" doctor --json --threads 3 >out && json_is isa scalar && json_is threads 3; }
check "NIBBLE_ISA and --threads are obeyed" doctor_isa
case $(uname -m) in
aarch64) vector_isa=neon vector_flag=asimd ;;
*) vector_isa=avx2 vector_flag=avx2 ;;
esac
doctor_details() {
    NIBBLE_ISA=scalar "$nibble" doctor --json >out && json_is isa_levels.0.name scalar && json_is isa_levels.0.used true && json_is isa_levels.1.used false &&
        json_is isa_levels/name=$vector_isa/found "$(grep -qw $vector_flag /proc/cpuinfo && echo true || echo false)" && json_is cores "$(nproc)" &&
        [[ $("$json_get" out libraries.#) =~ ^[23]$ ]] && [[ $("$json_get" out cuda_built) =~ ^(true|false)$ ]] &&
        [[ $("$json_get" out libraries/name=PCRE2/version) =~ ^10\. ]] && NIBBLE_ISA=scalar exits 0 doctor && says out PCRE2 utf8proc cores memory $vector_isa NIBBLE_ISA
}
check "doctor tells what was found, what is used and what it enables" doctor_details
no_device() {
    "$nibble" doctor --json >out
    [ "$("$json_get" out cuda)" != null ] || refused NBL_ERROR_UNSUPPORTED "no CUDA device" plan model --tokens 8 --device cuda
}
check "--device cuda says why there is none" no_device

# ---- convert and compare ----

quantize_and_back() { # FORMAT OPTION...
    local format=$1
    shift
    rm -rf packed plain
    exits 0 quantize model packed --format "$format" "$@" && silent err && says out packed "$format" "next: nibble diff model packed" &&
        exits 0 inspect packed --json && json_is quantization.format "$format" && json_is "formats.$format.tensors" 14 &&
        json_is parameters 121152 && json_is quantization.skipped.0 lm_head && json_is "problems.#" 0 &&
        exits 0 dequantize packed plain --dtype f32 --json && one_document && json_is converted 14 && json_is tensors 21 && json_is files 1 &&
        exits 0 diff packed plain --json && json_is equal true && json_is within true && json_is "tensors.#" 21 &&
        exits 1 diff model packed --json && silent err && json_is equal false && json_is within false &&
        exits 0 diff model packed --tol 0.3 && says out within
}
check "nf4 and back" quantize_and_back nf4
check "nf4 --double --block 128 and back" quantize_and_back nf4 --double --block 128 --compute-dtype f16
check "fp4 and back" quantize_and_back fp4
check "int8 and back" quantize_and_back int8
facts() {
    local weight=tensors/name=model.layers.1.self_attn.q_proj.weight
    rm -rf packed
    exits 0 quantize model packed --format=nf4 --block=128 --double --compute-dtype f16 --json && one_document && json_is converted 14 &&
        json_is bytes_in 244456 && json_is non_finite 0 && "$json_get" out seconds >/dev/null && "$json_get" out bytes_out >/dev/null &&
        exits 0 inspect packed --json --tensors && json_is quantization.block 128 && json_is quantization.nested true &&
        json_is quantization.compute_dtype f16 && json_is "$weight/format" nf4 && json_is "$weight/shape" "[64,64]" && json_is "$weight/dtype" bf16
}
check "inspect tells how a folder was quantised" facts
skip_option() { rm -rf packed && exits 0 quantize model packed --format nf4 --skip '^model\.layers\.1\.' --json && json_is converted 7; }
check "--skip leaves matching weights alone" skip_option
shards() {
    rm -rf packed
    exits 0 quantize model packed --format nf4 --shard-size 50K --json && ! json_is files 1 >/dev/null &&
        [[ -f packed/model.safetensors.index.json ]] && rm -rf whole && exits 0 quantize model whole --format nf4 && exits 0 diff packed whole
}
check "--shard-size makes several files with the same weights" shards
quiet() { rm -rf packed && exits 0 quantize model packed --format nf4 --quiet && silent out && silent err; }
check "--quiet says nothing" quiet
# patch FILE TENSOR INDEX BYTES (printf escapes of one 16-bit value): overwrites one value of a safetensors file.
patch() {
    local length entry begin
    length=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    entry=$(head -c $((8 + length)) "$1" | tail -c +9 | grep -ao "\"$2\":{[^}]*}") || return 1
    begin=${entry##*[} && begin=${begin%%,*}
    printf "$4" | dd of="$1" bs=1 seek=$((8 + length + begin + 2 * $3)) conv=notrunc status=none
}
refuses_non_finite() {
    local format
    for format in nf4 fp4 int8 "nf4 --double"; do
        rm -rf packed
        exits 1 quantize broken-values packed --format $format && says err 'tensor "model.layers.0.mlp.up_proj.weight": 2 values are not finite' &&
            says err "the first has index 0" && says err "allow-non-finite" && [[ ! -e packed ]] || return 1
    done
    exits 1 quantize broken-values packed --format nf4 --quiet && [[ ! -e packed ]]
}
check "quantize refuses NaN and infinities, by tensor, index and count" refuses_non_finite
allows_non_finite() {
    rm -rf packed
    exits 0 quantize broken-values packed --format nf4 --allow-non-finite && says err "nibble: quantize: warning: " && says out "2 NaN or infinite" &&
        rm -rf packed && exits 0 quantize broken-values packed --format nf4 --allow-non-finite --json && one_document && json_is non_finite 2 &&
        rm -rf packed && exits 0 quantize broken-values packed --format nf4 --allow-non-finite --quiet && silent err
}
check "--allow-non-finite warns of them, not with --quiet" allows_non_finite
inspects_values() {
    exits 0 inspect broken-values --json && one_document && json_is "problems.#" 0 &&
        exits 0 inspect broken-values --values --json && one_document && json_is "problems.#" 1 &&
        says out "2 values are not finite; the first has index" &&
        exits 0 inspect packed --values && says out problems "mlp.up_proj.weight" &&
        exits 0 inspect model --values --json && one_document && json_is "problems.#" 0 &&
        exits 2 inspect model.gguf --values && says err "--values is for folders"
}
check "inspect --values names tensors with NaN, in packed weights, too" inspects_values
refuses_on_arrival() { # codes would make finite numbers of NaN
    local format
    rm -rf altered && "$make_checkpoint" altered --dtype bf16 && patch altered/model.safetensors model.layers.1.mlp.down_proj.weight 5 '\xc0\x7f' || return 1
    echo '[[1, 2, 3]]' >ids.json
    for format in nf4 fp4 int8; do
        exits 1 logits altered --ids ids.json --out l.safetensors --load $format && says err 'tensor "model.layers.1.mlp.down_proj.weight": 1 values are not finite' &&
            says err "index 5" && says err "allow-non-finite" && [[ ! -e l.safetensors ]] || return 1
    done
    exits 0 logits altered --ids ids.json --out l.safetensors && says err 'warning: logits.0: ' && says err "not finite" && rm l.safetensors
}
check "--load refuses NaN by tensor and index; logits tell of it" refuses_on_arrival
refuses_export() {
    local type tensor
    for tensor in model.layers.1.mlp.down_proj.weight model.norm.weight; do
        rm -rf altered && "$make_checkpoint" altered --dtype bf16 && rm altered/tokenizer.json && patch altered/model.safetensors $tensor 5 '\x80\x7f' || return 1
        for type in f32 f16 bf16 q8_0; do
            exits 1 export altered x.gguf --type $type && says err "tensor \"$tensor\" has a value that is not finite (inf)" && [[ ! -e x.gguf ]] || return 1
        done
    done
    rm -rf altered && "$make_checkpoint" altered --dtype bf16 && rm altered/tokenizer.json && patch altered/model.safetensors $tensor 5 '\x49\x71' || return 1
    exits 0 export altered x.gguf --type f16 && rm x.gguf && # vectors are f32
        patch altered/model.safetensors model.layers.1.mlp.down_proj.weight 5 '\x49\x71' &&
        exits 1 export altered x.gguf --type f16 && says err "which f16 cannot hold" && [[ ! -e x.gguf ]]
}
check "export refuses infinities in every type" refuses_export
refuses_f16_overflow() { # 1e30 is finite in bf16; int8 goes through f16
    rm -rf altered packed && "$make_checkpoint" altered --dtype bf16 && patch altered/model.safetensors model.layers.1.mlp.down_proj.weight 5 '\x49\x71' &&
        exits 1 quantize altered packed --format int8 && says err 'down_proj.weight": 1 values are not finite in f16' && says err "index 5" &&
        exits 0 quantize altered packed --format nf4
}
check "int8 refuses what f16 cannot hold, nf4 takes it" refuses_f16_overflow
refuses_copied() { # a tensor that quantize and merge copy
    rm -rf altered packed && "$make_checkpoint" altered --dtype bf16 && patch altered/model.safetensors model.norm.weight 3 '\xc0\x7f' &&
        exits 1 quantize altered packed --format nf4 && says err 'tensor "model.norm.weight": 1 values are not finite; the first has index 3'
}
check "a copied tensor with NaN is refused as well" refuses_copied
names_dequantize() { # bf16 1e30 in nf4 decodes to an infinity of f16
    rm -rf altered packed plain && "$make_checkpoint" altered --dtype bf16 && patch altered/model.safetensors model.layers.1.mlp.down_proj.weight 5 '\x49\x71' &&
        exits 0 quantize altered packed --format nf4 && exits 0 dequantize packed plain --dtype f16 &&
        says err 'warning: tensor "model.layers.1.mlp.down_proj.weight": 1 values are not finite; the first has index 5' && says out "1 NaN or infinite" &&
        exits 0 dequantize packed whole-range --dtype bf16 && silent err
}
check "dequantize names values that its dtype cannot hold" names_dequantize
refuses_merge() {
    local adapter="$(dirname "$make_checkpoint")/make_adapter"
    rm -rf huge merged && "$adapter" model huge && sed -i 's/"lora_alpha": *[0-9.]*/"lora_alpha": 1e308/' huge/adapter_config.json &&
        exits 1 merge model huge merged && says err "values of the sum are not finite; the first has index" && [[ ! -e merged ]] &&
        exits 0 merge model huge merged --allow-non-finite && [[ -d merged ]]
}
check "merge refuses sums that are not finite" refuses_merge
threads() { rm -rf packed whole && exits 0 quantize sharded packed --format nf4 --double --threads 1 && exits 0 --threads 3 quantize sharded whole --format nf4 --double && diff -r packed whole; }
check "the number of threads changes no byte" threads
next_quoted() { cp -r model "it's" && exits 0 quantize "it's" "a b" --format nf4 && says out "next: nibble diff 'it'\\''s' 'a b'"; }
check "the next command can be pasted, whatever the names" next_quoted

diff_people() { exits 1 diff model other && silent err && says out different rel_norm "... and 1 more that differ" && [[ $(wc -l <out) -eq 23 ]]; }
check "diff shows the worst twenty and counts the rest" diff_people
diff_sharded() { exits 0 diff model sharded && says out equal "all 21 tensors"; }
check "diff sees through shards" diff_sharded
diff_missing() {
    rm -rf tied && "$make_checkpoint" tied --seed 1 --tied && exits 1 diff model tied --json && json_is missing_in_b.0 lm_head.weight &&
        json_is "missing_in_a.#" 0 && exits 1 diff model tied && says out "only in model: lm_head.weight"
}
check "diff names what is missing" diff_missing
diff_shape() {
    rm -rf wider && "$make_checkpoint" wider --seed 1 --vocab 264 && exits 1 diff model wider --json && one_document && says out shape_differs &&
        exits 1 diff model wider && says out "another shape"
}
check "diff names a tensor of another shape" diff_shape
diff_nan() { exits 1 diff broken-values other --json && one_document && exits 0 diff broken-values broken-values --json && json_is equal true; }
check "NaN in weights leaves the JSON valid, and equals itself" diff_nan

# ---- failures leave everything as it was ----

snapshot() { find "$1" -type f -exec sha256sum {} + | sort; }
untouched() { # TARGET: it exists and must stay as it is
    local before
    before=$(snapshot "$1")
    exits 1 quantize model "$1" --format nf4 && one_error "nibble: quantize: " && [[ $(snapshot "$1") == "$before" ]]
}
mkdir full && echo mine >full/keep.txt && echo mine >file && ln -s model link
check "a target that exists is refused and untouched" untouched full
check "a target that is a file is refused and untouched" untouched file
check "a target that is the source is refused and untouched" untouched model
check "a target under a file is refused" refused NBL_ERROR_NOT_FOUND file quantize model file/out --format nf4
check "a target in a folder that is not there is refused" refused NBL_ERROR_NOT_FOUND nowhere quantize model nowhere/out --format nf4
check "a source that is not there is refused" refused NBL_ERROR_NOT_FOUND absent quantize absent out-folder --format nf4
check "a truncated source is refused" refused NBL_ERROR_FORMAT model.safetensors quantize truncated out-folder --format nf4
check "a plain folder cannot become mxfp4" refused NBL_ERROR_UNSUPPORTED mxfp4 quantize model out-folder --format mxfp4

disk_full() { # a file size limit stands for a full disk
    mkdir -p room && rm -rf room/* && (ulimit -f 64 && exits 1 quantize large room/out --format nf4 --quiet) &&
        one_error "nibble: quantize: " && empty_folder room
}
check "a file that cannot grow is an error that leaves nothing" disk_full
if [[ -w /dev/full ]]; then
    full_stdout() {
        "$nibble" inspect model --tensors >/dev/full 2>err
        [[ $? -eq 1 ]] && one_error "nibble: inspect: cannot write standard output" && "$nibble" --version >/dev/full 2>err
        [[ $? -eq 1 ]]
    }
    check "a full disk behind standard output is an error" full_stdout
fi
closed_stdout() {
    "$nibble" inspect model >&- 2>err
    [[ $? -eq 1 ]] && one_error "nibble: inspect: cannot write standard output"
}
check "a closed standard output is an error" closed_stdout
closed_all() { rm -rf packed && "$nibble" quantize model packed --format nf4 <&- >&- 2>&-; "$nibble" inspect packed --json >out && json_is "problems.#" 0; }
check "closed standard streams do not end up in the weights" closed_all
early_reader() { "$nibble" inspect many --tensors 2>err | head -n 1 >/dev/null && silent err; }
check "a reader that stops early gets no complaint" early_reader

interrupt() { # SIGNAL
    rm -rf room && mkdir room
    local pid status tries
    for tries in 1 2 3 4 5; do
        "$nibble" quantize large room/out --format nf4 --double --threads 1 --json >out 2>err &
        pid=$!
        while [[ -z $(ls -A room) ]] && kill -0 "$pid" 2>/dev/null; do :; done
        kill "-$1" "$pid" 2>/dev/null
        wait "$pid"
        status=$?
        [[ $status -ne 0 ]] && break
        rm -rf room/out # it was done before the signal came
    done
    [[ $status -eq 130 ]] || { echo "exit $status after $tries tries: $(cat err)"; return 1; }
    one_error "nibble: quantize: interrupted; nothing was written" && one_document &&
        json_is error.code NBL_ERROR_CANCELLED && empty_folder room
}
for signal in INT TERM HUP; do
    check "SIG$signal stops quantize with exit 130 and leaves nothing" interrupt "$signal"
done

interrupt_diff() {
    local pid status
    for _ in 1 2 3 4 5; do
        "$nibble" diff large large --threads 1 >out 2>err &
        pid=$!
        sleep 0.02
        kill -INT "$pid" 2>/dev/null
        wait "$pid"
        status=$?
        [[ $status -ne 0 ]] && break
    done
    [[ $status -eq 130 ]] || { echo "exit $status: $(cat err)"; return 1; }
    one_error "nibble: diff: interrupted" && silent out
}
check "SIGINT stops diff with exit 130" interrupt_diff
interrupt_writing() { # standard output is a pipe that nobody reads
    mkfifo pipe
    exec 3<>pipe
    "$nibble" inspect many --tensors >pipe 2>err 3>&- &
    local pid=$! status
    sleep 0.3
    kill -INT "$pid"
    wait "$pid"
    status=$?
    exec 3>&-
    [[ $status -eq 130 ]] || { echo "exit $status: $(cat err)"; return 1; }
}
check "SIGINT stops a command that waits for its reader" interrupt_writing

# ---- text ----

mkdir words
cat >words/tokenizer.json <<'JSON'
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
 "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
   "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
 "model": {"type": "WordLevel", "vocab": {"?": 0, "<s>": 1, "a": 2, "b": 3}, "unk_token": "?"}}
JSON
printf '"a b"\n"b \\u0000"\n' >lines.jsonl
echo '[[2, 3], []]' >ids.json
text_to_ids() { exits 0 tokenize words --text "b a x" && [[ $(cat out) == "1 3 2 0" ]] && exits 0 tokenize words --file words/tokenizer.json --no-special; }
check "tokenize prints the ids of a text" text_to_ids
lines_to_ids() { exits 0 tokenize words --lines lines.jsonl --json && [[ $(cat out) == '{"ids":[[1,2,3],[1,3,0]]}' ]]; }
check "tokenize --lines --json is one list per line" lines_to_ids
ids_to_text() { exits 0 tokenize words --decode ids.json --json && [[ $(cat out) == '{"texts":["a b",""]}' ]]; }
check "tokenize --decode gives the texts back" ids_to_text
no_tokenizer() { exits 1 tokenize model --text a && one_error "nibble: tokenize: model/tokenizer.json" && exits 2 tokenize words && exits 2 tokenize words --text a --file b; }
check "tokenize without a tokenizer or a text is refused" no_tokenizer

# ---- progress ----

short_run() { rm -rf packed && exits 0 quantize model packed --format nf4 && silent err; }
check "a short run into a file shows no progress" short_run
if command -v script >/dev/null && script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    terminal() { # COLUMNS OPTION...: quantize on a terminal; what it shows is in the file screen
        local columns=$1
        shift
        rm -rf packed
        # one scalar thread: slow enough for a second frame, which names a tensor
        script -qec "stty cols $columns; NIBBLE_ISA=scalar '$nibble' quantize large packed --format nf4 --threads 1 $*" /dev/null </dev/null >screen 2>&1
    }
    bar() { terminal 120 && grep -q '% \[' screen && grep -q 'model.layers' screen && grep -q $'\r\e\\[K' screen; }
    check "a terminal gets a progress bar, which goes away" bar
    bar_fits() {
        local widest
        for columns in 20 60 81; do
            terminal $columns || return 1
            widest=$(tr '\r' '\n' <screen | sed -n $'/%/s/\e\\[[JK]//gp' | grep -v nibble | wc -L)
            [[ $widest -gt 0 && $widest -lt $columns ]] || { echo "$widest columns drawn on $columns"; return 1; }
        done
    }
    check "the progress bar fits the terminal" bar_fits
    bar_quiet() { terminal 100 --quiet && silent screen; }
    check "--quiet shows no progress bar" bar_quiet
    bar_dumb() { TERM=dumb terminal 100 && ! grep -q '% \[' screen && ! grep -q $'\e' screen; }
    check "a dumb terminal gets no bar and no colours" bar_dumb
    coloured() { terminal 100 && grep -q $'\e\\[1m' screen; }
    check "a terminal gets colours" coloured
    uncoloured() { NO_COLOR=1 terminal 100 && ! grep -q $'\e\\[[0-9]*m' screen; }
    check "NO_COLOR is obeyed" uncoloured
else
    skip "the progress bar on a terminal" "no script command here"
fi

# ---- models ----

echo '[[1, 2, 3, 9], [5, 6]]' >ids.json
echo '[[1, 256]]' >bad-ids.json
writes_logits() {
    exits 0 logits model --ids ids.json --out l1.safetensors --threads 1 &&
        exits 0 logits model --ids ids.json --out l2.safetensors --threads 3 && cmp l1.safetensors l2.safetensors
}
check "logits do not depend on the number of threads" writes_logits
refuses_ids() { exits 1 logits model --ids bad-ids.json --out l3.safetensors && grep -q 256 err && [[ ! -e l3.safetensors ]]; }
check "an id outside the vocabulary is refused and nothing is written" refuses_ids
# A target that exists, whatever it is, stays as it is; only an earlier result gives way, and only to --force.
spares_targets() {
    exits 0 logits model --ids ids.json --out spared.safetensors || return 1
    local adapter="$(dirname "$make_checkpoint")/make_adapter" target how
    "$adapter" model result-adapter --rank 2 || return 1
    ln -sf spared.safetensors spared-link; ln -sf nowhere spared-dangling
    ln -f model/model.safetensors spared-name; ln -f result-adapter/adapter_model.safetensors spared-adapter
    [[ -p spared-pipe ]] || mkfifo spared-pipe
    sha256sum ids.json spared.safetensors model/* result-adapter/* >spared.sums
    for target in model/model.safetensors model/config.json model ids.json result-adapter/adapter_model.safetensors \
        spared-name spared-adapter spared-link spared-dangling spared-pipe; do
        for how in "" --force; do
            exits 1 logits model --ids ids.json --out "$target" $how && says err "left untouched" || { echo "logits $target $how"; return 1; }
            exits 1 grads model --ids ids.json --labels ids.json --adapter result-adapter --out "$target" $how &&
                says err "left untouched" || { echo "grads $target $how"; return 1; }
        done
    done
    exits 1 logits model --ids ids.json --out spared.safetensors && says err "--force" || return 1
    sha256sum --quiet -c spared.sums && [[ -L spared-link && -L spared-dangling && -p spared-pipe && ! -e nowhere ]] || return 1
    exits 0 grads model --ids ids.json --labels ids.json --adapter result-adapter --out spared.safetensors --force &&
        ! sha256sum --status -c spared.sums && [[ -z $(ls -d ./*.partial-* 2>/dev/null) ]]
}
check "logits and grads replace nothing but their own earlier results" spares_targets
generates() {
    exits 0 generate model --ids ids.json --max-tokens 7 --json && json_is sequences.0.finish length && cp out first &&
        exits 0 generate model --ids ids.json --max-tokens 7 && cp out both && [[ $(wc -l <both) -eq 2 ]] &&
        [[ $(head -n 1 both | wc -w) -eq 7 ]]
}
check "generate continues every sequence" generates
same_seed() {
    exits 0 generate model --ids ids.json --max-tokens 9 --temperature 1 --seed 3 && cp out one &&
        exits 0 generate model --ids ids.json --max-tokens 9 --temperature 1 --seed 3 --threads 1 && cmp out one &&
        exits 0 generate model --ids ids.json --max-tokens 9 --temperature 1 --seed 4 && ! cmp -s out one
}
check "the seed decides what is sampled" same_seed
loads() { exits 0 generate model --ids ids.json --max-tokens 4 --load nf4 && exits 0 generate sharded --ids ids.json --max-tokens 4 --dtype f32; }
check "a model runs in 4 bits and from shards" loads
refuses_nan() { exits 1 generate broken-values --ids ids.json --max-tokens 2 && grep -q "not finite" err; }
check "no token is taken from logits that are not finite" refuses_nan
exports() {
    exits 0 export model model.gguf --type q8_0 --json && one_document && json_is type q8_0 &&
        exits 0 generate model.gguf --ids ids.json --max-tokens 3 && exits 1 export model model.gguf --type f16 &&
        says err "model.gguf: exists"
}
rm -f model/tokenizer.json # noise
check "export writes a model that runs, and never over another" exports
check "export without --type and --adapter is wrong usage" usage_error export model other.gguf
plans() { exits 0 plan model --tokens 64 --memory 1M --json && one_document && json_is casts "[]"; }
check "plan tells what a model takes" plans
plan_sizes() {
    exits 0 plan model --tokens 64 --json || return 1
    local least
    least=$("$json_get" out smallest_memory)
    exits 0 plan model --tokens 64 && grep -qE '^  total +[0-9.]+ [KMG]?B$' out && grep -qE '^ +[0-9.]+ [KMG]?B +[0-9]+ scratch' out &&
        says out "smallest memory: " "($least bytes)" && ! grep -qE '[0-9]{6}' <(grep -v "smallest memory" out)
}
plan_of_run() {
    for option in "--adapter a" "--dtype f32" "--load nf4"; do
        usage_hint "does not go with --train" plan model --train hub.yml $option || return 1
    done
    usage_hint "--set needs --train" plan model --set lora_r=2
}
check "plan refuses options that a run says itself" plan_of_run
check "plan tells sizes as people read them, and the smallest budget exactly" plan_sizes

# A model that speaks: every id has a word, w0 is a special token, texts are words with blanks between them.
cp -r model speaker && cp -r large slow
speech=$(for ((i = 0; i < 1024; i++)); do printf '%s"w%d": %d' "${comma:-}" "$i" "$i"; comma=", "; done)
for folder in speaker slow; do
    cat >$folder/tokenizer.json <<JSON
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null, "post_processor": null,
 "added_tokens": [{"id": 0, "content": "w0", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "model": {"type": "WordLevel", "vocab": {$speech}, "unk_token": "w1"}}
JSON
    echo '{}' >$folder/tokenizer_config.json
    echo '{"eos_token_id": 0}' >$folder/generation_config.json
    printf '%s' '{% for m in messages %}{{ m.content }} w2 {% endfor %}' >$folder/chat_template.jinja
done
sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 40/' speaker/config.json
sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 100000/' slow/config.json
echo '[[1, 2, 3], [5, 6, 7]]' >two.json

stops() { # a stop string that lies across two tokens of the first sequence and is not in the second
    exits 0 generate speaker --ids two.json --max-tokens 12 --json || return 1
    local whole other words cut
    whole=$("$json_get" out sequences.0.text) other=$("$json_get" out sequences.1.text)
    read -ra words <<<"$whole"
    cut="${words[4]: -1} ${words[5]:0:2}"
    [[ $other != *"$cut"* ]] || { echo "'$cut' is in both"; return 1; }
    exits 0 generate speaker --ids two.json --max-tokens 12 --json --stop nowhere --stop "$cut" &&
        json_is sequences.0.finish stop && json_is sequences.0.text "${whole%%"$cut"*}" && json_is "sequences.0.ids.#" 6 &&
        json_is sequences.1.finish length && json_is sequences.1.text "$other" && json_is "sequences.1.ids.#" 12 &&
        exits 0 generate speaker --prompt "w1 w2 w3" --max-tokens 12 --stop "$cut" && [[ $(cat out; echo .) == "${whole%%"$cut"*}"$'\n.' ]]
}
check "--stop ends the sequence whose text contains it, and only that" stops
held_back() { # the last words could begin a stop string, but the tokens end
    exits 0 generate speaker --prompt "w1 w2 w3" --max-tokens 5 --json && local whole && whole=$("$json_get" out sequences.0.text) &&
        exits 0 generate speaker --prompt "w1 w2 w3" --max-tokens 5 --stop "${whole#w*w} and more" && [[ $(cat out) == "$whole" ]]
}
check "what could have been a stop string is printed in the end" held_back
check "an empty --stop is wrong usage" usage_error generate model --ids ids.json --stop ""
stop_needs_text() { exits 1 generate model --ids ids.json --stop x && one_error "nibble: generate: model/tokenizer.json"; }
check "--stop without a tokenizer is refused" stop_needs_text

chats() { # two turns; the second answer is what the whole conversation is continued with
    printf 'w5 w6\nw7\n' | "$nibble" chat speaker --max-tokens 3 --quiet >out 2>err || return 1
    [[ $(wc -l <out) -eq 2 ]] && silent err || return 1
    local first second
    first=$(sed -n 1p out) second=$(sed -n 2p out)
    exits 0 generate speaker --prompt "w5 w6 w2" --max-tokens 3 && [[ $(cat out) == "$first" ]] &&
        exits 0 generate speaker --prompt "w5 w6 w2 $first w2 w7 w2" --max-tokens 3 && [[ $(cat out) == "$second" ]] &&
        printf 'w5 w6\n/reset\n\nw7\n/quit\nw8\n' | "$nibble" chat speaker --max-tokens 3 --quiet --system w9 >out 2>err && [[ $(wc -l <out) -eq 2 ]] &&
        second=$(sed -n 2p out) && exits 0 generate speaker --prompt "w9 w2 w7 w2" --max-tokens 3 && [[ $(cat out) == "$second" ]]
}
check "chat answers every line with the conversation in mind, until /reset" chats
chat_json() {
    printf 'w5\n' | "$nibble" chat speaker --max-tokens 3 --json --system w9 >out 2>err && one_document && json_is "messages.#" 3 &&
        json_is messages.0.role system && json_is messages.1.content w5 && json_is messages.2.role assistant
}
check "chat --json is the conversation" chat_json
chat_empty() { # every word begins with a w
    printf 'w5\nw7\n' | "$nibble" chat speaker --max-tokens 3 --quiet --stop w >out 2>err && [[ $(wc -l <out) -eq 2 ]] && silent err
}
check "an answer that is empty is one, too" chat_empty
chat_full() { # 40 positions: the second turn does not fit, the third does
    printf 'w5\n%s\nw7\n' "$(printf 'w8 %.0s' {1..40})" | "$nibble" chat speaker --max-tokens 3 >out 2>err
    [[ $? -eq 1 ]] && [[ $(wc -l <out) -eq 2 ]] && says err "the model has 40 positions" "hint: /reset"
}
check "a conversation beyond the model's positions is refused and goes on" chat_full
chat_commands() {
    printf '/help\n/nonsense\n/w5 w6/\n' | "$nibble" chat speaker --max-tokens 3 >out 2>err
    [[ $? -eq 2 ]] && says err "/reset" "no command '/nonsense'" && [[ $(wc -l <out) -eq 1 ]]
}
check "chat has commands, and words with a slash are none" chat_commands
no_template() { exits 1 chat words/../words2 </dev/null && one_error "nibble: chat: " && says err "no chat template" "hint: --template"; }
cp -r speaker words2 && rm words2/chat_template.jinja
check "chat without a template is refused with a hint" no_template
chat_template_given() { printf 'w5\n' | "$nibble" chat words2 --template speaker/chat_template.jinja --max-tokens 3 --quiet >out && [[ $(wc -l <out) -eq 1 ]]; }
check "chat takes a template from a file" chat_template_given

# ---- names on the hub ----
export HOME=$work
unset HF_HOME HF_HUB_CACHE XDG_CACHE_HOME
hub_hint() { # TEXT ARGUMENT...: exits with 1 and this hint
    local text=$1
    shift
    exits 1 "$@" </dev/null && one_error "nibble: $1: " && says err "hint: $text"
}
get_model="hf download some-org/Some-1.5B --local-dir Some-1.5B" get_data="hf download --repo-type dataset some-org/rows --local-dir rows"
echo '{"text": "a"}' >one.jsonl
printf 'base_model: some-org/Some-1.5B\nadapter: lora\nlora_r: 2\nlora_target_linear: true\nlearning_rate: 1e-3\nmax_steps: 1\nsequence_len: 32\noutput_dir: hub-out\ndatasets:\n  - path: some-org/rows\n    type: completion\n' >hub.yml
hub_names() {
    for line in "inspect some-org/Some-1.5B" "diff some-org/Some-1.5B model" "plan some-org/Some-1.5B" "quantize some-org/Some-1.5B out-folder --format nf4" "dequantize some-org/Some-1.5B out-folder" \
        "merge some-org/Some-1.5B model out-folder" "merge model some-org/Some-1.5B out-folder" "export some-org/Some-1.5B out.gguf --type f32" \
        "tokenize some-org/Some-1.5B --text a" "template some-org/Some-1.5B --messages ids.json" "logits some-org/Some-1.5B --ids ids.json --out o" \
        "generate some-org/Some-1.5B --prompt a" "generate model --ids ids.json --adapter some-org/Some-1.5B" "chat some-org/Some-1.5B" \
        "eval some-org/Some-1.5B --data one.jsonl" "data hub.yml" "train hub.yml" "plan some-org/Some-1.5B --train hub.yml"; do
        hub_hint "nibble reads local folders" $line && says err "$get_model" || return 1
    done
    hub_hint "nibble reads local .json" train hub.yml --set base_model=speaker && says err "$get_data"
}
check "a name on the hub is told how to get it" hub_names
hub_cached() {
    mkdir -p .cache/huggingface/hub/models--some-org--Some-1.5B/{refs,snapshots/0a1b} && printf 0a1b >.cache/huggingface/hub/models--some-org--Some-1.5B/refs/main
    hub_hint "nibble reads local folders; the hub's cache has a copy: $work/.cache/huggingface/hub/models--some-org--Some-1.5B/snapshots/0a1b" plan some-org/Some-1.5B
    local status=$?
    rm -rf .cache
    return $status
}
check "a copy in the hub's cache is named" hub_cached
no_hub_name() { # a folder that is there, a file, a path
    mkdir -p here && for path in here/model data/rows.jsonl ./some-org/name /some/name a/b/c name; do
        exits 1 plan $path && ! grep -q hint err || { echo "$path: $(cat err)"; return 1; }
    done
}
check "other paths that are missing get no such hint" no_hub_name

soon() { # CONDITION: waits for it, half a minute at most
    for _ in {1..600}; do eval "$1" 2>/dev/null && return; sleep 0.05; done
    return 1
}
chat_signals() { # stops an answer, then leaves at the prompt
    rm -f lines out && mkfifo lines
    "$nibble" chat slow --max-tokens 4000 --threads 1 <lines >out 2>err &
    local pid=$! status size
    exec 4>lines
    echo 'w5 w6' >&4
    soon 'test -s out'
    kill -INT "$pid"
    soon '[[ $(wc -l <out) -eq 1 ]]'
    size=$(wc -c <out)
    echo 'w7' >&4
    soon "[[ \$(wc -c <out) -gt $size ]]"
    kill -INT "$pid"
    soon '[[ $(wc -l <out) -eq 2 ]]'
    sleep 0.3 # from the end of the answer to the prompt
    kill -INT "$pid"
    soon "! kill -0 $pid" || kill -KILL "$pid"
    wait "$pid"
    status=$?
    exec 4>&-
    [[ $status -eq 130 && $(wc -l <out) -eq 2 && $(grep -c . out) -eq 2 ]] || { echo "exit $status, $(wc -l <out) answers: $(cat err)"; return 1; }
    [[ $(cat err) == "nibble: chat: interrupted" ]] || { cat err; return 1; }
}
check "SIGINT stops an answer, and at the prompt the conversation" chat_signals

printf '{"text": "w1 w2 w3 w9"}\n\n{"text": "w1 w2 w3 w9"}\n{"text": "w4"}\n{"text": ""}\n' >texts.jsonl
printf 'w1 w2 w3 w9' >text.txt
echo '[[1, 2, 3, 9]]' >four.json
evaluates() { # against the logits of the same tokens
    exits 0 logits speaker --ids four.json --out four.safetensors --dtype f32 || return 1
    local header wanted
    header=$(od -An -tu8 -N8 four.safetensors)
    wanted=$(od -An -v -w4 -tf4 -j $((header + 8)) four.safetensors | awk '
        { z[NR - 1] = $1 }
        END {
            split("1 2 3 9", id)
            for (t = 0; t < 3; t++) {
                sum = 0; best = 0
                for (v = 0; v < 256; v++) { sum += exp(z[t * 256 + v]); if (z[t * 256 + v] > z[t * 256 + best]) best = v }
                loss += log(sum) - z[t * 256 + id[t + 2]]; hits += best == id[t + 2]
            }
            printf "%.5f %.3f %.4f", loss / 3, exp(loss / 3), hits / 3
        }')
    for data in text.txt texts.jsonl; do
        exits 0 eval speaker --data $data --dtype f32 --json && one_document || return 1
        case $data in
            *.txt) silent err && json_is dropped 0 ;;
            *) says err "nibble: eval: 2 rows were dropped: 2 of fewer than two tokens" && json_is dropped 2 && json_is dropped_too_short 2 ;;
        esac || return 1
        local got
        got=$(printf '%.5f %.3f %.4f' "$("$json_get" out loss)" "$("$json_get" out perplexity)" "$("$json_get" out accuracy)")
        [[ $got == "$wanted" ]] || { echo "$data: '$got' instead of '$wanted'"; return 1; }
    done
    json_is tokens 6 && json_is sequences 2 && json_is truncated 0
}
check "eval is the loss of the logits, over all texts" evaluates
eval_rows() {
    printf '{"body": "%s"}\n' "$(printf 'w8 w3 %.0s' {1..30})" >long.jsonl && exits 0 eval speaker --data long.jsonl --field body --json &&
        json_is tokens 39 && json_is truncated 1 && says err "1 of 1 texts were cut to 40 tokens" &&
        exits 0 eval speaker --data long.jsonl --field body --json --max-tokens 9 && json_is tokens 8 &&
        printf '{"messages": [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6 w7"}]}\n' >chats.jsonl &&
        exits 0 eval speaker --data chats.jsonl --json --all && json_is tokens 4 && json_is all_tokens 4 && json_is counted all && cp out one &&
        exits 0 eval speaker --data chats.jsonl --json --all --threads 1 && cmp out one
}
check "eval takes fields and messages, and cuts what is too long" eval_rows
eval_limit() { exits 0 eval speaker --data text.txt --fail-above 1e9 --quiet && exits 1 eval speaker --data text.txt --fail-above 1.5 --json && one_document && json_is tokens 3 && says err "above 1.5"; }
check "--fail-above decides the exit status" eval_limit
eval_refuses() {
    printf '{"text": "w1 w2"}\n{"txt": "w1 w2"}\n' >bad.jsonl && exits 1 eval speaker --data bad.jsonl && one_error "nibble: eval: bad.jsonl:2: no text" &&
        printf '{"text": "w1 w2"}\nw1\n' >bad.jsonl && exits 1 eval speaker --data bad.jsonl --json && one_error "nibble: eval: bad.jsonl:2: " && one_document &&
        printf '{"text": "w1"}\n' >bad.jsonl && exits 1 eval speaker --data bad.jsonl && one_error "nibble: eval: bad.jsonl: no text of two" &&
        exits 1 eval speaker --data absent.jsonl && one_error "nibble: eval: absent.jsonl" && exits 2 eval speaker
}
check "eval names the row that is wrong" eval_refuses

# ---- train ----

printf '{"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}\n{"input_ids": [9, 3], "labels": [9, 3]}\n' >rows.jsonl
cat >run.yml <<'YAML'
base_model: speaker
datasets: [{path: rows.jsonl, type: pretokenized}]
learning_rate: 0.001
max_steps: 3
output_dir: trained
report: false
YAML
train_stopped() { # TERM as well as INT: the step is finished and saved, and the whole command goes on
    local signal pid status
    for signal in INT TERM; do
        rm -rf "a b"
        "$nibble" train run.yml --set "output_dir=a b" --set max_steps=100000000 --set save_steps=1000000 >out 2>err &
        pid=$!
        soon 'test -s "a b/metrics.jsonl"' && kill -$signal "$pid"
        wait "$pid"
        status=$?
        [[ $status -eq 130 ]] && says err "interrupted after step" "saved in a b/checkpoint-" \
            "hint: nibble train run.yml --set 'output_dir=a b' --set max_steps=100000000 --set save_steps=1000000 --resume goes on" || return 1
        [[ $(ls "a b") == *checkpoint-* ]] || return 1
    done
}
check "train stops after a step and repeats the options that go on" train_stopped
train_quiet_saves() { # of a whole model: its bytes have no line of their own
    exits 0 train run.yml --set save_steps=1 && ! grep -q '%' err && says err "saved trained/checkpoint-3"
}
check "train says what it saves, and nothing of the bytes" train_quiet_saves
train_best() { # the step of the result is named wherever one looks
    local best="--set output_dir=best --set adapter=lora --set lora_r=2 --set lora_target_linear=true --set val_set_size=1 --set eval_steps=1 --set learning_rate=1 --set lr_scheduler=constant --set max_steps=6"
    rm -rf best && exits 0 train run.yml $best --set load_best_model_at_end=true &&
        says err "step 1  evaluation loss" ", the best so far" && says out "the result is step " "'s, the best: evaluation loss " && grep -q '^# result: step [1-6] of 6, eval_loss .*, the best$' best/run.yml &&
        exits 0 train run.yml $best --set load_best_model_at_end=true --resume --json && one_document && says out '"result_step": ' '"best_eval_loss": ' &&
        exits 2 train run.yml --set load_best_model_at_end=true && says err "load_best_model_at_end needs val_set_size" &&
        exits 2 train run.yml $best --set metric_for_best_model=eval_accuracy && says err "metric_for_best_model: \"eval_accuracy\" is not allowed; allowed: eval_loss, loss"
}
check "train names the best step that the result is of" train_best
train_own_folder() {
    exits 2 train run.yml --set output_dir=speaker && one_error "nibble: train: run.yml: output_dir: speaker would take the place of base_model" &&
        [[ -f speaker/model.safetensors && ! -e speaker/earlier-1 ]]
}
check "train never writes into the folder of its model" train_own_folder

train_changed() { # each key that decides about bytes, beside --resume
    local change adapter="--set adapter=lora --set lora_r=2 --set lora_target_modules=[q_proj,v_proj] --set output_dir=changed"
    rm -rf changed && exits 0 train run.yml $adapter || return 1
    for change in lora_r=4 lora_alpha=4 lora_dropout=0.1 peft_use_rslora=true peft_use_dora=true lora_target_modules=[q_proj] \
        bnb_4bit_quant_type=fp4 load_in_4bit=true seed=43 learning_rate=0.002 bf16=true; do
        exits 2 train run.yml $adapter --set max_steps=4 --resume --set $change &&
            says err "changed/checkpoint-3: a key has changed since it was saved: ${change%%=*} was " "hint: set it back" || return 1
    done
    ! grep -q "max_steps: 4" changed/run.yml &&
        exits 2 train run.yml $adapter --resume --set seed=1 --set lora_r=4 --set learning_rate=1 && says err "keys have changed since it was saved: lora_r, seed, learning_rate" &&
        exits 2 train run.yml $adapter --resume --allow-changes --set lora_r=4 && says err "lora_r was 2, is 4" &&
        exits 2 train run.yml $adapter --allow-changes && says err "--allow-changes needs --resume" &&
        exits 0 train run.yml $adapter --resume --allow-changes --set max_steps=4 --set learning_rate=0.002 &&
        says changed/run.yml "learning_rate: 0.002" "# - step 3: learning_rate was 0.001, is 0.002"
}
check "a key that decides about bytes does not change in the middle of a run" train_changed
train_other_base() {
    rm -rf changed other && cp -r speaker other && exits 0 train run.yml --set base_model=other --set output_dir=changed &&
        exits 0 train run.yml --set output_dir=changed --resume --set max_steps=4 &&
        printf '\x01' | dd of=other/model.safetensors bs=1 seek=$(($(stat -c %s other/model.safetensors) - 1)) conv=notrunc status=none &&
        exits 2 train run.yml --set base_model=other --set output_dir=changed --resume --set max_steps=5 && says err "base_model was files with checksum"
}
check "a base model with other bytes is refused" train_other_base
train_edited_state() {
    rm -rf changed && exits 0 train run.yml --set output_dir=changed && sed -i 's/"step": 3/"step": 2/' changed/checkpoint-3/nibble_state.json &&
        exits 1 train run.yml --set output_dir=changed --set max_steps=4 --set resume_from_checkpoint=changed/checkpoint-3 && says err "nibble_state.json: damaged or edited" &&
        exits 0 train run.yml --set output_dir=changed --set max_steps=4 --resume && says err "changed/checkpoint-3 is skipped" "damaged or edited"
}
check "an edited state of a checkpoint is noticed" train_edited_state

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
