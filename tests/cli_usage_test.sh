#!/usr/bin/env bash
# cli_usage_test.sh - the command line from outside: usage, help, completions, man page, JSON, exit status,
# signals, full disks, and the way from a checkpoint to a quantised one and back.
#
#     bash tests/cli_usage_test.sh NIBBLE MAKE_CHECKPOINT [JSON_GET]
#
# tests/cli_support.sh says what a check is.
source "$(dirname "${BASH_SOURCE[0]}")/cli_support.sh"

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

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
