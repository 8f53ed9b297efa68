/* completion.c - `nibble completion`: writes scripts for bash, zsh and fish that complete commands,
 * options and values. The scripts are made from the tables of commands.
 *
 *   words_of   the values of an option or argument, the same for all shells
 *   escaped    texts inside the quotes of a shell
 *   put_...    one script per shell; each contains all tables, and never calls nibble */
#include <string.h>

#include "commands/commands.h"
#include "output.h"

/* Returns the choices of an option or argument, separated by blanks, or NULL if there are none. */
static const char *words_of(cli_kind kind, const char *choices)
{
    const char *list = "";
    if (kind == CLI_CHOICE) {
        for (int i = 0; i < cli_choice_count(choices); i++)
            list = cli_format("%s%s%s", list, i ? " " : "", cli_choice(choices, i));
    } else if (kind == CLI_COMMAND) {
        for (int i = 0; cli_commands[i]; i++)
            if (cli_commands[i]->group)
                list = cli_format("%s%s%s", list, *list ? " " : "", cli_commands[i]->name);
    } else {
        return NULL;
    }
    return list;
}

/* Returns a text for use inside single quotes, with a backslash before each character of `special`.
 * In bash and zsh an apostrophe must be outside of the quotes; fish escapes it with a backslash. */
static const char *escaped(const char *text, const char *special, bool fish)
{
    const char *result = "";
    for (; *text; text++) {
        const char *piece = cli_format("%s%c", strchr(special, *text) ? "\\" : "", *text);
        if (*text == '\'' && !fish) piece = "'\\''";
        result = cli_format("%s%s", result, piece);
    }
    return result;
}

/* ---- bash ---- */

/* Writes what completes one value: words, files, or nothing. */
static const char *bash_reply(cli_kind kind, const char *choices)
{
    const char *words = words_of(kind, choices);
    if (words) return cli_format("mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\")", words);
    if (kind == CLI_PATH) return "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\")";
    return ":";
}

/* Writes the case that completes the value of each option: "command --option" selects it. */
static void bash_values(FILE *to, const char *command, const cli_option *options)
{
    for (const cli_option *o = options; o && o->name; o++)
        if (o->kind != CLI_FLAG)
            fprintf(to, "        %s' --%s') %s; return ;;\n", command, o->name,
                    bash_reply(o->kind, o->choices));
}

/* Returns the names of options as words: "--format --block ...". */
static const char *option_words(const cli_option *options)
{
    const char *list = "";
    for (const cli_option *o = options; o && o->name; o++)
        list = cli_format("%s%s--%s", list, *list ? " " : "", o->name);
    return list;
}

/* The script first finds the command and counts arguments before the cursor (`place`), then
 * completes the value of the option before the cursor, an option, or the argument. */
static void put_bash(FILE *to)
{
    fputs("# bash completion for nibble, made by: nibble completion bash\n"
          "_nibble()\n"
          "{\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command='' place=0 options='' i\n"
          "    # bash parts words at '=': \"--format=n\" arrives as \"--format\", \"=\", \"n\"\n"
          "    if [[ $word == '=' ]]; then word=''\n"
          "    elif [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    fi\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case \"$command ${COMP_WORDS[i]}\" in\n",
          to);
    fputs("            ", to);
    const char *between = "";
    for (const cli_option *o = cli_common_options; o->name; o++)
        if (o->kind != CLI_FLAG) {
            fprintf(to, "%s*' --%s'", between, o->name);
            between = " | ";
        }
    for (int i = 0; cli_commands[i]; i++)
        for (const cli_option *o = cli_commands[i]->options; o && o->name; o++)
            if (o->kind != CLI_FLAG) fprintf(to, " | '%s --%s'", cli_commands[i]->name, o->name);
    fputs(")\n"
          "                [[ ${COMP_WORDS[i+1]} == '=' ]] && ((i++))\n"
          "                ((i++)) ;;\n"
          "            *' -'*) ;;\n"
          "            ' '*) command=${COMP_WORDS[i]} ;;\n"
          "            *) ((place++)) ;;\n"
          "        esac\n"
          "    done\n"
          "    case \"$command $before\" in\n",
          to);
    bash_values(to, "*", cli_common_options);
    for (int i = 0; cli_commands[i]; i++) bash_values(to, cli_commands[i]->name, cli_commands[i]->options);
    fputs("    esac\n"
          "    if [[ $word == -* ]]; then\n"
          "        case $command in\n",
          to);
    for (int i = 0; cli_commands[i]; i++)
        if (cli_commands[i]->options)
            fprintf(to, "            %s) options='%s' ;;\n", cli_commands[i]->name,
                    option_words(cli_commands[i]->options));
    fprintf(to,
            "        esac\n"
            "        mapfile -t COMPREPLY < <(compgen -W \"$options %s\" -- \"$word\")\n"
            "        return\n"
            "    fi\n"
            "    case \"$command $place\" in\n"
            "        ' 0') %s ;;\n",
            option_words(cli_common_options), bash_reply(CLI_COMMAND, NULL));
    for (int i = 0; cli_commands[i]; i++) {
        int position = 0;
        for (const cli_argument *a = cli_commands[i]->arguments; a && a->name; a++, position++)
            fprintf(to, "        '%s %d') %s ;;\n", cli_commands[i]->name, position,
                    bash_reply(a->kind, a->choices));
    }
    fputs("    esac\n"
          "}\n"
          "complete -F _nibble nibble\n",
          to);
}

/* ---- zsh ---- */

/* In the specs of _arguments the characters \ [ ] : have a meaning. */
static const char *zsh_text(const char *text)
{
    return escaped(text, "\\[]:", false);
}

static const char *zsh_action(cli_kind kind, const char *choices)
{
    const char *words = words_of(kind, choices);
    return words ? cli_format("(%s)", words) : kind == CLI_PATH ? "_files" : " ";
}

/* Writes a spec per option: 'name[help]:VALUE:action'. A letter and a name exclude each other. */
static void zsh_options(FILE *to, const char *indent, const cli_option *options)
{
    for (const cli_option *o = options; o && o->name; o++) {
        if (o->letter)
            fprintf(to, "%s'(-%c --%s)'{-%c,--%s}", indent, o->letter, o->name, o->letter, o->name);
        else fprintf(to, "%s'--%s%s", indent, o->name, o->kind == CLI_FLAG ? "" : "=");
        fprintf(to, "%s[%s]", o->letter ? "'" : "", zsh_text(o->help));
        if (o->kind != CLI_FLAG) fprintf(to, ":%s:%s", o->argument, zsh_action(o->kind, o->choices));
        fputs("'\n", to);
    }
}

/* Hidden commands (group NULL) are left out. Each command has its own list `own`. */
static void put_zsh(FILE *to)
{
    fputs("#compdef nibble\n"
          "# zsh completion for nibble, made by: nibble completion zsh\n"
          "_nibble()\n"
          "{\n"
          "    local curcontext=\"$curcontext\" state line ret=1\n"
          "    typeset -A opt_args\n"
          "    local -a common commands own\n"
          "    common=(\n",
          to);
    zsh_options(to, "        ", cli_common_options);
    fputs("    )\n"
          "    commands=(\n",
          to);
    for (int i = 0; cli_commands[i]; i++)
        if (cli_commands[i]->group)
            fprintf(to, "        '%s:%s'\n", cli_commands[i]->name, zsh_text(cli_commands[i]->summary));
    fputs("    )\n"
          "    _arguments -C $common '1:command:->command' '*::argument:->argument' && ret=0\n"
          "    case $state in\n"
          "    command) _describe -t commands 'nibble command' commands && ret=0 ;;\n"
          "    argument)\n"
          "        case $line[1] in\n",
          to);
    for (int i = 0; cli_commands[i]; i++) {
        const cli_command *command = cli_commands[i];
        if (command->group == NULL) continue;
        fprintf(to, "        %s)\n            own=(\n", command->name);
        zsh_options(to, "                ", command->options);
        int position = 1;
        for (const cli_argument *a = command->arguments; a && a->name; a++)
            fprintf(to, "                '%d:%s:%s'\n", position++, a->name, zsh_action(a->kind, a->choices));
        fputs("            ) ;;\n", to);
    }
    fputs("        esac\n"
          "        _arguments $common $own && ret=0 ;;\n"
          "    esac\n"
          "    return ret\n"
          "}\n"
          "if [[ $funcstack[1] == _nibble ]]; then _nibble \"$@\"; else compdef _nibble nibble; fi\n",
          to);
}

/* ---- fish ---- */

/* Writes a line per option. condition: "" for common options, else a test of the command. */
static void fish_options(FILE *to, const char *condition, const cli_option *options)
{
    for (const cli_option *o = options; o && o->name; o++) {
        fprintf(to, "complete -c nibble%s", condition);
        if (o->letter) fprintf(to, " -s %c", o->letter);
        fprintf(to, " -l %s", o->name);
        const char *words = words_of(o->kind, o->choices);
        if (words) fprintf(to, " -x -a '%s'", words);
        else if (o->kind == CLI_PATH) fputs(" -r -F", to);
        else if (o->kind != CLI_FLAG) fputs(" -x", to);
        fprintf(to, " -d '%s'\n", escaped(o->help, "\\'", true));
    }
}

static void put_fish(FILE *to)
{
    fputs("# fish completion for nibble, made by: nibble completion fish\n"
          "complete -c nibble -f\n",
          to);
    fish_options(to, "", cli_common_options);
    for (int i = 0; cli_commands[i]; i++)
        if (cli_commands[i]->group)
            fprintf(to, "complete -c nibble -n __fish_use_subcommand -a %s -d '%s'\n", cli_commands[i]->name,
                    escaped(cli_commands[i]->summary, "\\'", true));
    for (int i = 0; cli_commands[i]; i++) {
        const cli_command *command = cli_commands[i];
        if (command->group == NULL) continue;
        const char *condition = cli_format(" -n '__fish_seen_subcommand_from %s'", command->name);
        fish_options(to, condition, command->options);
        bool files = false;
        for (const cli_argument *a = command->arguments; a && a->name; a++) {
            const char *words = words_of(a->kind, a->choices);
            if (words) fprintf(to, "complete -c nibble%s -a '%s'\n", condition, words);
            files = files || a->kind == CLI_PATH;
        }
        if (files) fprintf(to, "complete -c nibble%s -F\n", condition);
    }
}

static int run(cli_call *call)
{
    const char *shell = call->arguments[0];
    cli_text_result(call, "script",
                    strcmp(shell, "bash") == 0  ? put_bash
                    : strcmp(shell, "zsh") == 0 ? put_zsh
                                                : put_fish);
    return CLI_DONE;
}

const cli_command cli_completion = {
    .name = "completion",
    .group = "More",
    .summary = "print a script that completes commands and options in a shell",
    .description =
        "Prints a completion script. For bash put 'source <(nibble completion bash)' into ~/.bashrc; for zsh "
        "write the script to a file _nibble in a folder of $fpath; for fish write it to "
        "~/.config/fish/completions/nibble.fish.",
    .arguments =
        (const cli_argument[]){
            {"SHELL", "bash, zsh or fish", CLI_CHOICE, "bash|zsh|fish", false},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"in this shell, at once", "completion bash > /tmp/nibble.bash && source /tmp/nibble.bash"},
            {NULL, NULL},
        },
    .run = run,
};
