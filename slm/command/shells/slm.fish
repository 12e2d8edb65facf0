# Completion of slm for fish: slm completion fish > ~/.config/fish/completions/slm.fish
function __slm_candidates
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    $typed[1] --candidates $typed[2..-1] "$current" 2>/dev/null
end
complete -c slm -f -a '(__slm_candidates)'
