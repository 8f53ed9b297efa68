# code_of(line): a line of C without its comments and without what stands in quotes. The global in_comment says whether the
# line begins within a comment; set it to 0 at the first line of a file.
function code_of(line,    out, at, mark) {
    out = ""
    while (line != "") {
        if (in_comment) {
            at = index(line, "*/")
            if (!at) return out
            line = substr(line, at + 2)
            in_comment = 0
        } else if (match(line, /\/\*|\/\/|"|\047/)) {
            mark = substr(line, RSTART, 2)
            out = out substr(line, 1, RSTART - 1) " "
            line = substr(line, RSTART + RLENGTH)
            if (mark == "//") return out
            else if (mark == "/*") in_comment = 1
            else if (substr(mark, 1, 1) == "\"") sub(/^([^"\\]|\\.)*("|$)/, "", line)
            else sub(/^([^\047\\]|\\.)*(\047|$)/, "", line)
        } else {
            return out line
        }
    }
    return out
}
