/* parse.c - parses the command line by the tables of commands.
 *
 *   cli_parse ─▶ words, left to right: option (take_option), command (take_command), argument
 *             ─▶ defaults ─▶ common values ─▶ checks: arguments, then required options
 *
 * Rules:
 *   - Common options can be anywhere; options of a command come after its name.
 *   - "--name value" and "--name=value" are the same. "--" ends the options.
 *   - Of an option given twice the last value counts, unless it is `repeated`.
 * Only the first error is reported. For a mistyped name the message has the most similar name. */
#include <assert.h>
#include <string.h>

#include "output.h"

static int option_count(const cli_option *options)
{
    int count = 0;
    while (options && options[count].name) count++;
    return count;
}

/* Returns the index of the option `name`, which has `length` bytes, or -1. */
static int find_option(const cli_option *options, const char *name, size_t length)
{
    for (int i = 0; i < option_count(options); i++)
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0) return i;
    return -1;
}

static int find_letter(const cli_option *options, char letter)
{
    for (int i = 0; i < option_count(options); i++)
        if (options[i].letter == letter) return i;
    return -1;
}

/* What a word like "--format=nf4" or "-h" refers to: the option's rule, and where its value is
 * stored. */
typedef struct option_ref {
    const cli_option *rule;
    cli_value *value;
} option_ref;

/* Returns the option that a word refers to. Common options come first, so a command cannot redefine
 * one. A rule of NULL: there is no such option, or its command was not named yet. */
static option_ref option_of(cli_call *call, const char *word)
{
    bool is_long = word[1] == '-';
    const char *name = word + 2;
    size_t length = strcspn(name, "=");
    int i = is_long           ? find_option(cli_common_options, name, length)
            : word[2] == '\0' ? find_letter(cli_common_options, word[1])
                              : -1;
    if (i >= 0) return (option_ref){&cli_common_options[i], &call->common[i]};
    if (call->command == NULL) return (option_ref){NULL, NULL};
    const cli_option *own = call->command->options;
    i = is_long ? find_option(own, name, length) : word[2] == '\0' ? find_letter(own, word[1]) : -1;
    return i >= 0 ? (option_ref){&own[i], &call->values[i]} : (option_ref){NULL, NULL};
}

/* Sets the command. Its values begin as "not given". */
static void take_command(cli_call *call, const cli_command *command)
{
    call->command = command;
    call->values = cli_alloc((size_t)(option_count(command->options) + 1) * sizeof *call->values);
}

/* Prints the usage error for a word that is no command, with the most similar visible command. */
static int unknown_command(const cli_call *call, const char *word)
{
    cli_nearest nearest = {.word = word};
    for (int i = 0; cli_commands[i]; i++)
        if (cli_commands[i]->group) cli_nearest_try(&nearest, cli_commands[i]->name);
    const char *hint = nearest.best ? cli_format("did you mean 'nibble %s'?", nearest.best)
                                    : "'nibble --help' lists the commands";
    return cli_usage(call, hint, "there is no command '%s'", word);
}

/* Prints the usage error for an unknown option. An option of a later command gets its own hint. */
static int unknown_option(cli_call *call, const char *word)
{
    const char *name = cli_format("%.*s", (int)strcspn(word, "="), word);
    const char *hint = NULL;
    if (word[1] == '-') {
        cli_nearest nearest = {.word = name + 2};
        const cli_option *own = call->command ? call->command->options : NULL;
        for (int i = 0; i < option_count(own); i++) cli_nearest_try(&nearest, own[i].name);
        for (int i = 0; i < option_count(cli_common_options); i++)
            cli_nearest_try(&nearest, cli_common_options[i].name);
        if (nearest.best) hint = cli_format("did you mean --%s?", nearest.best);
        for (int i = 0; call->command == NULL && cli_commands[i]; i++)
            if (find_option(cli_commands[i]->options, name + 2, strlen(name + 2)) >= 0)
                hint = cli_format("options of a command stand after its name: nibble %s %s ...",
                                  cli_commands[i]->name, name);
    }
    return cli_usage(call, hint, "there is no option %s", name);
}

/* Reads the option at words[*at] and its value. */
static int take_option(cli_call *call, int count, char **words, int *at)
{
    const char *word = words[*at], *inside = word[1] == '-' ? strchr(word, '=') : NULL;
    option_ref found = option_of(call, word);
    const cli_option *rule = found.rule;
    if (rule == NULL) return unknown_option(call, word);
    const char *text = "";
    if (rule->kind == CLI_FLAG) {
        if (inside) return cli_usage(call, NULL, "--%s takes no value", rule->name);
    } else if (inside) {
        text = inside + 1;
    } else {
        const char *next = *at + 1 < count ? words[*at + 1] : NULL;
        /* In "--skip --double" the value of --skip is missing; "--double" is not the value. */
        bool forgotten = next && next[0] == '-' && next[1] == '-' &&
                         (next[2] == '\0' || option_of(call, next).rule);
        if (next == NULL || forgotten) {
            const char *hint = forgotten && next[2]
                                   ? cli_format("if it is '%s', write --%s=%s", next, rule->name, next)
                                   : NULL;
            return cli_usage(call, hint, "--%s needs a value", rule->name);
        }
        text = next;
        ++*at;
    }
    const char *wanted = cli_value_read(rule, text, found.value);
    if (wanted) return cli_usage(call, NULL, "--%s: '%s' is not %s", rule->name, text, wanted);
    found.value->given = true;
    if (rule->repeated) {
        const char **all = cli_alloc((size_t)(found.value->count + 1) * sizeof *all);
        if (found.value->count) memcpy(all, found.value->all, (size_t)found.value->count * sizeof *all);
        all[found.value->count++] = text;
        found.value->all = all;
    }
    return CLI_DONE;
}

/* Sets the defaults of options that were not given. Defaults come from the tables and are always
 * valid. */
static void take_defaults(const cli_option *options, cli_value *values)
{
    for (int i = 0; i < option_count(options); i++) {
        if (values[i].given || options[i].fallback == NULL) continue;
        const char *wrong = cli_value_read(&options[i], options[i].fallback, &values[i]);
        assert(wrong == NULL);
        (void)wrong;
    }
}

static const cli_value *common_value(const cli_call *call, const char *name)
{
    int i = find_option(cli_common_options, name, strlen(name));
    assert(i >= 0);
    return &call->common[i];
}

const cli_value *cli_get(const cli_call *call, const char *option)
{
    int i = find_option(call->command->options, option, strlen(option));
    return i >= 0 ? &call->values[i] : common_value(call, option);
}

/* Checks the positional arguments: their number, and the kind of each. */
static int check_arguments(const cli_call *call)
{
    const cli_argument *rules = call->command->arguments;
    int i = 0;
    for (; rules && rules[i].name; i++) {
        const cli_argument *rule = &rules[i];
        if (i >= call->argument_count) {
            if (rule->optional) return CLI_DONE;
            return cli_usage(call, NULL, "%s is missing: %s", rule->name, rule->help);
        }
        cli_option as_option = {.kind = rule->kind, .choices = rule->choices};
        cli_value value = {0};
        const char *text = call->arguments[i], *wanted = cli_value_read(&as_option, text, &value);
        if (wanted && rule->kind == CLI_COMMAND) return unknown_command(call, text);
        if (wanted) return cli_usage(call, NULL, "%s: '%s' is not %s", rule->name, text, wanted);
    }
    if (i < call->argument_count)
        return cli_usage(call, NULL, "'%s' is one argument too many", call->arguments[i]);
    return CLI_DONE;
}

/* Fails at the first required option that was not given, and names its choices. */
static int check_required(const cli_call *call)
{
    const cli_option *options = call->command->options;
    for (int i = 0; i < option_count(options); i++) {
        if (!options[i].required || call->values[i].given) continue;
        const char *values = options[i].choices ? cli_format(": %s", cli_choice_list(options[i].choices))
                                                : "";
        return cli_usage(call, NULL, "--%s is missing%s", options[i].name, values);
    }
    return CLI_DONE;
}

int cli_parse(int count, char **words, cli_call *call)
{
    *call = (cli_call){0};
    call->arguments = cli_alloc((size_t)(count + 1) * sizeof *call->arguments);
    call->common = cli_alloc((size_t)(option_count(cli_common_options) + 1) * sizeof *call->common);
    /* An error in an early word must know about a later --json: errors are then JSON too. */
    for (int i = 1; i < count && strcmp(words[i], "--") != 0; i++)
        if (strcmp(words[i], "--json") == 0) call->json = true;

    bool options_ended = false;
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        if (!options_ended && strcmp(word, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && word[0] == '-' && word[1] != '\0') {
            int status = take_option(call, count, words, &i);
            if (status != CLI_DONE) return status;
        } else if (call->command == NULL) {
            const cli_command *command = cli_find_command(word);
            if (command == NULL) return unknown_command(call, word);
            take_command(call, command);
        } else {
            call->arguments[call->argument_count++] = word;
        }
    }
    take_defaults(cli_common_options, call->common);
    call->json = common_value(call, "json")->given;
    call->quiet = common_value(call, "quiet")->given;
    call->help = common_value(call, "help")->given;
    call->version = common_value(call, "version")->given;
    call->threads = (int)common_value(call, "threads")->integer;
    if (call->help || call->version) return CLI_DONE;
    if (call->command == NULL)
        return cli_usage(call, "'nibble --help' lists the commands", "no command was given");

    take_defaults(call->command->options, call->values);
    int status = check_arguments(call);
    return status == CLI_DONE ? check_required(call) : status;
}
