/* harmony.h - answers in OpenAI's harmony format, which GPT-OSS writes.
 *
 *     <|channel|>analysis<|message|>The user asks…<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>
 *
 * An answer is a list of messages. Each has a header with a channel, and a body. The body of the
 * channel final is what the user reads. That of commentary is, too, unless the message is for a tool
 * (its header has "to="). Everything else is thinking. Decoding drops special tokens, so without this
 * an answer would read "analysisThe user asks…assistantfinalFour." */
#ifndef CLI_HARMONY_H
#define CLI_HARMONY_H

#include "nibble.h"

/* A text that grows. `text` is terminated; NULL: empty. */
typedef struct cli_growing {
    char *text;
    size_t size, room;
} cli_growing;

typedef enum cli_harmony_part {
    CLI_HARMONY_HEADER,
    CLI_HARMONY_THINKING,
    CLI_HARMONY_ANSWER
} cli_harmony_part;

typedef struct cli_harmony {
    bool known; /* the tokenizer has the format's tokens */
    bool on;    /* the prompt is in this format; without it every text is the answer */
    int32_t start, channel, message, end, constrain;
    cli_harmony_part part; /* of the next token */
    cli_growing header;    /* the header so far, special tokens left out but for <|channel|> as a line end */
    cli_growing thinking;  /* all thinking of the answer */
} cli_harmony;

void cli_growing_add(cli_growing *growing, nbl_string text);

/* Looks the format's tokens up. A tokenizer without them is not `known`. */
void cli_harmony_open(cli_harmony *harmony, const nbl_tokenizer *tokenizer);
/* Begins an answer to a prompt. The format is `on` if the prompt ends within a message of it. */
void cli_harmony_begin(cli_harmony *harmony, const nbl_ids *prompt);
/* The part that the text of a token belongs to. Moves on to the part of the next token. The text of a
 * token in a header is to be given to cli_harmony_header. */
cli_harmony_part cli_harmony_token(cli_harmony *harmony, int32_t id);
void cli_harmony_header(cli_harmony *harmony, nbl_string text);
void cli_harmony_close(cli_harmony *harmony);

/* The tokens that end an answer in this format whatever the model's files say: <|return|>, <|call|>,
 * <|endoftext|>. Returns how many the tokenizer has; 0 for a tokenizer without the format. */
enum { CLI_HARMONY_ENDS = 3 };
int cli_harmony_ends(const nbl_tokenizer *tokenizer, int32_t ids[CLI_HARMONY_ENDS]);

#endif
