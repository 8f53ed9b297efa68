/* hub.c - recognises hub names and finds the hub's cache. See hub.h. */
#include "base/file/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "base/file/file.h"

enum { LONGEST_PART = 96, PATH_ROOM = 1024 }; /* the hub's own limit of a name is 96 characters */

/* Length of the ORG or NAME at `s`; 0 if it is invalid. */
static size_t part_length(const char *s)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = strspn(s, allowed);
    return length > LONGEST_PART || s[0] == '.' || s[0] == '-' ? 0 : length;
}

/* True for names such as "train.jsonl": "data/train.jsonl" is a missing file, not a hub name. */
static bool is_file_name(const char *name, size_t length)
{
    static const char *const endings[] = {".json", ".jsonl", ".csv",   ".tsv",  ".txt", ".parquet",
                                          ".yml",  ".yaml",  ".jinja", ".gguf", ".bin", ".safetensors"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t size = strlen(endings[i]);
        if (length > size && strncasecmp(name + length - size, endings[i], size) == 0) return true;
    }
    return false;
}

/* Finds the hub's cache folder by the environment, in huggingface_hub's order. False: no such
 * folder. */
static bool cache_folder(char *path)
{
    static const struct {
        const char *variable, *below;
    } folders[] = {{"HF_HUB_CACHE", ""},
                   {"HF_HOME", "/hub"},
                   {"XDG_CACHE_HOME", "/huggingface/hub"},
                   {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *value = getenv(folders[i].variable);
        if (value == NULL || *value == '\0') continue;
        int length = snprintf(path, PATH_ROOM, "%s%s", value, folders[i].below);
        return length < PATH_ROOM && nbl__is_folder(path);
    }
    return false;
}

/* The folder of the snapshot that CACHE/models--ORG--NAME/refs/main names. */
static bool cached(const char *org, int org_length, const char *name, int name_length, nbl__hub_kind kind,
                   char *snapshot)
{
    char cache[PATH_ROOM], entry[2 * PATH_ROOM], at[PATH_ROOM + 2 * PATH_ROOM], commit[65] = "";
    if (!cache_folder(cache)) return false;
    snprintf(entry, sizeof entry, "%s/%s--%.*s--%.*s", cache, kind == NBL_HUB_DATASET ? "datasets" : "models",
             org_length, org, name_length, name);
    snprintf(at, sizeof at, "%s/refs/main", entry);
    FILE *file = fopen(at, "re");
    if (file == NULL) return false;
    size_t size = fread(commit, 1, sizeof commit - 1, file);
    fclose(file);
    commit[size] = '\0';
    commit[strspn(commit, "0123456789abcdef")] = '\0';
    int length = snprintf(snapshot, PATH_ROOM, "%s/snapshots/%s", entry, commit);
    return *commit && length < PATH_ROOM && nbl__is_folder(snapshot);
}

nbl_status nbl__hub_hint(nbl_context *ctx, nbl_status code, const char *path, nbl__hub_kind kind)
{
    size_t org = part_length(path);
    if (code != NBL_ERROR_NOT_FOUND || org == 0 || path[org] != '/') return code;
    const char *name = path + org + 1;
    size_t length = part_length(name);
    const char *rest = name + length;
    if (length == 0 || is_file_name(name, length) ||
        (strcmp(rest, "") != 0 && strcmp(rest, "/") != 0 && strcmp(rest, "/config.json") != 0 &&
         strcmp(rest, "/adapter_config.json") != 0))
        return code;
    char folder[LONGEST_PART + 1], snapshot[PATH_ROOM];
    snprintf(folder, sizeof folder, "%.*s", (int)org, path);
    if (nbl__is_folder(folder)) return code;
    const char *what = kind == NBL_HUB_DATASET ? "nibble reads local .json, .jsonl and .csv files"
                                               : "nibble reads local folders";
    if (cached(path, (int)org, name, (int)length, kind, snapshot))
        return nbl__hint(ctx, code, "%s; the hub's cache has a copy: %s", what, snapshot);
    return nbl__hint(
        ctx, code,
        "%s; a name on the Hugging Face hub is downloaded with: hf download %s%.*s/%.*s --local-dir "
        "%.*s",
        what, kind == NBL_HUB_DATASET ? "--repo-type dataset " : "", (int)org, path, (int)length, name,
        (int)length, name);
}
