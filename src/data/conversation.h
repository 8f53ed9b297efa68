/* conversation.h - a conversation of a row, between its JSON and its text; for format_chat.c.
 *
 *   format_chat.c   the row's messages become turns; what is trained becomes parts of a draft
 *   conversation_render.c   turns as JSON, rendered by the template
 *   conversation_probe.c    where in the text a turn stands */
#ifndef NBL_TALK_H
#define NBL_TALK_H

#include "data/example.h"

typedef struct nbl__turn {
    const nbl__json *message; /* NULL: the row's own system text */
    const char *role;         /* by its usual name */
    nbl_string content;       /* text NULL: there is none beside the tool calls */
    bool plain;               /* nothing but a role and a text */
    bool calls;               /* it has tool calls */
    bool trained;
    bool wanted; /* its position in the text matters */
    size_t begin, end;
} nbl__turn;

typedef struct nbl__talk {
    const nbl__row_encoder *encoder;
    const nbl__dataset_config *dataset;
    nbl__arena *arena;
    nbl__turn *turns;
    int64_t count;
    nbl_string tools; /* JSON; text NULL: none */
} nbl__talk;

enum { NBL_HIDE_NONE = -1, NBL_HIDE_ALL = -2, NBL_PLACEHOLDER = 32 };

/* What of a conversation is rendered. */
typedef struct nbl__view {
    int64_t count; /* the first so many turns */
    int64_t hide;  /* the turn whose content is replaced by `dummy`, or one of the above: ALL replaces each
                              content by its nbl__placeholder */
    const char *dummy;     /* used with hide >= 0 */
    int64_t without_calls; /* the turn that is shown without its tool calls; -1: none */
} nbl__view;

/* Writes the text that stands for a turn in NBL_HIDE_ALL; returns its length. */
int nbl__placeholder(char text[NBL_PLACEHOLDER], int64_t turn);
nbl_status nbl__talk_render(const nbl__talk *talk, nbl__view view, nbl_rendering **rendering);
/* A list of tools as JSON into the arena; nulls are left out of it if `from_row`. */
nbl_status nbl__talk_tools(nbl__talk *talk, const nbl__json *tools, bool from_row);

/* A probe per wanted turn: parts[0] of the draft is the text; the others are added behind it. */
nbl_status nbl__talk_probe(nbl__talk *talk, nbl__example_text *example_text);

/* The value as text; members of objects that are null are left out unless `nulls`. */
void nbl__json_print(nbl__text *out, const nbl__json *value, bool nulls);

#endif
