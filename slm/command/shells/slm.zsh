#compdef slm
# Completion of slm for zsh: source <(slm completion zsh), after compinit
_slm() {
    local -a found unfinished finished
    found=("${(@f)$("${words[1]}" --candidates "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    found=("${(@)found:#}")
    unfinished=("${(@M)found:#*[=/]}")
    finished=("${(@)found:#*[=/]}")
    (( ${#unfinished} )) && compadd -S '' -- "${unfinished[@]}"
    (( ${#finished} )) && compadd -- "${finished[@]}"
}
if [[ ${funcstack[1]} == _slm ]]; then
    _slm "$@"
else
    compdef _slm slm
fi
