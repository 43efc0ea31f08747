# bash completion of hinit: source <(hinit completion bash)
_hinit() {
	mapfile -t COMPREPLY < <("$1" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	if [ "${COMPREPLY[0]-}" = ":files" ]; then
		COMPREPLY=()
		compopt -o default
	fi
}
complete -F _hinit hinit
