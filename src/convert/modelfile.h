/* modelfile.h - a chat template as the pieces of text that it writes around contents, found by rendering it. */
#ifndef NBL_MODELFILE_H
#define NBL_MODELFILE_H

#include "base/arena.h"

/* What stands before and behind a message's content. text NULL: the template has no such message. */
typedef struct nbl__turn_frame {
    nbl_string before, behind;
} nbl__turn_frame;

/* A list: `begin`, the items with `between` between them, `end`. */
typedef struct nbl__turn_list {
    nbl_string begin, between, end; /* begin.text NULL: there is none */
} nbl__turn_list;

typedef struct nbl__turns {
    bool known;      /* false: the template is more than frames around contents, and nothing below is set */
    nbl_string head; /* before the first message when that is no system message */
    nbl__turn_frame system, user, assistant, tool;
    nbl_string default_system; /* the template's own system prompt, in the frame `system`; text NULL: none */
    nbl_string generation;     /* what begins an answer */
    /* Tools: inside a system message, behind its content. */
    nbl__turn_list tools;
    bool whole_tools;           /* an item is the tool; else what is in its "function" */
    nbl_string tools_alone;     /* before `tools` when there is no system message, */
    nbl_string tools_alone_end; /* and behind; text NULL: `head` or the default system prompt is there */
    /* Calls: instead of an assistant's content. An item: call_name, the name, call_arguments, the arguments. */
    nbl__turn_list calls;
    nbl_string call_name, call_arguments;
} nbl__turns;

/* `bos` and `eos` are what the template's variables of these names are (NULL: none); with `strip_bos` the former is
 * left out at the beginning of a conversation. Texts are the arena's. Fails only for lack of memory. */
nbl_status nbl__turns_find(nbl__arena *arena, nbl_string chat_template, const char *bos, const char *eos,
                           bool strip_bos, nbl__turns *turns);

#endif
