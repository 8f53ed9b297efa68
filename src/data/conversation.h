/* conversation.h - the conversation of a row, between its JSON and its text. For format_chat.c.
 *
 *   format_chat.c           messages of the row → turns; text and masks → parts of the example text
 *   conversation_render.c   turns → messages as JSON → text, by the chat template
 *   conversation_probe.c    finds which bytes of the text are a turn's content */
#ifndef NBL_CONVERSATION_H
#define NBL_CONVERSATION_H

#include "data/example.h"

typedef struct nbl__turn {
    const nbl__json *message; /* NULL: the turn is the row's member "system" */
    const char *role;         /* "human" is "user", "gpt" is "assistant" */
    nbl_string content;       /* text NULL: the message has tool calls and no content */
    bool plain;               /* the message has a role and a content, nothing else */
    bool calls;               /* the message has tool calls */
    bool trained;
    bool wanted;       /* gets a probe: it is trained, or its end token is */
    size_t begin, end; /* bytes of its content in the text; set by conversation_probe.c */
} nbl__turn;

typedef struct nbl__conversation {
    const nbl__row_encoder *encoder;
    const nbl__dataset_config *dataset;
    nbl__arena *arena;
    nbl__turn *turns;
    int64_t count;
    nbl_string tools; /* list of tools as JSON; text NULL: none */
} nbl__conversation;

enum { NBL_HIDE_NONE = -1, NBL_HIDE_ALL = -2, NBL_PLACEHOLDER = 32 };

/* Which turns of a conversation are rendered, and which contents are replaced. */
typedef struct nbl__view {
    int64_t count;         /* number of turns, from the first */
    int64_t hide;          /* index of the turn whose content becomes `dummy`; NBL_HIDE_NONE; or
                              NBL_HIDE_ALL: each content becomes its nbl__placeholder */
    const char *dummy;     /* used with hide >= 0 */
    int64_t without_calls; /* index of the turn rendered without its tool calls; -1: none */
} nbl__view;

/* Writes the text that stands for a turn in NBL_HIDE_ALL; returns its length. */
int nbl__placeholder(char text[NBL_PLACEHOLDER], int64_t turn);
nbl_status nbl__conversation_render(const nbl__conversation *conversation, nbl__view view,
                                    nbl_rendering **rendering);
/* Sets conversation->tools to the list of tools as JSON, in the arena. from_row: members that are null
 * are left out. */
nbl_status nbl__conversation_tools(nbl__conversation *conversation, const nbl__json *tools, bool from_row);

/* Appends a probe for each wanted turn to the parts. parts[0] must be the text of the
 * conversation, with room for one more part per turn. */
nbl_status nbl__conversation_probe(nbl__conversation *conversation, nbl__example_text *example_text);

#endif
