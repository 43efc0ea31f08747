#compdef hinit
# zsh completion of hinit: hinit completion zsh > a directory of $fpath, as _hinit
_hinit() {
	local line
	local -a found
	while IFS= read -r line; do
		if [[ $line == :files ]]; then
			_files
			return
		fi
		found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done < <("${words[1]}" completion words --describe -- "${(@)words[2,CURRENT]}" 2>/dev/null)
	_describe hinit found
}
if [ "$funcstack[1]" = "_hinit" ]; then _hinit "$@"; else compdef _hinit hinit; fi
