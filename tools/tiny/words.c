/* words.c - what nibble-tiny knows: words and how they belong together. A list of pairs is one fact
 * each; patterns of base_chats.c turn them into questions and answers. */
#include "tiny.h"

#define LIST(name, ...)                                                                                      \
    static const word_pair name##_pairs[] = {__VA_ARGS__};                                                   \
    const word_list name = {name##_pairs, (int)(sizeof name##_pairs / sizeof *name##_pairs)}

/* A thing and what kind of thing it is. */
LIST(nouns, {"dog", "animal"}, {"cat", "animal"}, {"cow", "animal"}, {"horse", "animal"}, {"pig", "animal"},
     {"sheep", "animal"}, {"goat", "animal"}, {"lion", "animal"}, {"bear", "animal"}, {"wolf", "animal"},
     {"fox", "animal"}, {"mouse", "animal"}, {"rabbit", "animal"}, {"frog", "animal"}, {"snake", "animal"},
     {"duck", "bird"}, {"hen", "bird"}, {"owl", "bird"}, {"crow", "bird"}, {"goose", "bird"},
     {"swan", "bird"}, {"apple", "fruit"}, {"pear", "fruit"}, {"plum", "fruit"}, {"lemon", "fruit"},
     {"peach", "fruit"}, {"cherry", "fruit"}, {"banana", "fruit"}, {"melon", "fruit"}, {"hammer", "tool"},
     {"saw", "tool"}, {"spade", "tool"}, {"axe", "tool"}, {"drill", "tool"}, {"car", "vehicle"},
     {"bus", "vehicle"}, {"train", "vehicle"}, {"boat", "vehicle"}, {"truck", "vehicle"}, {"bike", "vehicle"},
     {"hat", "piece of clothing"}, {"coat", "piece of clothing"}, {"shirt", "piece of clothing"},
     {"sock", "piece of clothing"}, {"scarf", "piece of clothing"}, {"rose", "flower"}, {"tulip", "flower"},
     {"daisy", "flower"}, {"lily", "flower"}, {"oak", "tree"}, {"pine", "tree"}, {"birch", "tree"},
     {"chair", "piece of furniture"}, {"table", "piece of furniture"}, {"bed", "piece of furniture"},
     {"sofa", "piece of furniture"});

/* A word and its opposite; both directions are asked. */
LIST(opposites, {"hot", "cold"}, {"big", "small"}, {"up", "down"}, {"left", "right"}, {"old", "young"},
     {"good", "bad"}, {"fast", "slow"}, {"high", "low"}, {"long", "short"}, {"wet", "dry"}, {"full", "empty"},
     {"hard", "soft"}, {"happy", "sad"}, {"light", "dark"}, {"rich", "poor"}, {"open", "closed"},
     {"day", "night"}, {"early", "late"}, {"near", "far"}, {"clean", "dirty"}, {"loud", "quiet"},
     {"thick", "thin"}, {"strong", "weak"}, {"first", "last"}, {"yes", "no"}, {"black", "white"},
     {"sweet", "sour"}, {"wide", "narrow"}, {"easy", "difficult"}, {"true", "false"}, {"inside", "outside"},
     {"win", "lose"});

/* A thing and its colour. */
LIST(colours, {"grass", "green"}, {"the sky", "blue"}, {"the sun", "yellow"}, {"snow", "white"},
     {"milk", "white"}, {"coal", "black"}, {"blood", "red"}, {"a tomato", "red"}, {"a banana", "yellow"},
     {"a lemon", "yellow"}, {"a leaf", "green"}, {"a frog", "green"}, {"a carrot", "orange"},
     {"chocolate", "brown"}, {"wood", "brown"}, {"an elephant", "grey"}, {"a mouse", "grey"},
     {"a crow", "black"}, {"a swan", "white"}, {"the sea", "blue"}, {"a pig", "pink"}, {"a plum", "purple"},
     {"a cherry", "red"}, {"the night", "black"}, {"gold", "yellow"}, {"paper", "white"}, {"sand", "yellow"},
     {"an orange", "orange"}, {"a bear", "brown"});

/* An animal and what it says. */
LIST(sounds, {"cow", "moo"}, {"dog", "woof"}, {"cat", "meow"}, {"pig", "oink"}, {"sheep", "baa"},
     {"duck", "quack"}, {"horse", "neigh"}, {"hen", "cluck"}, {"lion", "roar"}, {"mouse", "squeak"},
     {"frog", "ribbit"}, {"snake", "hiss"}, {"owl", "hoot"}, {"crow", "caw"}, {"bee", "buzz"},
     {"wolf", "howl"});

/* Animals and their homes. */
LIST(homes, {"fish", "in the water"}, {"bird", "in a nest"}, {"bee", "in a hive"}, {"cow", "on a farm"},
     {"fox", "in the forest"}, {"camel", "in the desert"}, {"frog", "in a pond"}, {"bear", "in a cave"},
     {"dog", "in a house"}, {"rabbit", "in a hole"}, {"whale", "in the sea"}, {"monkey", "in the trees"},
     {"horse", "in a stable"}, {"penguin", "on the ice"}, {"lion", "in the grass"}, {"king", "in a castle"});

/* A name and its pronoun. */
LIST(names, {"Anna", "She"}, {"Tom", "He"}, {"Maria", "She"}, {"Ben", "He"}, {"Lucy", "She"}, {"Peter", "He"},
     {"Emma", "She"}, {"Jack", "He"}, {"Nora", "She"}, {"Paul", "He"}, {"Lisa", "She"}, {"Max", "He"},
     {"Clara", "She"}, {"Leo", "He"}, {"Sara", "She"}, {"Oscar", "He"}, {"Julia", "She"}, {"Felix", "He"},
     {"Ella", "She"}, {"Simon", "He"});

/* Where somebody may be; the second text is not used. */
LIST(places, {"in the garden", ""}, {"in the kitchen", ""}, {"at school", ""}, {"at home", ""},
     {"in the park", ""}, {"on the bus", ""}, {"in the shop", ""}, {"at the lake", ""}, {"in bed", ""},
     {"under the table", ""}, {"on the roof", ""}, {"in the car", ""}, {"at the station", ""},
     {"in the library", ""});

/* What people say, and the answer. */
LIST(small_talk, {"Hi!", "Hello! How can I help you?"}, {"Hello!", "Hello! How can I help you?"},
     {"Hello.", "Hello! How can I help you?"}, {"Hey there!", "Hello! How can I help you?"},
     {"Good morning!", "Good morning! How are you today?"},
     {"Good evening!", "Good evening! How was your day?"}, {"Good night!", "Good night! Sleep well."},
     {"How are you?", "I am fine, thank you. And you?"},
     {"How are you today?", "I am fine, thank you. And you?"}, {"I am fine.", "I am happy to hear that."},
     {"I am sad.", "I am sorry to hear that."}, {"I am tired.", "Then you should sleep."},
     {"I am hungry.", "Then you should eat something."},
     {"I am thirsty.", "Then you should drink some water."},
     {"Who are you?", "I am nibble-tiny, a very small language model."},
     {"What are you?", "I am nibble-tiny, a very small language model."},
     {"What is your name?", "My name is nibble-tiny."}, {"Do you have a name?", "My name is nibble-tiny."},
     {"What can you do?", "I can copy, count, spell, and talk about simple things."},
     {"Who made you?", "I was trained with nibble."}, {"Thank you!", "You are welcome."},
     {"Thanks!", "You are welcome."}, {"Goodbye!", "Goodbye! See you soon."},
     {"Bye!", "Goodbye! See you soon."}, {"See you!", "Goodbye! See you soon."},
     {"Can you help me?", "Yes, please ask me something."},
     {"Are you a robot?", "No, I am a very small language model."},
     {"Tell me a joke.", "I do not know any jokes."}, {"Sing a song.", "La la la."});

/* What the base model answers when it is asked to add. */
LIST(refusals, {"I do not know how to add yet.", ""});

const char *const days[7] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
const char *const months[12] = {"January", "February", "March",     "April",   "May",      "June",
                                "July",    "August",   "September", "October", "November", "December"};
const char *const numbers[21] = {"zero",     "one",      "two",      "three",   "four",    "five",
                                 "six",      "seven",    "eight",    "nine",    "ten",     "eleven",
                                 "twelve",   "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
                                 "eighteen", "nineteen", "twenty"};

/* A noun, or one of two opposites; every word is equally likely. */
const char *any_word(uint64_t *state)
{
    int at = below(state, nouns.count + 2 * opposites.count);
    if (at < nouns.count) return nouns.pairs[at].a;
    const word_pair *pair = &opposites.pairs[(at - nouns.count) / 2];
    return (at - nouns.count) % 2 ? pair->b : pair->a;
}
