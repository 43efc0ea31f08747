__hinit_state=$1 __hinit_command=$2 __hinit_dir=$3 __hinit_exports=$4 __hinit_where=$5
# A shell may end when a file that it is to read isn't there.
[ -z "$__hinit_state" ] || [ ! -f "$__hinit_state/base.sh" ] || . "$__hinit_state/base.sh" >/dev/null 2>&1
[ -z "$__hinit_state" ] || [ ! -f "$__hinit_state/env.sh" ] || . "$__hinit_state/env.sh" >/dev/null 2>&1
shift 5
for __hinit_name in "$@"; do
	eval "export $__hinit_name=\"\$hinit_env_$__hinit_name\"; unset hinit_env_$__hinit_name"
done
set --
case $__hinit_dir in
"~") __hinit_dir=~ ;;
"~/"*) __hinit_dir=$HOME/${__hinit_dir#"~/"} ;;
esac
[ -z "$__hinit_dir" ] || command cd -- "$__hinit_dir" || exit 126
eval "$__hinit_command"
__hinit_status=$?
if [ -n "$__hinit_exports" ]; then
	unset HINIT_RUN
	{ umask 077; export -p >"$__hinit_exports" && pwd -P >"$__hinit_where"; } 2>/dev/null
fi
exit $__hinit_status
