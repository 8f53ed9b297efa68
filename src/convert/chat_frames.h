/* chat_frames.h - splits a chat template into the fixed texts that it writes around contents, by
 * rendering it.
 *
 * Example: "<|im_start|>user\n" CONTENT "<|im_end|>\n" gives user.before and user.behind. The
 * pieces are enough to write the same format in Ollama's template language. */
#ifndef NBL_CHAT_FRAMES_H
#define NBL_CHAT_FRAMES_H

#include "base/arena.h"

/* The texts before and behind a message's content. before.text NULL: the template has no such
 * message. */
typedef struct nbl__chat_frame {
    nbl_string before, behind;
} nbl__chat_frame;

/* A list is written as: begin item between item ... end. */
typedef struct nbl__chat_list {
    nbl_string begin, between, end; /* begin.text NULL: the template has no such list */
} nbl__chat_list;

typedef struct nbl__chat_frames {
    bool known;      /* false: the template cannot be split, and nothing below is set */
    nbl_string head; /* text before the first message if that is no system message */
    nbl__chat_frame system, user, assistant, tool;
    nbl_string default_system; /* the template's own system prompt, in the frame `system`; text NULL: none */
    nbl_string generation;     /* the generation prompt: what begins an answer */
    /* Tools: inside a system message, behind its content. */
    nbl__chat_list tools;
    bool whole_tools; /* an item is the JSON of the tool; false: of its "function" */
    /* Texts around the tools if there is no system message: instead of tools.begin and tools.end.
     * text NULL: not used, as there is a default system prompt. */
    nbl_string tools_alone;
    nbl_string tools_alone_end;
    /* Tool calls: instead of an assistant's content. An item is call_name, the name,
     * call_arguments, the arguments. */
    nbl__chat_list calls;
    nbl_string call_name, call_arguments;
} nbl__chat_frames;

/* Splits a template. bos, eos: values of the template's variables bos_token and eos_token; NULL:
 * undefined. strip_bos: remove bos from the beginning of a conversation. Strings live in the arena.
 * A template that cannot be split is no error: turns->known is false. Fails only if memory runs out
 * or the caller cancels. */
nbl_status nbl__chat_frames_find(nbl__arena *arena, nbl_string chat_template, const char *bos,
                                 const char *eos, bool strip_bos, nbl__chat_frames *turns);

#endif
