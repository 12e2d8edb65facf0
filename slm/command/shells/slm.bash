# Completion of slm for bash: source <(slm completion bash)
_slm() {
    local line="${COMP_LINE:0:COMP_POINT}" current="" before candidate
    local -a typed
    # Readline splits words at = and :, and slm does not. Without -r, read undoes backslashes.
    read -a typed <<< "$line"
    if [[ $line != *[[:space:]] ]]; then
        current="${typed[${#typed[@]}-1]}"
        unset "typed[${#typed[@]}-1]"
    fi
    # Readline replaces only what follows the last = or :.
    before="${current%"${current##*[=:]}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ $candidate == *[=/] ]] && compopt -o nospace 2>/dev/null
        candidate="${candidate#"$before"}"
        [[ $candidate == *[[:space:]]* ]] && printf -v candidate '%q' "$candidate"
        COMPREPLY+=("$candidate")
    done < <("${typed[0]}" --candidates "${typed[@]:1}" "$current" 2>/dev/null)
}
complete -F _slm slm
