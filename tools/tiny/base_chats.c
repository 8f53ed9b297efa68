/* base_chats.c - the chats of the base model: kinds of questions, each with several wordings and
 * slots that a function fills. Questions about sums have an answer that is honest for a model that
 * has not learned them.
 *
 *     {4, draw_noun, {"What is {a}?", …}, "{A} is {b}."}
 *         draw_noun fills {a} = "an owl", {b} = "a bird"
 *         "What is an owl?"  ─▶  "An owl is a bird."
 *
 * A function draws all slots of a chat. The answer uses the same slots as the question, so it is
 * right for every wording. */
#include <string.h>

#include "tiny.h"

enum { WORDINGS = 8, HELD_OUT_SHARE = 24 };

/* A kind of question. `weight`: how often it is drawn. */
typedef struct kind {
    int weight;
    void (*draw)(uint64_t *state, slots *s);
    const char *questions[WORDINGS], *answer;
} kind;

/* Draws one entry of a list. */
static const word_pair *any(uint64_t *state, const word_list *list)
{
    return &list->pairs[below(state, list->count)];
}

static const char *article(const char *word)
{
    return strchr("aeiou", *word) ? "an" : "a";
}

static int any_number(uint64_t *state) /* small ones more often */
{
    return below(state, below(state, 2) ? 10 : 31);
}

static void draw_small_talk(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &small_talk);
    put(s, 0, "%s", p->a);
    put(s, 1, "%s", p->b);
}

static void draw_name(uint64_t *state, slots *s)
{
    put(s, 0, "%s", any(state, &names)->a);
}

static void draw_words(uint64_t *state, slots *s)
{
    char text[96] = "";
    int count = 1 + below(state, 4);
    for (int i = 0; i < count; i++) {
        if (i) strcat(text, " ");
        strcat(text, any_word(state));
    }
    put(s, 0, "%s", text);
}

static void draw_three_words(uint64_t *state, slots *s)
{
    for (int i = 0; i < 3; i++) put(s, i, "%s", any_word(state));
}

static void draw_times(uint64_t *state, slots *s)
{
    const char *word = any_word(state);
    int count = 2 + below(state, 4);
    char text[96] = "";
    for (int i = 0; i < count; i++) {
        if (i) strcat(text, " ");
        strcat(text, word);
    }
    put(s, 0, "%s", word);
    put(s, 1, "%d", count);
    put(s, 2, "%s", text);
}

static void draw_spelling(uint64_t *state, slots *s)
{
    const char *word = any_word(state);
    char text[96];
    size_t size = 0;
    for (const char *p = word; *p; p++) {
        if (size) text[size++] = ' ';
        text[size++] = *p;
    }
    text[size] = '\0';
    put(s, 0, "%s", word);
    put(s, 1, "%s", text);
    put(s, 2, "%c", word[0]);
}

/* A letter with the letters before and after it; never a or z itself. */
static void draw_letter(uint64_t *state, slots *s)
{
    int at = 1 + below(state, 24);
    for (int i = 0; i < 3; i++) put(s, i, "%c", 'a' + at + i - 1);
}

/* {a} and {b}: from and to; {c}: the numbers between them, both included. */
static void draw_range(uint64_t *state, slots *s, bool down)
{
    int from = any_number(state), count = 2 + below(state, 6);
    char text[96] = "";
    for (int i = 0; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%s%d", i ? " " : "", down ? from + count - 1 - i : from + i);
        strcat(text, number);
    }
    put(s, 0, "%d", down ? from + count - 1 : from);
    put(s, 1, "%d", down ? from : from + count - 1);
    put(s, 2, "%s", text);
}

static void draw_count_up(uint64_t *state, slots *s)
{
    draw_range(state, s, false);
}

static void draw_count_down(uint64_t *state, slots *s)
{
    draw_range(state, s, true);
}

static void draw_neighbours(uint64_t *state, slots *s)
{
    int n = 1 + any_number(state);
    for (int i = 0; i < 3; i++) put(s, i, "%d", n + i - 1);
}

static void draw_compared(uint64_t *state,
                          slots *s) /* {a} and {b} as asked, {c} the bigger, {d} the smaller */
{
    int a = any_number(state), b = any_number(state);
    if (a == b) b = a + 1 + below(state, 9);
    put(s, 0, "%d", a);
    put(s, 1, "%d", b);
    put(s, 2, "%d", a > b ? a : b);
    put(s, 3, "%d", a > b ? b : a);
}

static void draw_number_word(uint64_t *state, slots *s)
{
    int n = below(state, 21);
    put(s, 0, "%d", n);
    put(s, 1, "%s", numbers[n]);
}

static void draw_opposite(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &opposites);
    bool swap = below(state, 2);
    put(s, 0, "%s", swap ? p->b : p->a);
    put(s, 1, "%s", swap ? p->a : p->b);
}

static void draw_colour(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &colours);
    put(s, 0, "%s", p->a);
    put(s, 1, "%s", p->b);
}

static void draw_sound(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &sounds);
    put(s, 0, "%s %s", article(p->a), p->a);
    put(s, 1, "%s", p->b);
}

static void draw_home(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &homes);
    put(s, 0, "%s %s", article(p->a), p->a);
    put(s, 1, "%s", p->b);
}

static void draw_noun(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &nouns);
    put(s, 0, "%s %s", article(p->a), p->a);
    put(s, 1, "%s %s", article(p->b), p->b);
}

/* {b} is right, {c} is wrong. An animal is never wrong for a bird. */
static void draw_wrong_noun(uint64_t *state, slots *s)
{
    const word_pair *p = any(state, &nouns), *other = p;
    while (strcmp(other->b, p->b) == 0 || (strcmp(p->b, "bird") == 0 && strcmp(other->b, "animal") == 0))
        other = any(state, &nouns); /* a bird is an animal as well */
    put(s, 0, "%s %s", article(p->a), p->a);
    put(s, 1, "%s %s", article(p->b), p->b);
    put(s, 2, "%s %s", article(other->b), other->b);
}

static void draw_day(uint64_t *state, slots *s)
{
    int at = below(state, 7);
    for (int i = 0; i < 3; i++) put(s, i, "%s", days[(at + i) % 7]);
}

static void draw_month(uint64_t *state, slots *s)
{
    int at = below(state, 12);
    for (int i = 0; i < 3; i++) put(s, i, "%s", months[(at + i) % 12]);
}

static void draw_story(uint64_t *state, slots *s)
{
    const word_pair *name = any(state, &names), *thing = any(state, &nouns);
    put(s, 0, "%s", name->a);
    put(s, 1, "%s", any(state, &places)->a);
    put(s, 2, "%s %s", article(thing->a), thing->a);
    put(s, 3, "%s", any(state, &colours)->b);
    put(s, 4, "%s", thing->a);
}

static void draw_sum(uint64_t *state, slots *s)
{
    chat c;
    ask_sum(below(state, SUM_WAYS), any_number(state), any_number(state), &c);
    put(s, 0, "%s", c.question);
    put(s, 1, "%s", any(state, &refusals)->a);
}

static const kind kinds[] = {
    {6, draw_small_talk, {"{a}"}, "{b}"},
    {3,
     draw_name,
     {"My name is {a}.", "I am {a}.", "Hello, I am {a}.", "Hi, my name is {a}."},
     "Hello {a}, nice to meet you."},
    {14,
     draw_words,
     {"Say: {a}", "Repeat: {a}", "Copy: {a}", "Say this: {a}", "Repeat after me: {a}"},
     "{a}"},
    {5, draw_three_words, {"What is the first word of: {a} {b} {c}", "First word: {a} {b} {c}"}, "{a}"},
    {5, draw_three_words, {"What is the last word of: {a} {b} {c}", "Last word: {a} {b} {c}"}, "{c}"},
    {5, draw_three_words, {"Say it backwards: {a} {b} {c}", "Turn around: {a} {b} {c}"}, "{c} {b} {a}"},
    {3, draw_times, {"Say {a} {b} times.", "Write {a} {b} times."}, "{c}"},
    {6,
     draw_spelling,
     {"Spell {a}.", "How do you spell {a}?", "Spell the word {a}.", "Please spell {a}."},
     "{b}"},
    {2, draw_spelling, {"What is the first letter of {a}?", "What letter does {a} start with?"}, "{c}"},
    {2, draw_letter, {"What letter comes after {b}?", "Which letter is after {b}?"}, "{c} comes after {b}."},
    {2,
     draw_letter,
     {"What letter comes before {b}?", "Which letter is before {b}?"},
     "{a} comes before {b}."},
    {6,
     draw_count_up,
     {"Count from {a} to {b}.", "Please count from {a} to {b}.", "Count up from {a} to {b}."},
     "{c}"},
    {4, draw_count_down, {"Count down from {a} to {b}.", "Count backwards from {a} to {b}."}, "{c}"},
    {4,
     draw_neighbours,
     {"What number comes after {b}?", "Which number is after {b}?", "What is next after {b}?"},
     "{c} comes after {b}."},
    {4,
     draw_neighbours,
     {"What number comes before {b}?", "Which number is before {b}?"},
     "{a} comes before {b}."},
    {4,
     draw_compared,
     {"Which is bigger, {a} or {b}?", "What is bigger, {a} or {b}?", "Which number is bigger, {a} or {b}?"},
     "{c} is bigger than {d}."},
    {4,
     draw_compared,
     {"Which is smaller, {a} or {b}?", "What is smaller, {a} or {b}?",
      "Which number is smaller, {a} or {b}?"},
     "{d} is smaller than {c}."},
    {3, draw_number_word, {"Write {a} as a word.", "What is {a} in words?", "How do you write {a}?"}, "{b}"},
    {3, draw_number_word, {"Write {b} as a number.", "What number is {b}?", "Which number is {b}?"}, "{a}"},
    {5,
     draw_opposite,
     {"What is the opposite of {a}?", "Tell me the opposite of {a}.", "Opposite of {a}?"},
     "The opposite of {a} is {b}."},
    {5,
     draw_colour,
     {"What colour is {a}?", "What color is {a}?", "Tell me the colour of {a}.",
      "Which colour does {a} have?"},
     "{A} is {b}."},
    {3,
     draw_sound,
     {"What does {a} say?", "What sound does {a} make?", "Which sound does {a} make?"},
     "{A} says {b}."},
    {3,
     draw_home,
     {"Where does {a} live?", "Tell me where {a} lives.", "Where can I find {a}?"},
     "{A} lives {b}."},
    {4, draw_noun, {"What is {a}?", "Tell me what {a} is.", "Do you know what {a} is?"}, "{A} is {b}."},
    {3, draw_noun, {"Is {a} {b}?"}, "Yes, {a} is {b}."},
    {3, draw_wrong_noun, {"Is {a} {c}?"}, "No, {a} is {b}."},
    {3,
     draw_day,
     {"What day comes after {b}?", "Which day is after {b}?", "Today is {b}. What day is tomorrow?"},
     "{c} comes after {b}."},
    {3,
     draw_day,
     {"What day comes before {b}?", "Which day is before {b}?", "Today is {b}. What day was yesterday?"},
     "{a} comes before {b}."},
    {3, draw_month, {"What month comes after {b}?", "Which month is after {b}?"}, "{c} comes after {b}."},
    {3, draw_month, {"What month comes before {b}?", "Which month is before {b}?"}, "{a} comes before {b}."},
    {5, draw_story, {"{a} is {b}. Where is {a}?", "{a} has {c} and is {b}. Where is {a}?"}, "{A} is {b}."},
    {5,
     draw_story,
     {"{a} has {c}. What does {a} have?", "{a} is {b} and has {c}. What does {a} have?"},
     "{A} has {c}."},
    {3,
     draw_story,
     {"The {e} of {a} is {d}. What colour is the {e}?", "{a} has a {d} {e}. What colour is the {e}?"},
     "The {e} is {d}."},
    {10, draw_sum, {"{a}"}, "{b}"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Draws the kind by weight, then the slots, then one of the wordings. */
void draw_chat(uint64_t *state, chat *c)
{
    int total = 0, wordings = 0;
    for (int i = 0; i < KINDS; i++) total += kinds[i].weight;
    int at = below(state, total);
    const kind *k = kinds;
    for (; at >= k->weight; k++) at -= k->weight;
    while (wordings < WORDINGS && k->questions[wordings]) wordings++;
    slots s = {0};
    k->draw(state, &s);
    fill(c->question, k->questions[below(state, wordings)], &s);
    fill(c->answer, k->answer, &s);
}

/* Small talk is never held out: nobody could guess it. */
bool is_held_out(const chat *c)
{
    for (int i = 0; i < small_talk.count; i++)
        if (strcmp(c->question, small_talk.pairs[i].a) == 0) return false;
    return hash_text(c->question) % HELD_OUT_SHARE == 0;
}
