/* test_hf_linear.c - the rule of format/hf/hf_linear.h, with what transformers 5.22 + bitsandbytes 0.50 do with
 * tiny models of many architectures (tests/oracle/survey_linear.py). tests/oracle/test_linear_rule.py asks
 * about all tensors of all architectures; here is a selection that needs no Python. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "format/hf/hf_linear.h"

static nbl__linear_verdict ask(const char *type, bool tied, const char *name)
{
    return nbl__hf_is_linear(type, tied, name, 2);
}

/* Names of modules; each stands for its matrix, called ".weight". */
static const struct {
    const char *types;
    bool tied;
    const char *yes, *no, *refuse;
} cases[] = {
    {.types = "llama qwen2 qwen3 mistral ministral3 gemma gemma3_text olmo2 granite stablelm cohere2 smollm3",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.gate_proj model.layers.0.mlp.up_proj "
            "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "gemma2 olmo",
     .tied = true,
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.gate_proj model.layers.0.mlp.up_proj "
            "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj",
     .no = "model.embed_tokens"},
    {.types = "gemma3n_text",
     .yes = "model.altup_projections.0 model.layers.0.altup.modality_router "
            "model.layers.0.laurel.linear_right model.layers.0.mlp.up_proj "
            "model.layers.0.self_attn.k_proj",
     .no = "lm_head model.embed_tokens model.embed_tokens_per_layer"},
    {.types = "gemma4_text",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.per_layer_projection "
            "model.layers.0.self_attn.o_proj model.layers.0.self_attn.v_proj",
     .no = "lm_head model.embed_tokens model.embed_tokens_per_layer"},
    {.types = "phi",
     .yes = "model.layers.0.mlp.fc1 model.layers.0.self_attn.dense model.layers.0.self_attn.k_proj "
            "model.layers.0.self_attn.q_proj model.layers.0.self_attn.v_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "phi3",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.gate_up_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.qkv_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "starcoder2",
     .yes = "model.layers.0.mlp.c_fc model.layers.0.mlp.c_proj model.layers.0.self_attn.k_proj "
            "model.layers.0.self_attn.o_proj model.layers.0.self_attn.q_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "gpt_neox",
     .yes = "gpt_neox.layers.0.attention.dense gpt_neox.layers.0.attention.query_key_value "
            "gpt_neox.layers.0.mlp.dense_4h_to_h gpt_neox.layers.0.mlp.dense_h_to_4h",
     .no = "embed_out gpt_neox.embed_in"},
    {.types = "gptj",
     .yes = "transformer.h.0.attn.k_proj transformer.h.0.attn.out_proj transformer.h.0.attn.q_proj "
            "transformer.h.0.attn.v_proj transformer.h.0.mlp.fc_in",
     .no = "lm_head transformer.wte"},
    {.types = "gpt_neo",
     .tied = true,
     .yes = "transformer.h.0.attn.attention.k_proj transformer.h.0.attn.attention.out_proj "
            "transformer.h.0.attn.attention.q_proj transformer.h.0.attn.attention.v_proj "
            "transformer.h.0.mlp.c_fc",
     .no = "transformer.wpe transformer.wte"},
    {.types = "codegen",
     .yes = "transformer.h.0.attn.out_proj transformer.h.0.attn.qkv_proj transformer.h.0.mlp.fc_in "
            "transformer.h.0.mlp.fc_out",
     .no = "lm_head transformer.wte"},
    {.types = "gpt_bigcode",
     .yes = "transformer.h.0.attn.c_attn transformer.h.0.attn.c_proj transformer.h.0.mlp.c_fc "
            "transformer.h.0.mlp.c_proj",
     .no = "lm_head transformer.wpe transformer.wte"},
    {.types = "bloom",
     .yes = "transformer.h.0.mlp.dense_4h_to_h transformer.h.0.mlp.dense_h_to_4h "
            "transformer.h.0.self_attention.dense transformer.h.0.self_attention.query_key_value",
     .no = "lm_head transformer.word_embeddings"},
    {.types = "mpt",
     .yes = "transformer.blocks.0.attn.Wqkv transformer.blocks.0.attn.out_proj "
            "transformer.blocks.0.ffn.down_proj transformer.blocks.0.ffn.up_proj",
     .no = "lm_head transformer.wte"},
    {.types = "opt",
     .yes = "model.decoder.layers.0.fc1 model.decoder.layers.0.self_attn.k_proj "
            "model.decoder.layers.0.self_attn.out_proj model.decoder.layers.0.self_attn.q_proj "
            "model.decoder.layers.0.self_attn.v_proj",
     .no = "lm_head model.decoder.embed_positions model.decoder.embed_tokens"},
    {.types = "falcon",
     .no = "lm_head transformer.h.0.mlp.dense_4h_to_h transformer.h.0.mlp.dense_h_to_4h "
           "transformer.h.0.self_attention.dense transformer.h.0.self_attention.query_key_value"},
    {.types = "mamba",
     .yes = "backbone.layers.0.mixer.dt_proj backbone.layers.0.mixer.in_proj "
            "backbone.layers.0.mixer.out_proj backbone.layers.0.mixer.x_proj",
     .no = "backbone.embeddings lm_head"},
    {.types = "mamba2",
     .yes = "backbone.layers.0.mixer.in_proj backbone.layers.0.mixer.out_proj",
     .no = "backbone.embeddings lm_head"},
    {.types = "falcon_h1 bamba",
     .yes = "model.layers.0.feed_forward.down_proj model.layers.0.feed_forward.gate_proj "
            "model.layers.0.feed_forward.up_proj model.layers.0.mamba.in_proj "
            "model.layers.0.mamba.out_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "jamba",
     .yes = "model.layers.0.feed_forward.down_proj model.layers.0.feed_forward.up_proj "
            "model.layers.0.mamba.in_proj model.layers.0.mamba.x_proj model.layers.4.self_attn.o_proj",
     .no = "lm_head model.embed_tokens model.layers.1.feed_forward.experts.0.down_proj "
           "model.layers.1.feed_forward.experts.0.gate_proj "
           "model.layers.1.feed_forward.experts.0.up_proj"},
    {.types = "zamba",
     .yes = "model.layers.0.mamba.in_proj model.layers.1.linear "
            "model.layers.1.shared_transf.feed_forward.gate_proj "
            "model.layers.1.shared_transf.self_attn.k_proj model.layers.1.shared_transf.self_attn.q_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "zamba",
     .tied = true,
     .yes = "model.layers.0.mamba.in_proj model.layers.0.mamba.out_proj model.layers.1.linear",
     .no = "model.embed_tokens model.layers.1.shared_transf.feed_forward.down_proj "
           "model.layers.1.shared_transf.feed_forward.up_proj "
           "model.layers.1.shared_transf.self_attn.k_proj model.layers.1.shared_transf.self_attn.q_proj"},
    {.types = "zamba2",
     .yes = "model.layers.0.mamba.in_proj model.layers.1.linear "
            "model.layers.1.shared_transformer.feed_forward.gate_up_proj "
            "model.layers.1.shared_transformer.self_attn.k_proj "
            "model.layers.1.shared_transformer.self_attn.q_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "zamba2",
     .tied = true,
     .yes = "model.layers.0.mamba.in_proj model.layers.0.mamba.out_proj model.layers.1.linear",
     .no = "model.embed_tokens model.layers.1.shared_transformer.feed_forward.down_proj "
           "model.layers.1.shared_transformer.feed_forward.gate_up_proj_adapter_list.0.0 "
           "model.layers.1.shared_transformer.self_attn.k_proj "
           "model.layers.1.shared_transformer.self_attn.q_proj"},
    {.types = "recurrent_gemma",
     .yes = "model.layers.0.mlp_block.down_proj model.layers.0.mlp_block.up_proj "
            "model.layers.0.temporal_block.linear_x model.layers.2.temporal_block.k_proj "
            "model.layers.2.temporal_block.q_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "rwkv",
     .yes = "rwkv.blocks.0.attention.key rwkv.blocks.0.attention.output "
            "rwkv.blocks.0.attention.receptance rwkv.blocks.0.attention.value "
            "rwkv.blocks.0.feed_forward.key",
     .no = "head rwkv.embeddings"},
    {.types = "xlstm",
     .yes = "backbone.blocks.0.ffn.proj_down backbone.blocks.0.ffn.proj_up_gate "
            "backbone.blocks.0.mlstm_layer.igate_preact backbone.blocks.0.mlstm_layer.ogate_preact "
            "backbone.blocks.0.mlstm_layer.q",
     .no = "backbone.embeddings lm_head"},
    {.types = "lfm2",
     .yes = "model.layers.0.feed_forward.w1 model.layers.0.self_attn.k_proj "
            "model.layers.0.self_attn.out_proj model.layers.0.self_attn.q_proj "
            "model.layers.0.self_attn.v_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "mixtral phimoe",
     .yes = "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.q_proj model.layers.0.self_attn.v_proj",
     .no = "lm_head model.embed_tokens model.layers.0.block_sparse_moe.experts.0.w1 "
           "model.layers.0.block_sparse_moe.gate"},
    {.types = "qwen2_moe",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.v_proj model.layers.1.mlp.shared_expert.gate_proj",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.experts.0.down_proj "
           "model.layers.1.mlp.experts.0.gate_proj model.layers.1.mlp.experts.0.up_proj"},
    {.types = "qwen3_moe",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.gate_proj model.layers.0.mlp.up_proj "
            "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.experts.0.down_proj "
           "model.layers.1.mlp.experts.0.gate_proj model.layers.1.mlp.experts.0.up_proj"},
    {.types = "qwen3_next",
     .yes = "model.layers.0.linear_attn.in_proj_ba model.layers.0.linear_attn.out_proj "
            "model.layers.0.mlp.shared_expert.gate_proj model.layers.0.mlp.shared_expert_gate "
            "model.layers.3.self_attn.o_proj",
     .no = "lm_head model.embed_tokens model.layers.0.mlp.experts.0.down_proj "
           "model.layers.0.mlp.experts.0.gate_proj model.layers.0.mlp.experts.0.up_proj"},
    {.types = "qwen3_5_moe_text",
     .yes = "model.layers.0.linear_attn.in_proj_a model.layers.0.linear_attn.in_proj_qkv "
            "model.layers.0.linear_attn.out_proj model.layers.0.mlp.shared_expert.gate_proj "
            "model.layers.0.mlp.shared_expert_gate",
     .no = "lm_head model.embed_tokens model.layers.0.mlp.experts.0.down_proj "
           "model.layers.0.mlp.experts.0.gate_proj model.layers.0.mlp.experts.0.up_proj"},
    {.types = "deepseek_v2 deepseek_v3",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.self_attn.kv_b_proj "
            "model.layers.0.self_attn.q_a_proj model.layers.1.mlp.shared_experts.down_proj",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.experts.0.down_proj "
           "model.layers.1.mlp.experts.0.gate_proj model.layers.1.mlp.experts.0.up_proj"},
    {.types = "deepseek_v32",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj "
            "model.layers.0.self_attn.indexer.wq_b model.layers.0.self_attn.kv_b_proj "
            "model.layers.0.self_attn.q_a_proj",
     .no = "lm_head model.embed_tokens model.layers.0.self_attn.indexer.weights_proj "
           "model.layers.3.mlp.experts.0.gate_proj model.layers.3.mlp.experts.0.up_proj"},
    {.types = "deepseek_v4",
     .yes = "model.layers.0.attn.wkv model.layers.0.attn.wo_b model.layers.0.attn.wq_a "
            "model.layers.0.attn.wq_b model.layers.0.ffn.shared_experts.w1",
     .no = "head model.embed_tokens model.layers.0.attn.compressor.wkv model.layers.0.attn.wo_a "
           "model.layers.0.ffn.gate"},
    {.types = "glm4_moe",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.v_proj model.layers.1.mlp.shared_experts.gate_proj",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.experts.0.down_proj "
           "model.layers.1.mlp.experts.0.gate_proj model.layers.1.mlp.experts.0.up_proj"},
    {.types = "gpt_oss",
     .yes = "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.q_proj model.layers.0.self_attn.v_proj",
     .no = "lm_head model.embed_tokens model.layers.0.mlp.router"},
    {.types = "olmoe",
     .yes = "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.q_proj model.layers.0.self_attn.v_proj",
     .no = "lm_head model.embed_tokens model.layers.0.mlp.experts.0.down_proj "
           "model.layers.0.mlp.experts.0.gate_proj model.layers.0.mlp.experts.0.up_proj"},
    {.types = "granitemoehybrid",
     .yes = "model.layers.0.mamba.in_proj model.layers.0.mamba.out_proj "
            "model.layers.0.shared_mlp.input_linear model.layers.0.shared_mlp.output_linear "
            "model.layers.1.self_attn.k_proj",
     .no = "lm_head model.embed_tokens model.layers.0.block_sparse_moe.router.layer"},
    {.types = "jetmoe",
     .yes = "model.layers.0.mlp.router.layer model.layers.0.self_attention.kv_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "dbrx",
     .yes = "transformer.blocks.0.ffn.router.layer transformer.blocks.0.norm_attn_norm.attn.Wqkv "
            "transformer.blocks.0.norm_attn_norm.attn.out_proj",
     .no = "lm_head transformer.wte"},
    {.types = "afmoe",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.self_attn.k_proj "
            "model.layers.0.self_attn.q_proj model.layers.1.mlp.router.gate",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.experts.0.down_proj "
           "model.layers.1.mlp.experts.0.gate_proj model.layers.1.mlp.experts.0.up_proj"},
    {.types = "hunyuan_v1_moe",
     .yes = "model.layers.0.mlp.gate.wg model.layers.0.mlp.shared_mlp.down_proj "
            "model.layers.0.mlp.shared_mlp.gate_proj model.layers.0.mlp.shared_mlp.up_proj "
            "model.layers.0.self_attn.k_proj",
     .no = "lm_head model.embed_tokens model.layers.0.mlp.experts.0.down_proj "
           "model.layers.0.mlp.experts.0.gate_proj model.layers.0.mlp.experts.0.up_proj"},
    {.types = "hy_v3",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.v_proj model.layers.1.mlp.shared_mlp.gate_proj",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.experts.0.down_proj "
           "model.layers.1.mlp.experts.0.gate_proj model.layers.1.mlp.experts.0.up_proj"},
    {.types = "hy_v4",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.self_attn.indexer.weights_proj "
            "model.layers.0.self_attn.kv_a_proj_with_mqa model.layers.0.self_attn.o_proj "
            "model.layers.1.mlp.shared_experts.down_proj",
     .no = "lm_head model.embed_tokens model.layers.1.mlp.gate"},
    {.types = "llama4_text",
     .yes = "model.layers.0.feed_forward.shared_expert.down_proj "
            "model.layers.0.feed_forward.shared_expert.up_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.v_proj model.layers.0.feed_forward.gate_proj",
     .no = "lm_head model.embed_tokens model.layers.0.feed_forward.router"},
    {.types = "minimax",
     .yes = "model.layers.0.self_attn.k_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.q_proj model.layers.0.self_attn.v_proj "
            "model.layers.1.self_attn.out_proj",
     .no = "lm_head model.embed_tokens model.layers.0.block_sparse_moe.experts.0.w1 "
           "model.layers.0.block_sparse_moe.gate"},
    {.types = "kimi_linear",
     .yes = "model.layers.0.block_sparse_moe.down_proj model.layers.0.self_attn.b_proj "
            "model.layers.0.self_attn.g_a_proj model.layers.0.self_attn.o_proj "
            "model.layers.1.block_sparse_moe.shared_experts.down_proj",
     .no = "lm_head model.embed_tokens model.layers.1.block_sparse_moe.experts.0.w1 "
           "model.layers.1.block_sparse_moe.gate"},
    {.types = "nemotron_h",
     .yes = "backbone.layers.0.mixer.in_proj backbone.layers.1.mixer.shared_experts.down_proj "
            "backbone.layers.2.mixer.k_proj backbone.layers.2.mixer.q_proj "
            "backbone.layers.3.mixer.down_proj",
     .no = "backbone.embeddings backbone.layers.1.mixer.experts.0.down_proj "
           "backbone.layers.1.mixer.experts.0.up_proj backbone.layers.1.mixer.gate lm_head"},
    {.types = "zaya",
     .yes = "model.layers.0.mlp.gate.down_proj model.layers.0.mlp.gate.router_mlp.fc1 "
            "model.layers.0.mlp.gate.router_mlp.out_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.qkv_proj.k_proj",
     .no = "lm_head model.embed_tokens"},
    {.types = "longcat_flash",
     .yes = "model.layers.0.mlp.router.classifier model.layers.0.mlps.0.down_proj "
            "model.layers.0.mlps.0.gate_proj model.layers.0.mlps.0.up_proj "
            "model.layers.0.self_attn.0.kv_a_proj_with_mqa",
     .no = "lm_head model.embed_tokens model.layers.0.mlp.experts.0.down_proj "
           "model.layers.0.mlp.experts.0.gate_proj model.layers.0.mlp.experts.0.up_proj"},
    {.types = "hrm_text",
     .yes = "model.H_module.layers.0.attn.o_proj model.H_module.layers.0.mlp.down_proj",
     .no = "lm_head model.embed_tokens",
     .refuse = "model.H_module.layers.0.attn.gqkv_proj model.H_module.layers.0.mlp.gate_up_proj"},
    {.types = "bert",
     .yes = "bert.encoder.layer.0.attention.output.dense bert.encoder.layer.0.attention.self.key "
            "bert.encoder.layer.0.attention.self.query bert.encoder.layer.0.attention.self.value "
            "bert.encoder.layer.0.intermediate.dense",
     .no = "bert.embeddings.position_embeddings bert.embeddings.token_type_embeddings "
           "bert.embeddings.word_embeddings cls.predictions.decoder"},
    {.types = "bert",
     .tied = true,
     .yes = "bert.encoder.layer.0.attention.output.dense bert.encoder.layer.0.attention.self.key "
            "bert.encoder.layer.0.attention.self.query bert.encoder.layer.0.attention.self.value "
            "bert.encoder.layer.0.intermediate.dense",
     .no = "bert.embeddings.position_embeddings bert.embeddings.token_type_embeddings "
           "bert.embeddings.word_embeddings"},
    {.types = "roberta",
     .yes = "lm_head.dense roberta.encoder.layer.0.attention.output.dense "
            "roberta.encoder.layer.0.attention.self.key roberta.encoder.layer.0.attention.self.query "
            "roberta.encoder.layer.0.attention.self.value",
     .no = "lm_head.decoder roberta.embeddings.position_embeddings "
           "roberta.embeddings.token_type_embeddings roberta.embeddings.word_embeddings"},
    {.types = "electra",
     .yes = "electra.embeddings_project electra.encoder.layer.0.attention.output.dense "
            "electra.encoder.layer.0.attention.self.key electra.encoder.layer.0.attention.self.query "
            "electra.encoder.layer.0.attention.self.value",
     .no = "electra.embeddings.position_embeddings electra.embeddings.token_type_embeddings "
           "electra.embeddings.word_embeddings generator_lm_head"},
    {.types = "xlnet", .yes = "transformer.layer.0.ff.layer_1", .no = "lm_loss transformer.word_embedding"},
    {.types = "xlm",
     .yes = "transformer.attentions.0.k_lin transformer.attentions.0.out_lin "
            "transformer.attentions.0.q_lin transformer.attentions.0.v_lin transformer.ffns.0.lin1",
     .no = "pred_layer.proj transformer.embeddings transformer.position_embeddings"},
    {.types = "ctrl",
     .yes = "transformer.h.0.ffn.0 transformer.h.0.multi_head_attention.Wk "
            "transformer.h.0.multi_head_attention.Wq transformer.h.0.multi_head_attention.Wv "
            "transformer.h.0.multi_head_attention.dense",
     .no = "lm_head transformer.w"},
    {.types = "biogpt",
     .yes = "biogpt.layers.0.fc1 biogpt.layers.0.self_attn.k_proj biogpt.layers.0.self_attn.out_proj "
            "biogpt.layers.0.self_attn.q_proj biogpt.layers.0.self_attn.v_proj",
     .no = "biogpt.embed_positions biogpt.embed_tokens output_projection"},
    {.types = "whisper",
     .yes = "model.decoder.layers.0.encoder_attn.k_proj model.decoder.layers.0.encoder_attn.out_proj "
            "model.decoder.layers.0.encoder_attn.q_proj model.decoder.layers.0.encoder_attn.v_proj "
            "model.decoder.layers.0.fc1",
     .no = "model.decoder.embed_positions model.decoder.embed_tokens proj_out"},
    {.types = "prophetnet",
     .yes = "prophetnet.decoder.layers.0.cross_attn.key_proj "
            "prophetnet.decoder.layers.0.cross_attn.query_proj "
            "prophetnet.decoder.layers.0.feed_forward.intermediate "
            "prophetnet.decoder.layers.0.self_attn.key_proj "
            "prophetnet.decoder.layers.0.self_attn.query_proj",
     .no = "lm_head prophetnet.decoder.ngram_embeddings prophetnet.decoder.position_embeddings "
           "prophetnet.word_embeddings prophetnet.encoder.position_embeddings"},
    {.types = "blt",
     .yes = "model.global_transformer.layers.0.mlp.down_proj "
            "model.global_transformer.layers.0.mlp.up_proj "
            "model.global_transformer.layers.0.self_attn.o_proj "
            "model.global_transformer.layers.0.self_attn.v_proj "
            "model.local_decoder.cross_attn_layers.0.o_proj",
     .no = "lm_head model.encoder_hash_tok_embedding model.local_encoder.embed_tokens "
           "model.patcher.embed_tokens model.patcher.lm_head"},
    {.types = "gemma3",
     .yes = "language_model.model.layers.0.mlp.down_proj language_model.model.layers.0.mlp.gate_proj "
            "language_model.model.layers.0.mlp.up_proj language_model.model.layers.0.self_attn.k_proj "
            "language_model.model.layers.0.self_attn.o_proj",
     .no = "language_model.lm_head language_model.model.embed_tokens "
           "vision_tower.embeddings.position_embedding vision_tower.head.attention.out_proj"},
    {.types = "mistral3",
     .yes = "language_model.model.layers.0.mlp.down_proj language_model.model.layers.0.self_attn.k_proj "
            "language_model.model.layers.0.self_attn.v_proj "
            "vision_tower.transformer.layers.0.attention.k_proj "
            "vision_tower.transformer.layers.0.attention.v_proj",
     .no = "language_model.lm_head language_model.model.embed_tokens"},
    {.types = "qwen2_5_vl",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.mlp.up_proj model.layers.0.self_attn.o_proj "
            "model.layers.0.self_attn.v_proj visual.blocks.0.attn.qkv",
     .no = "lm_head model.embed_tokens"},
    {.types = "qwen3_5",
     .yes = "model.language_model.layers.0.linear_attn.in_proj_a "
            "model.language_model.layers.0.linear_attn.in_proj_z "
            "model.language_model.layers.0.mlp.gate_proj model.language_model.layers.3.self_attn.o_proj "
            "model.visual.blocks.0.attn.proj",
     .no = "lm_head model.language_model.embed_tokens model.visual.pos_embed"},
    {.types = "llava",
     .yes = "language_model.model.layers.0.mlp.down_proj language_model.model.layers.0.mlp.up_proj "
            "language_model.model.layers.0.self_attn.o_proj "
            "language_model.model.layers.0.self_attn.v_proj vision_tower.encoder.layers.0.mlp.fc1",
     .no = "language_model.lm_head language_model.model.embed_tokens "
           "vision_tower.embeddings.position_embedding"},
    {.types = "mllama",
     .yes = "language_model.model.layers.0.mlp.down_proj language_model.model.layers.0.mlp.up_proj "
            "language_model.model.layers.0.self_attn.o_proj "
            "language_model.model.layers.0.self_attn.v_proj "
            "language_model.model.layers.3.cross_attn.o_proj",
     .no = "language_model.lm_head language_model.model.embed_tokens "
           "vision_model.gated_positional_embedding.tile_embedding "
           "vision_model.post_tile_positional_embedding.embedding "
           "vision_model.pre_tile_positional_embedding.embedding"},
    {.types = "mistral_large4",
     .yes = "layers.0.attention.indexer.wk layers.0.attention.wkv_a_with_mqa layers.0.attention.wo "
            "layers.0.feed_forward.w1 patch_merger.merging_layer",
     .no = "layers.0.attention.indexer.weights_proj layers.1.experts.0.w1 layers.1.gate output "
           "tok_embeddings"},
    {.types = "step3p7",
     .yes = "model.layers.0.mlp.down_proj model.layers.0.self_attn.g_proj model.layers.0.self_attn.q_proj "
            "model.layers.3.share_expert.gate_proj vision_model.transformer.resblocks.0.mlp.c_fc",
     .no = "lm_head model.embed_tokens model.layers.3.moe.gate",
     .refuse = "vision_model.transformer.resblocks.0.attn.in_proj_weight"},
    {.types = "molmo2",
     .yes = "model.transformer.blocks.0.mlp.ff_out model.vision_backbone.image_pooling_2d.wk "
            "model.vision_backbone.image_pooling_2d.wq model.vision_backbone.image_projector.w1 "
            "model.vision_backbone.image_vit.transformer.resblocks.0.attention.wk",
     .no = "lm_head",
     .refuse = "model.transformer.blocks.0.mlp.ff_proj model.transformer.blocks.0.self_attn.att_proj"},
    {.types = "kimi_k25",
     .yes = "language_model.model.blocks.0.mlp.down_proj language_model.model.blocks.0.mlp.up_proj "
            "language_model.model.blocks.0.self_attn.kv_b_proj "
            "language_model.model.blocks.0.self_attn.q_a_proj "
            "language_model.model.blocks.1.mlp.shared_experts.down_proj",
     .no = "language_model.lm_head language_model.model.blocks.1.mlp.experts.0.down_proj "
           "language_model.model.blocks.1.mlp.experts.0.gate_proj "
           "language_model.model.blocks.1.mlp.experts.0.up_proj language_model.model.blocks.1.mlp.gate",
     .refuse = "vision_tower.encoder.blocks.0.wqkv"},
    {.types = "blip-2",
     .yes = "language_model.model.decoder.layers.0.fc1 "
            "language_model.model.decoder.layers.0.self_attn.k_proj "
            "language_model.model.decoder.layers.0.self_attn.out_proj "
            "language_model.model.decoder.layers.0.self_attn.q_proj "
            "language_model.model.decoder.layers.0.self_attn.v_proj",
     .no = "language_model.lm_head language_model.model.decoder.embed_positions "
           "qformer.encoder.layer.0.attention.attention.key "
           "qformer.encoder.layer.0.attention.attention.value "
           "qformer.encoder.layer.0.intermediate_query.dense"},
    {.types = "t5",
     .yes = "decoder.block.0.layer.0.SelfAttention.k decoder.block.0.layer.0.SelfAttention.o "
            "decoder.block.0.layer.0.SelfAttention.q decoder.block.0.layer.0.SelfAttention.v "
            "decoder.block.0.layer.1.EncDecAttention.k",
     .no = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias "
           "decoder.block.0.layer.2.DenseReluDense.wo decoder.embed_tokens encoder.embed_tokens lm_head"},
    {.types = "musicgen_decoder",
     .yes = "model.decoder.layers.0.encoder_attn.k_proj model.decoder.layers.0.encoder_attn.out_proj "
            "model.decoder.layers.0.encoder_attn.q_proj model.decoder.layers.0.encoder_attn.v_proj "
            "model.decoder.layers.0.fc1",
     .no = "lm_heads.0 model.decoder.embed_tokens.0"},
    {.types = "fuyu",
     .yes = "language_model.model.layers.0.mlp.dense_4h_to_h "
            "language_model.model.layers.0.mlp.dense_h_to_4h "
            "language_model.model.layers.0.self_attn.dense "
            "language_model.model.layers.0.self_attn.query_key_value vision_embed_tokens",
     .no = "language_model.lm_head language_model.model.embed_tokens"},
};

static void check_names(const char *types, bool tied, const char *names, nbl__linear_verdict wanted)
{
    char type[64], name[256];
    for (const char *t = types; *t; t += strspn(t, " ")) {
        size_t type_length = strcspn(t, " ");
        snprintf(type, sizeof type, "%.*s", (int)type_length, t);
        t += type_length;
        for (const char *n = names; n && *n; n += strspn(n, " ")) {
            size_t length = strcspn(n, " ");
            /* Torch's own attention has a parameter without a module. */
            bool bare = length > 7 && memcmp(n + length - 7, "_weight", 7) == 0;
            snprintf(name, sizeof name, "%.*s%s", (int)length, n, bare ? "" : ".weight");
            n += length;
            nbl__linear_verdict verdict = ask(type, tied, name);
            if (verdict != wanted) fail_msg("%s: %s: %d, wanted %d", type, name, (int)verdict, (int)wanted);
        }
    }
}

static void architectures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_names(cases[i].types, cases[i].tied, cases[i].yes, NBL_LINEAR_YES);
        check_names(cases[i].types, cases[i].tied, cases[i].no, NBL_LINEAR_NO);
        check_names(cases[i].types, cases[i].tied, cases[i].refuse, NBL_LINEAR_REFUSE);
    }
}

static void transposed_models_are_refused(void **state)
{
    (void)state;
    static const char *const types[] = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_int_equal(ask(types[i], true, "transformer.h.0.attn.c_attn.weight"), NBL_LINEAR_REFUSE);
        assert_int_equal(ask(types[i], true, "transformer.wte.weight"), NBL_LINEAR_REFUSE);
        assert_non_null(strstr(nbl__hf_refusal(types[i]), "transposed"));
    }
    /* The same names, as linear layers. */
    assert_int_equal(ask("gpt_bigcode", true, "transformer.h.0.attn.c_attn.weight"), NBL_LINEAR_YES);
    assert_null(strstr(nbl__hf_refusal("molmo2"), "transposed"));
    assert_non_null(nbl__hf_refusal(NULL));
}

static void unknown_types_get_the_generic_rule(void **state)
{
    (void)state;
    static const char *const types[] = {NULL, "", "a-model-of-tomorrow", "llam", "llama2"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_int_equal(ask(types[i], false, "model.layers.0.self_attn.q_proj.weight"), NBL_LINEAR_YES);
        assert_int_equal(ask(types[i], false, "model.layers.3.mlp.output_gate.weight"), NBL_LINEAR_YES);
        assert_int_equal(ask(types[i], false, "model.layers.3.mlp.gate.weight"), NBL_LINEAR_NO);
        assert_int_equal(ask(types[i], false, "model.layers.3.mlp.experts.17.w1.weight"), NBL_LINEAR_NO);
        assert_int_equal(ask(types[i], false, "model.embed_tokens.weight"), NBL_LINEAR_NO);
        assert_int_equal(ask(types[i], false, "lm_head.weight"), NBL_LINEAR_NO);
        assert_int_equal(ask(types[i], false, "language_model.lm_head.weight"), NBL_LINEAR_NO);
        assert_int_equal(ask(types[i], false, "transformer.output_layer.weight"), NBL_LINEAR_NO);
        assert_int_equal(ask(types[i], false, "output.weight"), NBL_LINEAR_NO);
    }
}

static void only_matrices_called_weight(void **state)
{
    (void)state;
    static const char name[] = "model.layers.0.mlp.up_proj.weight";
    for (int rank = 0; rank <= 4; rank++)
        assert_int_equal(nbl__hf_is_linear("llama", false, name, rank),
                         rank == 2 ? NBL_LINEAR_YES : NBL_LINEAR_NO);
    static const char *const names[] = {
        "",
        ".weight",
        "weight",
        "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.0.mlp.up_proj.weight.absmax",
        "model.layers.0.mlp.experts.gate_up_proj_bias",
        "model.layers.0.mixer.A_log",
        "vision_tower.head.attention.in_proj_weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(ask("llama", false, names[i]), NBL_LINEAR_NO);
    assert_int_equal(ask("llama", false, "multi_modal_projector.weight"), NBL_LINEAR_YES);
}

/* A pattern is about whole components. */
static void similar_names(void **state)
{
    (void)state;
    static const char *const yes[] = {"head.weight",           "output.weight",    "experts.gate_proj.weight",
                                      "experts.1a.w1.weight",  "gate_proj.weight", "linear_gate.weight",
                                      "not_lm_head.weight",    "mtp_proj.weight",  "router.proj.weight",
                                      "modality_router.weight"};
    char name[128];
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        snprintf(name, sizeof name, "model.layers.0.%s", yes[i]);
        if (ask(NULL, true, name) != NBL_LINEAR_YES) fail_msg("%s", name);
    }
    static const char *const no[] = {"head.weight",       "output.weight",       "score.weight",
                                     "lm_heads.0.weight", "experts.0.w1.weight", "mtp.layers.0.mlp.up.weight",
                                     "q_norm.weight"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (ask(NULL, true, no[i]) != NBL_LINEAR_NO) fail_msg("%s", no[i]);
}

static void layers_behind_the_last(void **state)
{
    (void)state;
    assert_false(nbl__hf_is_extra_layer(47, "model.layers.46.mlp.gate.weight"));
    assert_true(nbl__hf_is_extra_layer(47, "model.layers.47.mlp.gate.weight"));
    assert_true(nbl__hf_is_extra_layer(47, "model.layers.47.eh_proj.weight"));
    assert_true(nbl__hf_is_extra_layer(47, "model.layers.470.eh_proj.weight"));
    assert_true(nbl__hf_is_extra_layer(16, "model.language_model.layers.16.self_attn.q_proj.weight"));
    assert_true(nbl__hf_is_extra_layer(16, "language_model.model.layers.16.self_attn.q_proj.weight"));
    /* Other stacks have other depths. */
    assert_false(nbl__hf_is_extra_layer(16, "model.vision_tower.encoder.layers.20.mlp.fc1.weight"));
    assert_false(nbl__hf_is_extra_layer(0, "model.layers.47.eh_proj.weight"));
    assert_false(nbl__hf_is_extra_layer(47, "model.layers.x.eh_proj.weight"));
    assert_false(nbl__hf_is_extra_layer(47, "model.layers..eh_proj.weight"));
    assert_false(nbl__hf_is_extra_layer(47, "model.layers."));
    assert_false(nbl__hf_is_extra_layer(47, "lm_head.weight"));
    assert_true(nbl__hf_is_extra_layer(47, "model.layers.99999999999999999999.eh_proj.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(architectures),
        cmocka_unit_test(transposed_models_are_refused),
        cmocka_unit_test(unknown_types_get_the_generic_rule),
        cmocka_unit_test(only_matrices_called_weight),
        cmocka_unit_test(similar_names),
        cmocka_unit_test(layers_behind_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
