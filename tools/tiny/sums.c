/* sums.c - the data of examples/train: sums of two digits, asked in several ways.
 *
 *     sums.jsonl              90 of the 100 pairs, ten ways: the fine-tuning
 *     sums-new-wordings.jsonl the same pairs, three other ways
 *     sums-new-pairs.jsonl    the ten other pairs, the ten ways */
#include "tiny.h"

/* The first TRAINED_WAYS are fine-tuned. */
static const char *const ways[SUM_WAYS] = {
    "{a}+{b}=?",
    "{a} + {b} = ?",
    "{a}+{b}",
    "What is {a} plus {b}?",
    "What is {a} + {b}?",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
    "{a} plus {b}",
    "How much is {a} + {b}?",
    "Please add {a} and {b}.",
    "{a} + {b}",
};

void ask_sum(int way, int a, int b, chat *c)
{
    slots s = {0};
    put(&s, 0, "%d", a);
    put(&s, 1, "%d", b);
    put(&s, 2, "%d", a + b);
    fill(c->question, ways[way], &s);
    fill(c->answer, "{a} + {b} = {c}", &s);
}

bool is_held_out_pair(int a, int b) /* one in every row and column of the table of sums */
{
    return b == (3 * a + 4) % 10;
}

/* Writes all pairs that are held out, or all that are not, in the ways from first_way to
 * last_way. */
static void write_file(const char *folder, const char *name, int first_way, int last_way, bool held_out)
{
    FILE *file = create(folder, name);
    for (int a = 0; a < 10; a++)
        for (int b = 0; b < 10; b++)
            for (int way = first_way; way < last_way && is_held_out_pair(a, b) == held_out; way++) {
                chat c;
                ask_sum(way, a, b, &c);
                write_chat(file, &c);
            }
    finish(file, name);
}

void write_sums(const char *folder)
{
    write_file(folder, "sums.jsonl", 0, TRAINED_WAYS, false);
    write_file(folder, "sums-new-wordings.jsonl", TRAINED_WAYS, SUM_WAYS, false);
    write_file(folder, "sums-new-pairs.jsonl", 0, TRAINED_WAYS, true);
}
