# fish completion of hinit: hinit completion fish | source
function __hinit_words
	set -l typed (commandline -opc) (commandline -ct)
	set -l found ($typed[1] completion words --describe -- $typed[2..-1] 2>/dev/null)
	if test "$found[1]" = ":files"
		__fish_complete_path (commandline -ct)
		return
	end
	printf '%s\n' $found
end
complete -c hinit -f -a '(__hinit_words)'
